"""Running a command's work: interrupts, progress on standard error, questions to the person."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import signal
import sys
import termios
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from typing import Any, Protocol, TextIO, TypeVar

import click
import msgspec

from retinue.config.environment import Environment
from retinue.config.settings import ASK_ABOVE_TOKENS, ASK_ABOVE_USD
from retinue.domain.approval import ApprovalRequest, Rule
from retinue.domain.contract import title_of
from retinue.domain.discovered_models import DiscoveredModels
from retinue.domain.events import Event
from retinue.domain.plan.forecast import Forecast
from retinue.domain.plan.outcome import PlanResult
from retinue.domain.result import Result, Spent, Status
from retinue.errors import ApprovalNeeded
from retinue.interfaces.cli.terminal.lines import Lines
from retinue.interfaces.cli.terminal.live_tree import LiveTree
from retinue.interfaces.cli.terminal.notify import notice
from retinue.interfaces.cli.terminal.output import tell, width, write
from retinue.interfaces.cli.terminal.screen import Screen, Styles
from retinue.interfaces.consent import Consent, for_good
from retinue.interfaces.plan_review import edited
from retinue.interfaces.view.formatting import clip, lines_of, one_line, some
from retinue.interfaces.view.result_blocks import result_block
from retinue.interfaces.view.tool_calls import wish_lines
from retinue.ports.person import Approve, Ask, ChooseModel, refuse_unattended
from retinue.runtime.runtime import Runtime

T = TypeVar("T")

INTERRUPTED = "interrupted by the user"
GRACE_S = 3.0  # How long agents have to say what they have.
PIPE_CLOSED = 128 + signal.SIGPIPE


def perform(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end."""
    # What was imported is never garbage; the process is ours, so nobody needs to look again.
    gc.freeze()
    try:
        return asyncio.run(work)
    except BrokenPipeError:
        # The reader of a pipe has seen enough. What is still in the buffer must go somewhere, or
        # Python complains while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(PIPE_CLOSED) from None


class Interrupts:
    """While entered, SIGINT and SIGTERM suspend the runtime, and cancel the task that entered.

    At the first one agents have a few seconds to say what they have, and the second is obeyed at
    once. Enter it around the opening of the runtime, not inside: a second one must find the
    handlers in place while everything is being closed.
    """

    def __init__(self, *, on_first: Callable[[], None] | None = None) -> None:
        self.runtime: Runtime | None = None
        self.happened = False
        self._on_first = on_first
        self._patience: asyncio.TimerHandle | None = None

    def __enter__(self) -> Interrupts:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def leave() -> None:
            if not self.happened:
                self.happened = True
                task.cancel()

        def interrupt() -> None:
            first = self._patience is None
            if first:
                self._patience = loop.call_later(GRACE_S, leave)
            if not first or self.runtime is None:
                leave()
                return
            if self._on_first is not None:
                self._on_first()
            self.runtime.suspend(INTERRUPTED, leave)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._patience is not None:
            self._patience.cancel()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class Progress(Protocol):
    """How work under way is told of."""

    def listen(self, event: Event) -> None: ...

    def recall(self, event: Event) -> None:
        """Know of an event of long ago, which is not told of again."""
        ...

    def hear(self, agent_id: str, text: str) -> None:
        """Words that an agent's model has just said."""
        ...

    def wait(self, what: str) -> None:
        """Say what is waited for before anything happens."""
        ...

    def shown(self) -> AbstractAsyncContextManager[None]:
        """While inside, it is told."""
        ...

    def aside(self) -> AbstractContextManager[None]:
        """While inside, somebody else writes to the terminal."""
        ...

    def finish(self) -> None:
        """The work is done; what follows is said by others."""
        ...


class Silence:
    """Nothing is told."""

    def listen(self, event: Event) -> None: ...

    def recall(self, event: Event) -> None: ...

    def hear(self, agent_id: str, text: str) -> None: ...

    def wait(self, what: str) -> None: ...

    def shown(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def finish(self) -> None: ...


class JsonLines(Silence):
    """Each event as a line of JSON on standard output."""

    def listen(self, event: Event) -> None:
        sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
        sys.stdout.flush()


class Console:
    """What a working command prints while it works, and at its end."""

    def __init__(
        self,
        *,
        as_json: bool,
        quiet: bool,
        notify_after_s: float = 0.0,
        ask_above_tokens: int = ASK_ABOVE_TOKENS,
        ask_above_usd: float = ASK_ABOVE_USD,
    ) -> None:
        """After `notify_after_s` (0 is never) a person is called back to the terminal.

        What will likely use more than `ask_above_tokens` or `ask_above_usd` needs their yes.
        """
        self._ask_above_tokens = ask_above_tokens
        self._ask_above_usd = ask_above_usd
        self.as_json = as_json
        self.quiet = quiet
        self._notify_after_s = notify_after_s
        self._since = time.monotonic()
        self.progress: Progress = Silence()
        if as_json:
            self.progress = JsonLines()
        elif not quiet and draws(sys.stderr):
            self.progress = LiveTree(Screen(sys.stderr, styles()), hint="Ctrl-C stops it")
        elif not quiet:
            self.progress = Lines()
        self._questions = Questions(self._asking)
        self.unfinished: dict[str, None] = {}
        """The runs that have begun here and have no outcome."""

    def listen(self, event: Event) -> None:
        if event.type in ("run.started", "run.resumed"):
            self.unfinished[event.run_id] = None
        elif event.type == "run.finished":
            self.unfinished.pop(event.run_id, None)
        self.progress.listen(event)

    @property
    def people(self) -> bool:
        """Whether there is somebody at a terminal who can be asked."""
        return sys.stdin.isatty() and sys.stderr.isatty() and not self.as_json

    @property
    def approve(self) -> Approve:
        """Ask at the terminal where there is one."""
        return self._questions if self.people else refuse_unattended

    @property
    def ask(self) -> Ask | None:
        """Put an agent's question to the person at the terminal, where there is one."""
        approve = self.approve
        return approve.answer if isinstance(approve, Questions) else None

    @property
    def choose(self) -> ChooseModel | None:
        """Have the person at the terminal choose a model, where there is one."""
        approve = self.approve
        return approve.choose if isinstance(approve, Questions) else None

    async def decide(self, shown: str | Sequence[str], choices: Sequence[str]) -> str:
        """Show a text to the person at the terminal, or lines that may be cut, and have them choose
        one of several; the last where they say nothing."""
        *some, last = choices
        named = [*(f"[{c[0]}]{c[1:]}" for c in some), f"[{last[0].upper()}]{last[1:]}"]
        if isinstance(shown, str):
            lines = lines_of(f"\n{shown}\n\n")
        else:
            lines = [clip(line, width(sys.stderr)) for line in shown]
        return await self._questions.decide(lines, f"{', '.join(named)}? ")

    def note(self, text: str) -> None:
        """Tell something that is good to know, where somebody reads along."""
        if text and not self.as_json and not self.quiet:
            with self.progress.aside():
                tell(text)

    async def edit(self, text: str) -> str | None:
        """What the person's editor makes of `text`; None if it is left as it is."""
        with self.progress.aside():
            return await asyncio.to_thread(edited, text)

    async def agree(self, expected: Forecast, *, yes: bool) -> None:
        """Tell what work will likely use, and have somebody agree if that is much.

        Raises ApprovalNeeded if nobody does.
        """
        tokens, usd = self._ask_above_tokens, self._ask_above_usd
        much = expected.tokens > tokens or expected.cost_usd > usd
        # Who sees the live tree sees what is used, as it is used.
        told = much or not sys.stderr.isatty()
        if told and not self.quiet and not self.as_json:
            with self.progress.aside():
                click.echo(f"Forecast: {expected}.", err=True)
        if yes or not much:
            return
        above = f"more than the {tokens:,} tokens or {usd:g} USD that need no yes"
        if not self.people:
            raise ApprovalNeeded(f"This will use {expected}: {above}. Say --yes, or ask for less.")
        answer = await self.decide([f"That is {above}. Do it?"], ("yes", "no"))
        if answer not in ("y", "yes"):
            raise ApprovalNeeded("Nothing was run.")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """While inside, a person is asked."""
        with self.progress.aside():
            self._notify("needs an answer")
            yield
            self._since = time.monotonic()

    def _notify(self, what: str) -> None:
        """Call a person back who may have left, if it took long."""
        took_s = time.monotonic() - self._since
        if sys.stderr.isatty() and not self.quiet and 0 < self._notify_after_s <= took_s:
            sys.stderr.write(notice(Environment.current(), f"retinue {what}"))
            sys.stderr.flush()

    def print_stopping(self) -> None:
        if not self.as_json and not self.quiet:
            with self.progress.aside():
                click.echo("Stopping when it is said what there is; Ctrl-C stops now.", err=True)

    def print_way_back(self, what: str, directory: str) -> None:
        """Say how to go on with what has ended early."""
        if self.as_json:
            return
        for run_id in self.unfinished:
            click.echo(way_back(what, run_id, directory), err=True)

    def print_result(self, result: Result) -> None:
        self.progress.finish()
        if self.as_json:
            return
        self._notify(f"{'is done' if result.ok else 'failed'}: {title_of(result.task)}")
        if not self.quiet:
            self._print_block(result)
        if result.response:
            write(result.response)
        if not result.ok:
            tell(f"retinue: {result.status}: {result.error}")

    def _print_block(self, result: Result) -> None:
        """How it ended, without the answer, which follows, and the reason, which does as well."""
        told = msgspec.structs.replace(result, error=None)
        for line in result_block(told, width=width(sys.stderr), lines=0):
            click.echo(styles().styled(line), err=True)
        click.echo(f"  Run: {result.run_id}", err=True)
        if sys.stderr.isatty():
            click.echo(err=True)

    def print_report(self, result: PlanResult) -> None:
        """How a plan went, as Markdown."""
        self.progress.finish()
        if self.as_json:
            return
        self._notify(f"{'is done' if result.ok else 'failed'}: {title_of(result.plan.goal)}")
        write(result.report.rstrip())
        if not result.ok:
            tell(f"retinue: {result.status}: {result.error}")

    def print_results(
        self, results: list[Result], expected: Forecast | None = None, *, took_s: float = 0.0
    ) -> None:
        self.progress.finish()
        if self.as_json:
            return
        self._notify(f"is done: {sum(r.ok for r in results)} of {some(len(results), 'task')}")
        for result in results:
            mark = "ok" if result.ok else result.status
            write(f"## {result.agent_id or '-'} {result.role} [{mark}] {result.task}\n")
            if result.response:
                write(f"{result.response.rstrip()}\n")
            if not result.ok:
                write(f"[{result.status}] {result.error}\n")
        if not self.quiet and results:
            done = sum(r.ok for r in results)
            tokens = sum(r.usage.tokens for r in results)
            click.echo(
                f"{done} of {len(results)} done, {tokens:,} tokens;"
                f" `retinue show {results[0].run_id}` has the details.",
                err=True,
            )
            if expected is not None:
                click.echo(f"Against the {expected.against(_sum(results, took_s))}.", err=True)


def way_back(what: str, run_id: str, directory: str) -> str:
    """How to go on with a run that has ended early."""
    elsewhere = "" if directory == "." else f" -C {shlex.quote(directory)}"
    return f"retinue: {what}; to go on: retinue resume {run_id}{elsewhere}"


def _sum(results: Sequence[Result], took_s: float) -> Spent:
    """The bill of several that ran side by side."""
    return Spent(
        tokens_in=sum(result.usage.tokens_in for result in results),
        tokens_out=sum(result.usage.tokens_out for result in results),
        cost_usd=sum(result.usage.cost_usd for result in results),
        duration_s=took_s,
    )


def draws(stream: TextIO) -> bool:
    """Is that a terminal on which something can be drawn?"""
    return stream.isatty() and Environment.current().get("TERM") not in (None, "dumb")


def styles() -> Styles:
    return Styles(color=Environment.current().get("NO_COLOR") is None)


class Questions:
    """Asks a person, one question at a time."""

    def __init__(self, aside: Callable[[], AbstractContextManager[None]]) -> None:
        """`aside` is a context in which nobody else writes to the terminal."""
        self._aside = aside
        self._lock = asyncio.Lock()
        self._consent = Consent()

    async def __call__(self, wish: ApprovalRequest) -> bool | Rule:
        async with self._lock:
            if rule := self._consent.covers(wish):
                return rule
            with self._aside():
                for line in wish_lines(wish):
                    click.echo(line, err=True)
                if wish.terms:
                    tell(f"({wish.terms})")
                always = one_line(str(wish.rule))
                said = await _answer_to(f"[y]es, [a]lways in this run: {always}, [N]o? ")
                answer = said.lower()
                if answer in ("a", "always"):
                    self._consent.add(wish.rule)
                    click.echo(for_good(wish.rule), err=True)
            return answer in ("y", "yes", "a", "always")

    async def answer(self, path: str, question: str) -> str:
        async with self._lock:
            with self._aside():
                click.echo(f"{path} asks: {one_line(question)}", err=True)
                return await _answer_to("> ") or "(no answer)"

    async def decide(self, shown: Sequence[str], question: str) -> str:
        async with self._lock:
            with self._aside():
                for line in shown:
                    tell(line)
                return (await _answer_to(question)).lower()

    async def choose(self, discovery: DiscoveredModels) -> str:
        with self._aside():
            tell(discovery.question)
            while True:
                answer = await _answer_to(
                    f"Number or name [1: {one_line(discovery.options[0].name)}]: "
                )
                if (name := discovery.resolve_answer(answer)) is not None:
                    return name
                click.echo(f"There is no number {answer}.", err=True)


async def _answer_to(prompt: str) -> str:
    """One line of standard input. A thread could not be cancelled while it waits for a key."""
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    ready: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        # Not by Python's buffer, in which a second line would wait unseen.
        line = os.read(file, 4096)
        if ready.done():
            return
        if line:
            ready.set_result(line.decode("utf-8", "replace").strip())
        else:
            ready.set_exception(ApprovalNeeded("The terminal was closed before an answer."))

    # What was typed before the question is no answer to it.
    termios.tcflush(file, termios.TCIFLUSH)
    click.echo(prompt, err=True, nl=False)
    loop.add_reader(file, read)
    try:
        return await ready
    finally:
        loop.remove_reader(file)


def exit_code(statuses: Sequence[Status]) -> int:
    """0 all done; else what all that went wrong have in common, or 1."""
    bad = [status for status in statuses if status is not Status.COMPLETED]
    if not bad:
        return 0
    if all(status is Status.CANCELLED for status in bad):
        return 130
    if all(status is Status.REJECTED for status in bad):
        return 4
    if all(status in (Status.BUDGET_EXCEEDED, Status.TIMEOUT) for status in bad):
        return 3
    return 1
