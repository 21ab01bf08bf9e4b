"""Running a command's work: interrupts, progress on standard error, questions to the person."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
import msgspec

from retinue.app import Choose
from retinue.domain.approval import Rule, Rules, Verdict, rule_for
from retinue.domain.discovery import Discovery
from retinue.domain.events import Event, ModelFailed, RunStarted
from retinue.domain.result import Result, RunResult, Status
from retinue.errors import ApprovalNeeded
from retinue.ports import Approve, Ask
from retinue.runtime.facade import Runtime
from retinue.runtime.toolbox import nobody, subject_of

T = TypeVar("T")

INTERRUPTED = "interrupted by the user"
PIPE_CLOSED = 128 + signal.SIGPIPE
SHOWN = {
    "agent.subagent_created",
    "agent.subagent_attempt",
    "agent.subagent_closed",
    "agent.limit_reached",
    "agent.breaker",
    "agent.cached",
    "agent.silent",
    "model.failed",
    "tool.started",
    "tool.denied",
}


def perform(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end."""
    # A fan-out makes many short-lived containers. Looking through the young ones less often, and
    # never through what was imported, saves a tenth of its CPU; the process is ours to tune here.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    try:
        return asyncio.run(work)
    except BrokenPipeError:
        # The reader of a pipe has seen enough. What is still in the buffer must go somewhere, or
        # Python complains while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(PIPE_CLOSED) from None


class Interrupts:
    """While entered, SIGINT and SIGTERM tell the runtime why, and cancel the task that entered.

    Enter it around the opening of the runtime, not inside: a second one must find the handlers in
    place while everything is being closed.
    """

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.happened = False

    def __enter__(self) -> Interrupts:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def interrupt() -> None:
            if not self.happened:
                self.happened = True
                if self.runtime is not None:
                    self.runtime.stop(INTERRUPTED)
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
        return self

    def __exit__(self, *exc: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class Console:
    """What a working command prints while it works, and at its end."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self._paths: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        self._questions = Questions()

    @property
    def listener(self) -> Callable[[Event], None] | None:
        if self.as_json:
            return self._print_json
        return None if self.quiet else self._print_progress

    @property
    def approve(self) -> Approve:
        """Ask at the terminal where there is one."""
        people = sys.stdin.isatty() and sys.stderr.isatty() and not self.as_json
        return self._questions if people else nobody

    @property
    def ask(self) -> Ask | None:
        """Put an agent's question to the person at the terminal, where there is one."""
        approve = self.approve
        return approve.answer if isinstance(approve, Questions) else None

    @property
    def choose(self) -> Choose | None:
        """Have the person at the terminal choose a model, where there is one."""
        approve = self.approve
        return approve.choose if isinstance(approve, Questions) else None

    def _print_json(self, event: Event) -> None:
        sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
        sys.stdout.flush()

    def _print_progress(self, event: Event) -> None:
        if isinstance(event.fact, RunStarted) and event.fact.sandbox == "reduced":
            said = "sandbox: reduced; `retinue doctor` tells what it does not hold"
            click.echo(click.style(f"  {said}", dim=True), err=True)
        if event.type == "agent.subagent_created":
            fact = event.fact
            self._paths[event.agent_id] = getattr(fact, "path", event.agent_id)
            for note in getattr(fact, "notes", ()):
                self._line(event, f"note: {note}")
        if event.type not in SHOWN or (event.parent_agent_id is None and event.attempt == 0):
            return
        if event.type == "agent.subagent_attempt" and event.attempt == 1:
            return
        if event.type == "agent.subagent_closed" and event.parent_agent_id is None:
            return  # How it ended is said below, at more length.
        fact = event.fact
        if isinstance(fact, ModelFailed):
            # Once in full: the same sentence four times over would hide that it is one problem.
            again = self._failures.get(event.agent_id) == fact.error
            self._failures[event.agent_id] = fact.error
            if fact.retry_in_s is None:
                return
            if again:
                self._line(event, f"the same again; once more in {fact.retry_in_s:.1f}s")
                return
        self._line(event, event.summary)

    def _line(self, event: Event, text: str) -> None:
        path = self._paths.get(event.agent_id, event.agent_id)
        if text.startswith(path):
            text = text[len(path) :].lstrip()
        click.echo(click.style(f"  {path}: {text}", dim=True), err=True)

    def print_result(self, result: Result) -> None:
        if self.as_json:
            return
        if not self.quiet:
            click.echo(described(result), err=True)
        if result.response:
            click.echo(result.response)
        if not result.ok:
            click.echo(f"retinue: {result.status}: {result.error}", err=True)

    def print_results(self, results: list[Result]) -> None:
        if self.as_json:
            return
        for result in results:
            mark = "ok" if result.ok else result.status
            click.echo(f"## {result.agent_id or '-'} {result.role} [{mark}] {result.task}\n")
            if result.response:
                click.echo(f"{result.response.rstrip()}\n")
            if not result.ok:
                click.echo(f"[{result.status}] {result.error}\n")
        if not self.quiet and results:
            done = sum(r.ok for r in results)
            tokens = sum(r.usage.tokens for r in results)
            click.echo(
                f"{done} of {len(results)} done, {tokens:,} tokens;"
                f" `retinue show {results[0].run_id}` has the details.",
                err=True,
            )


class Questions:
    """Asks a person, one question at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._always: set[Rule] = set()

    async def __call__(self, path: str, tool: str, arguments: str) -> bool:
        subject = _subject(arguments)
        rule = rule_for(tool, subject)
        async with self._lock:
            known = Rules(allow=tuple(self._always))
            if known.judge(tool, subject, is_command=True, asked=True) is Verdict.ALLOW:
                return True
            shown = arguments if len(arguments) <= 600 else arguments[:600] + "…"
            click.echo(f"{path} wants {tool} {shown}", err=True)
            click.echo(f"[y]es, [a]lways in this run: {rule}, [N]o? ", err=True, nl=False)
            answer = (await _line_from_terminal()).strip().lower()
            if answer in ("a", "always"):
                self._always.add(rule)
                said = msgspec.json.encode(str(rule)).decode()
                click.echo(f"For good: allow = [{said}] in your settings.", err=True)
            return answer in ("y", "yes", "a", "always")

    async def answer(self, path: str, question: str) -> str:
        async with self._lock:
            click.echo(f"{path} asks: {question}", err=True)
            click.echo("> ", err=True, nl=False)
            return (await _line_from_terminal()).strip() or "(no answer)"

    async def choose(self, discovery: Discovery) -> str:
        offers = discovery.offers
        click.echo(discovery.question, err=True)
        while True:
            click.echo(f"Number or name [1: {offers[0].name}]: ", err=True, nl=False)
            answer = (await _line_from_terminal()).strip()
            for offer in offers:
                if answer in ("", offer.served.model):
                    return offer.name
            if not answer.isdecimal():
                return answer
            if 1 <= int(answer) <= len(offers):
                return offers[int(answer) - 1].name
            click.echo(f"There is no number {answer}.", err=True)


def _subject(arguments: str) -> str:
    try:
        found = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return ""
    return subject_of(found) if isinstance(found, dict) else ""


async def _line_from_terminal() -> str:
    """One line of standard input. A thread could not be cancelled while it waits for a key."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not ready.done():
            line = sys.stdin.readline()
            if line:
                ready.set_result(line)
            else:
                ready.set_exception(ApprovalNeeded("The terminal was closed before an answer."))

    loop.add_reader(sys.stdin.fileno(), read)
    try:
        return await ready
    finally:
        loop.remove_reader(sys.stdin.fileno())


def described(result: Result) -> str:
    """The block that stands at the end of an agent's work."""
    usage = result.total if isinstance(result, RunResult) and result.children else result.usage
    word = "Completed" if result.ok else f"Ended ({result.status})"
    lines = [
        f'[{result.role}] {word}: "{result.task.splitlines()[0][:72]}"',
        f"  Duration: {usage.duration_s:.1f}s ({some(usage.turns, 'turn')},"
        f" {some(usage.tool_calls, 'tool call')}, {some(usage.tokens, 'token')})",
    ]
    if result.files_modified:
        lines.append("  Files modified: " + ", ".join(map(str, result.files_modified)))
    lines.append(f"  Run: {result.run_id}")
    return "\n".join(lines)


def some(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def exit_code(results: list[Result]) -> int:
    """0 all done; else the code of the worst: failed before limits before missing approvals."""
    bad = [r.status for r in results if not r.ok]
    if not bad:
        return 0
    if all(status is Status.REJECTED for status in bad):
        return 4
    if all(status in (Status.BUDGET_EXCEEDED, Status.TIMEOUT) for status in bad):
        return 3
    return 1
