"""Asks the person at the terminal: approvals, questions of agents, choices."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress

import click

from retinue.domain.approval import ApprovalRequest, Refusal, Rule, Rules
from retinue.errors import ApprovalNeeded
from retinue.interfaces.cli.terminal.output import print_error, width
from retinue.interfaces.cli.terminal.screen import print_lines
from retinue.interfaces.view.approvals import (
    always_text,
    explanation_lines,
    permanent_rule_hint,
    read_answer,
    request_lines,
)
from retinue.interfaces.view.formatting import one_line

MAX_HINTS = 3


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
                answer = read_answer(await self._read(_question(request)), request)
                if isinstance(answer, Rule):
                    rules = request.rules if answer == request.rule else (answer,)
                    self._granted = Rules(allow=(*self._granted.allow, *rules))
                    for rule in rules[:MAX_HINTS]:
                        click.echo(permanent_rule_hint(rule), err=True)
            return answer or (answer if isinstance(answer, Refusal) else False)

    async def answer(self, path: str, question: str) -> str:
        """Put the question of the agent at `path`, and return the answer."""
        async with self._lock:
            with self._exclusive():
                click.echo(f"{path} asks: {one_line(question)}", err=True)
                return await self._read("> ") or "(no answer)"

    async def decide(self, lines: Sequence[str], question: str) -> str:
        """Print `lines`, ask `question`, and return the answer in lower case."""
        async with self._lock:
            with self._exclusive():
                for line in lines:
                    print_error(line)
                return (await self._read(question)).lower()

    async def _read(self, prompt: str) -> str:
        line = await _read_line(prompt)
        if line is None:
            if self.on_closed is None:
                raise ApprovalNeeded("The terminal was closed before an answer.")
            self.on_closed()
            await asyncio.Event().wait()  # Until the run is suspended.
        return line or ""


def _question(request: ApprovalRequest) -> str:
    start = "Merge this change? " if request.diff else ""
    always = f"[a]lways {always_text(request)}"
    return f"{start}[y]es, {always}, no REASON, [N]o? "


async def _read_line(prompt: str) -> str | None:
    """Read one line of standard input; None if it is closed.

    Can be cancelled, unlike a read in a thread.
    """
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    ready: asyncio.Future[str | None] = loop.create_future()

    def read() -> None:
        # Not through Python's buffer: a second line would stay there, and the reader is not called.
        try:
            line = os.read(file, 4096)
        except OSError:  # The terminal has hung up.
            line = b""
        if not ready.done():
            ready.set_result(line.decode("utf-8", "replace").strip() if line else None)

    # Keys pressed before the question do not answer it.
    with suppress(termios.error):
        termios.tcflush(file, termios.TCIFLUSH)
    click.echo(prompt, err=True, nl=False)
    loop.add_reader(file, read)
    try:
        return await ready
    finally:
        loop.remove_reader(file)
