"""Asks the person at the terminal: approvals, questions of agents, choices."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import click

from retinue.domain.approval import ApprovalRequest, Rule, Rules
from retinue.domain.discovered_models import DiscoveredModels
from retinue.errors import ApprovalNeeded
from retinue.interfaces.cli.terminal.output import print_error
from retinue.interfaces.view.formatting import one_line
from retinue.interfaces.view.tool_calls import approval_lines, permanent_rule_hint


class Questions:
    """Asks the person at the terminal, one question at a time."""

    def __init__(self, exclusive: Callable[[], AbstractContextManager[None]]) -> None:
        """`exclusive` is a context in which nothing else writes to the terminal."""
        self._exclusive = exclusive
        self._lock = asyncio.Lock()
        self._granted = Rules()

    async def approve(self, request: ApprovalRequest) -> bool | Rule:
        """Ask for an approval, unless an "always" of this run covers it."""
        async with self._lock:
            if rule := request.covered_by(self._granted):
                return rule
            with self._exclusive():
                for line in approval_lines(request):
                    click.echo(line, err=True)
                if request.explanation:
                    print_error(f"({request.explanation})")
                always = one_line(str(request.rule))
                typed = await _read_answer(f"[y]es, [a]lways in this run: {always}, [N]o? ")
                answer = typed.lower()
                if answer in ("a", "always"):
                    self._granted = Rules(allow=(*self._granted.allow, request.rule))
                    click.echo(permanent_rule_hint(request.rule), err=True)
            return answer in ("y", "yes", "a", "always")

    async def answer(self, path: str, question: str) -> str:
        """Put the question of the agent at `path`, and return the answer."""
        async with self._lock:
            with self._exclusive():
                click.echo(f"{path} asks: {one_line(question)}", err=True)
                return await _read_answer("> ") or "(no answer)"

    async def decide(self, lines: Sequence[str], question: str) -> str:
        """Print `lines`, ask `question`, and return the answer in lower case."""
        async with self._lock:
            with self._exclusive():
                for line in lines:
                    print_error(line)
                return (await _read_answer(question)).lower()

    async def choose_model(self, found: DiscoveredModels) -> str:
        with self._exclusive():
            print_error(found.question)
            while True:
                answer = await _read_answer(
                    f"Number or name [1: {one_line(found.options[0].name)}]: "
                )
                if (name := found.resolve_answer(answer)) is not None:
                    return name
                click.echo(f"There is no number {answer}.", err=True)


async def _read_answer(prompt: str) -> str:
    """Read one line of standard input. Can be cancelled, unlike a read in a thread."""
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    ready: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        # Not through Python's buffer: a second line would stay there, and the reader is not called.
        line = os.read(file, 4096)
        if ready.done():
            return
        if line:
            ready.set_result(line.decode("utf-8", "replace").strip())
        else:
            ready.set_exception(ApprovalNeeded("The terminal was closed before an answer."))

    # Keys pressed before the question do not answer it.
    termios.tcflush(file, termios.TCIFLUSH)
    click.echo(prompt, err=True, nl=False)
    loop.add_reader(file, read)
    try:
        return await ready
    finally:
        loop.remove_reader(file)
