"""Asks the person at the terminal: approvals by one key, questions of agents, choices."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import termios
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

import click

from retinue.domain.approval import (
    ApprovalReason,
    ApprovalRequest,
    Refusal,
    Rule,
    Rules,
    agent_label,
    parse_rule,
)
from retinue.errors import ApprovalNeeded, ConfigError
from retinue.interfaces.cli.terminal.output import print_error, width
from retinue.interfaces.cli.terminal.screen import print_lines
from retinue.interfaces.view.approvals import (
    always_text,
    explanation_lines,
    permanent_rule_hint,
    request_lines,
)
from retinue.interfaces.view.formatting import one_line

MAX_HINTS = 3
GUARD_S = 0.5
"""Keys that are pressed so soon after a question was meant for something else."""
ENTER, END_OF_INPUT, ESCAPE = "\r\n", "\x04", "\x1b"


class Questions:
    """Asks the person at the terminal, one question at a time."""

    def __init__(self, exclusive: Callable[[], AbstractContextManager[None]]) -> None:
        """`exclusive` is a context in which nothing else writes to the terminal."""
        self.on_closed: Callable[[], None] | None = None
        """Called if the terminal is closed before an answer; the caller is cancelled then."""
        self._exclusive = exclusive
        self._lock = asyncio.Lock()
        self._granted = Rules()

    async def approve(self, request: ApprovalRequest) -> bool | Rule | Refusal:
        """Ask for an approval, unless an "always" of this run covers it."""
        async with self._lock:
            if rule := request.covered_by(self._granted):
                return rule
            with self._exclusive():
                columns = width(sys.stderr)
                print_lines(request_lines(request, columns), err=True)
                print_lines(explanation_lines(request, columns), err=True)
                answer = await self._read_approval(request)
                if isinstance(answer, Rule):
                    rules = request.rules if answer == request.rule else (answer,)
                    self._granted = Rules(allow=(*self._granted.allow, *rules))
                    for rule in rules[:MAX_HINTS]:
                        click.echo(permanent_rule_hint(rule), err=True)
            return answer

    async def _read_approval(self, request: ApprovalRequest) -> bool | Rule | Refusal:
        """Yes, always and no by one key. A no may have a reason, an always another rule."""
        has_rule = not request.children and request.why is not ApprovalReason.CALLS
        while True:
            key, rest = await self._read_key(_question(request, has_rule), "yane"[: 3 + has_rule])
            match key:
                case "y":
                    click.echo("yes", err=True)
                    return True
                case "a":
                    click.echo("always", err=True)
                    return request.rule
                case "e":
                    text = await self._read_line(f"rule\nRule [{request.rule}]: ", rest)
                    try:
                        return parse_rule(text) if text else request.rule
                    except ConfigError as error:
                        print_error(str(error))
                case "n":
                    # The key n was the first letter, if the person types "no, because …".
                    reason = await self._read_line("no\nReason (or Enter): ", rest)
                    reason = re.sub(r"^o(?:[,:;.!]+\s*|\s+|$)", "", reason)
                    return Refusal(reason) if reason else False
                case _:
                    click.echo("no", err=True)
                    return False

    async def answer(self, path: str, question: str) -> str:
        """Put the question of the agent at `path`, and return the answer."""
        async with self._lock:
            with self._exclusive():
                click.echo(f"{agent_label(path)} asks: {one_line(question)}", err=True)
                _discard_input()
                return await self._read_line("> ") or "(no answer)"

    async def decide(self, lines: Sequence[str], question: str, keys: Collection[str]) -> str:
        """Print `lines`, ask `question`, and return the key that was pressed; "" for Enter."""
        async with self._lock:
            with self._exclusive():
                for line in lines:
                    print_error(line)
                key, _ = await self._read_key(question, keys)
                click.echo(key, err=True)
                return key

    async def _read_key(self, prompt: str, keys: Collection[str]) -> tuple[str, str]:
        """Wait for one of `keys`, or for Enter, which is "". Return it and what was typed after it.

        The prompt appears when keys count: those pressed before are dropped.
        """
        with _single_keys():
            await asyncio.sleep(GUARD_S)
            _discard_input()
            click.echo(prompt, err=True, nl=False)
            while True:
                typed = await _read_input()
                if not typed:
                    await self._wait_for_suspension()
                if typed.startswith(ESCAPE):  # An arrow, for example.
                    continue
                for place, key in enumerate(typed.lower()):
                    if key == END_OF_INPUT:
                        await self._wait_for_suspension()
                    if key in ENTER:
                        return "", ""
                    if key in keys:
                        return key, typed[place + 1 :]

    async def _read_line(self, prompt: str, begun: str = "") -> str:
        """Read a line that may be `begun` already."""
        click.echo(prompt + begun.rstrip(ENTER), err=True, nl=False)
        if begun.endswith(tuple(ENTER)):
            click.echo(err=True)
            return begun.strip()
        typed = await _read_input()
        if not typed:
            await self._wait_for_suspension()
        return (begun + typed).strip()

    async def _wait_for_suspension(self) -> None:
        """The terminal was closed before an answer."""
        if self.on_closed is None:
            raise ApprovalNeeded("The terminal was closed before an answer.")
        self.on_closed()
        await asyncio.Event().wait()  # Until the run is suspended.


def _question(request: ApprovalRequest, has_rule: bool) -> str:
    start = "Merge this change? " if request.diff else ""
    edit = ", [e]dit the rule" if has_rule else ""
    return f"{start}[y]es, [a]lways {always_text(request)}{edit}, [N]o? "


def _discard_input() -> None:
    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextmanager
def _single_keys() -> Iterator[None]:
    """While inside, a key is read when it is pressed, and not shown. Ctrl-C stays a signal."""
    file = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(file)
    except termios.error:
        yield
        return
    after = [*before]
    after[3] = after[3] & ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(file, termios.TCSADRAIN, after)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(file, termios.TCSADRAIN, before)


async def _read_input() -> str:
    """Read the next key, or in line mode the next line; "" if standard input is closed.

    Can be cancelled, unlike a read in a thread.
    """
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    ready: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        # Not through Python's buffer: a second line would stay there, and the reader is not called.
        try:
            data = os.read(file, 4096)
        except OSError:  # The terminal has hung up.
            data = b""
        if not ready.done():
            ready.set_result(data.decode("utf-8", "replace"))

    loop.add_reader(file, read)
    try:
        return await ready
    finally:
        loop.remove_reader(file)
