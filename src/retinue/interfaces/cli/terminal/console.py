"""The console of a command that runs agents: prints progress and results, and asks questions."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TextIO

import click
import msgspec

from retinue.config.environment import Environment
from retinue.config.settings import MergedSettings
from retinue.domain.agent_state import ROOT_ID
from retinue.domain.contract import title_of
from retinue.domain.events import Event
from retinue.domain.framing import one_line
from retinue.domain.plan.forecast import Forecast
from retinue.domain.plan.outcome import PlanResult
from retinue.domain.plural import listed, plural
from retinue.domain.race import RaceResult, Standing
from retinue.domain.result import Result, total_spent
from retinue.domain.run_state import RunState
from retinue.errors import ApprovalNeeded, RunSuspended
from retinue.interfaces.cli.terminal.lines import Lines
from retinue.interfaces.cli.terminal.live_tree import LiveTree
from retinue.interfaces.cli.terminal.notify import notification
from retinue.interfaces.cli.terminal.output import print_error, print_json, print_text, width
from retinue.interfaces.cli.terminal.progress import JsonLines, Progress
from retinue.interfaces.cli.terminal.questions import Questions
from retinue.interfaces.cli.terminal.screen import Screen, can_draw, print_lines, print_markdown
from retinue.interfaces.plan_review import open_in_editor
from retinue.interfaces.view.formatting import clip, format_cost, format_duration, printable_lines
from retinue.interfaces.view.result_blocks import result_block
from retinue.interfaces.view.run_output import (
    RunOutput,
    output_of_plan,
    output_of_race,
    output_of_run,
    output_of_tasks,
    suspended_output,
)
from retinue.ports.person import Listeners, Person

MOST_FAILED = 5


class Console:
    """Prints a command's progress on standard error, its results on standard output, and asks."""

    def __init__(
        self,
        *,
        as_json: bool,
        quiet: bool,
        only_result: bool = False,
        settings: MergedSettings | None = None,
        log: Progress | None = None,
    ) -> None:
        """`as_json` prints events and then the result as JSON, `only_result` only the result.

        `log` is shown in place of the progress.
        """
        self._settings = settings or MergedSettings()
        self.as_json = as_json or only_result
        self.quiet = quiet
        self._started = time.monotonic()
        self._output: RunOutput | None = None
        self.keeps_states = self.as_json
        """Whether `states` gets the runs from now on."""
        self.states: dict[str, RunState] = {}
        self.progress = log or Progress()
        if log is None and (as_json or not (quiet or only_result)):
            self.progress = make_progress(sys.stderr, as_json=as_json, hint="Ctrl-C stops it")
        self._questions = Questions(self._asking)
        self.unfinished: dict[str, None] = {}
        """Runs that were started or resumed here and have no outcome yet."""

    def on_event(self, event: Event) -> None:
        if event.type in ("run.started", "run.resumed"):
            self.unfinished[event.run_id] = None
        elif event.type == "run.finished":
            self.unfinished.pop(event.run_id, None)
        self._fold(event)
        self.progress.on_event(event)

    def on_past_event(self, event: Event) -> None:
        """Take in an event from before a resume, without showing it."""
        self._fold(event)
        self.progress.on_past_event(event)

    def _fold(self, event: Event) -> None:
        if self.keeps_states:
            self.states.setdefault(event.run_id, RunState()).apply(event)

    @property
    def interactive(self) -> bool:
        """Whether a person at a terminal can be asked."""
        return sys.stdin.isatty() and sys.stderr.isatty() and not self.as_json

    @property
    def person(self) -> Person:
        """Answers approvals and questions at the terminal; without one, refuses."""
        if not self.interactive:
            return Person()
        questions = self._questions
        return Person(approve=questions.approve, ask=questions.answer)

    def on_terminal_closed(self, action: Callable[[], None]) -> None:
        """Set what happens if the terminal is closed while a question is open."""
        self._questions.on_closed = action

    @property
    def listeners(self) -> Listeners:
        """The callbacks by which a runtime shows its progress here."""
        return Listeners(
            on_event=self.on_event,
            on_text=partial(self.progress.on_text, ROOT_ID),
            on_child_text=lambda _, agent_id, text: self.progress.on_text(agent_id, text),
            on_progress=self.progress.on_progress,
            on_wait=self.progress.on_wait,
        )

    async def decide(self, shown: str | Sequence[str], choices: Sequence[str]) -> str:
        """Print a text, or lines that may be cut, and ask for one of `choices`, by one key.

        The answer is that key, the first letter of a choice. The last choice is the default, and
        its key is returned for Enter, too. For a yes and a no, y and n are always accepted.
        """
        *others, default = choices
        marked = [*(f"[{c[0]}]{c[1:]}" for c in others), f"[{default[0].upper()}]{default[1:]}"]
        if isinstance(shown, str):
            lines = printable_lines(f"\n{shown}\n\n")
        else:
            lines = [clip(line, width(sys.stderr)) for line in shown]
        keys = {choice[0] for choice in choices} | {"y", "n"}
        answer = await self._questions.decide(lines, f"{', '.join(marked)}? ", keys)
        return answer or default[0]

    def note(self, text: str) -> None:
        """Print a remark, unless --quiet or --json is given."""
        if text and not self.as_json and not self.quiet:
            with self.progress.paused():
                print_error(text)

    async def edit(self, text: str) -> str | None:
        """Open `text` in the person's editor; None if they do not save it."""
        with self.progress.paused():
            return await asyncio.to_thread(open_in_editor, text)

    async def confirm_forecast(self, forecast: Forecast, *, yes: bool) -> None:
        """Print what the work will likely use, and ask if that is above the thresholds.

        Raises ApprovalNeeded without a confirmation; `yes` confirms in advance.
        """
        tokens, usd = self._settings.ask_above_tokens, self._settings.ask_above_usd
        needs_yes = forecast.tokens > tokens or forecast.cost_usd > usd
        # The live tree on a terminal shows the use as it grows.
        printed = needs_yes or not sys.stderr.isatty()
        if printed and not self.quiet and not self.as_json:
            with self.progress.paused():
                click.echo(f"Forecast: {forecast}.", err=True)
        if yes or not needs_yes:
            return
        above = f"more than {tokens:,} tokens or {usd:g} USD"
        if not self.interactive:
            raise ApprovalNeeded(
                f"This will likely use {forecast}: {above}. Confirm with --yes, or ask for less."
            )
        answer = await self.decide([f"That is {above}. Start it?"], ("yes", "no"))
        if answer not in ("y", "yes"):
            raise ApprovalNeeded("Nothing was started.")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Pauses the progress while a question is open; the time to answer is not counted."""
        with self.progress.paused():
            self._notify("needs an answer")
            yield
            self._started = time.monotonic()

    def _notify(self, what: str) -> None:
        """Notify a person who may have left the terminal, if the work took long."""
        took_s = time.monotonic() - self._started
        if sys.stderr.isatty() and not self.quiet and 0 < self._settings.notify_after_s <= took_s:
            sys.stderr.write(notification(Environment.current(), f"retinue {what}"))
            sys.stderr.flush()

    def print_stopping(self) -> None:
        if not self.as_json and not self.quiet:
            with self.progress.paused():
                click.echo("Stopping: agents report what they have. Ctrl-C stops now.", err=True)

    def print_resume_hints(self, reason: str, run_ids: Sequence[str], directory: str) -> None:
        """Print how to resume these runs."""
        if self.as_json:
            return
        for run_id in run_ids:
            click.echo(resume_hint(reason, run_id, directory), err=True)

    def print_suspended(self, error: RunSuspended) -> None:
        """Print which model endpoint a run waits for, and how much of the work is done."""
        self._finish("waits for its model")
        done = len(error.results)
        if self.as_json:
            self._output = suspended_output(error, self.states.get(error.run_id))
            self.print_output()
        suffix = f" {plural(done, 'task')} {'is' if done == 1 else 'are'} done." if done else ""
        print_error(f"retinue: {error}{suffix}")

    def print_output(self) -> None:
        """Print the result as one JSON object, as the last line."""
        if self._output is not None:
            print_json(self._output)

    def print_result(self, result: Result) -> None:
        if self.as_json:
            self._output = output_of_run(result, self.states.get(result.run_id))
        if not self._finish(f"{'is done' if result.ok else 'failed'}: {title_of(result.task)}"):
            return
        if not self.quiet:
            self._print_block(result)
        if result.response:
            print_markdown(result.response)
        if not result.ok:
            print_error(f"retinue: {result.status}: {result.error}")

    def _finish(self, what: str) -> bool:
        """End the progress, and notify. Return whether the result is to be printed."""
        self.progress.finish()
        if not self.as_json:
            self._notify(what)
        return not self.as_json

    def _print_block(self, result: Result) -> None:
        """Print status and usage. The answer and the error are printed after it."""
        without_error = msgspec.structs.replace(result, error=None)
        print_lines(result_block(without_error, width=width(sys.stderr), max_lines=0), err=True)
        click.echo(f"  Run: {result.run_id}", err=True)
        if sys.stderr.isatty():
            click.echo(err=True)

    def print_report(self, result: PlanResult) -> None:
        """Print the report of a plan, which is Markdown."""
        self._output = output_of_plan(result) if self.as_json else None
        if not self._finish(
            f"{'is done' if result.ok else 'failed'}: {title_of(result.plan.goal)}"
        ):
            return
        print_markdown(result.report.rstrip())
        if not result.ok:
            print_error(f"retinue: {result.status}: {result.error}")

    def print_results(
        self, results: list[Result], forecast: Forecast | None = None, *, took_s: float = 0.0
    ) -> None:
        done = sum(result.ok for result in results)
        self._output = output_of_tasks(results) if self.as_json else None
        if not self._finish(f"is done: {done} of {plural(len(results), 'task')}"):
            return
        for result in results:
            mark = "ok" if result.ok else result.status
            print_text(f"## {result.agent_id or '-'} {result.role} [{mark}] {result.task}\n")
            if result.response:
                print_markdown(f"{result.response.rstrip()}\n")
            if not result.ok:
                print_text(f"[{result.status}] {result.error}\n")
            if result.unverified:
                print_text(f"[unverified] {result.unverified}\n")
        self._print_totals(results, forecast, took_s, "done")

    def print_race(
        self,
        race: RaceResult,
        models: Mapping[str, str],
        forecast: Forecast | None = None,
        *,
        took_s: float = 0.0,
    ) -> None:
        """Print the answer of the winner, and how the candidates compare.

        `models` has those of the candidates, if they differ.
        """
        results = list(race.results)
        self._output = output_of_race(race) if self.as_json else None
        if not self._finish("has a winner" if race.ok else "has no winner"):
            return
        if race.winner is not None and race.winner.response:
            print_markdown(f"{race.winner.response.rstrip()}\n")
        for standing, result in zip(race.standings, results, strict=True):
            model = models.get(standing.agent_id, "")
            print_text(f"{_standing(standing, result, race, model)}\n")
        if race.winner is None:
            print_error(f"retinue: {race.error}")
        elif not self.quiet and any(result.kept for result in results):
            print_error(
                f"To choose another: retinue undo {race.run_id} {race.winner.agent_id}, then"
                f" retinue redo {race.run_id} AGENT."
            )
        self._print_totals(results, forecast, took_s, "passed")

    def _print_totals(
        self, results: Sequence[Result], forecast: Forecast | None, took_s: float, word: str
    ) -> None:
        done = sum(result.ok for result in results)
        if not self.quiet and results:
            tokens = sum(result.usage.tokens for result in results)
            cost = format_cost(sum(result.usage.cost_usd for result in results))
            failed = [result.agent_id or result.task for result in results if not result.ok]
            # The answers above may have scrolled away.
            names = f" (failed: {listed(failed, MOST_FAILED)})" if failed and word == "done" else ""
            print_error(
                f"{done} of {len(results)} {word}{names},"
                f" {tokens:,} tokens{f', {cost}' if cost else ''};"
                f" `retinue show {results[0].run_id}` has the details."
            )
            if forecast is not None:
                spent = total_spent([result.usage for result in results], took_s)
                print_error(f"Against the {forecast.against(spent)}.")


def _standing(standing: Standing, result: Result, race: RaceResult, model: str) -> str:
    """A line about a candidate of a race."""
    if race.winner is not None and race.winner.agent_id == standing.agent_id:
        how = "won"
    else:
        how = "passed, kept" if result.ok else f"{result.status}: {one_line(result.error or '')}"
    cost, lines = format_cost(standing.cost_usd), plural(standing.changed_lines, "changed line")
    return (
        f"{standing.agent_id} {result.role}{f' with {model}' if model else ''}: {how}; {lines},"
        f" {standing.tokens:,} tokens{f', {cost}' if cost else ''},"
        f" {format_duration(standing.duration_s)}"
    )


def make_progress(
    stream: TextIO, *, as_json: bool, hint: str, keep_final_tree: bool = False
) -> Progress:
    """Progress for standard output or standard error: a live tree if it is a terminal."""
    if as_json:
        return JsonLines()
    if can_draw(stream):
        return LiveTree(Screen(stream), hint=hint, keep_final_tree=keep_final_tree)
    return Lines(err=stream is sys.stderr)


def resume_hint(reason: str, run_id: str, directory: str) -> str:
    """Why a run has ended early, and the command that resumes it."""
    elsewhere = "" if directory == "." else f" -C {shlex.quote(directory)}"
    return f"retinue: {reason}; resume with: retinue resume {run_id}{elsewhere}"
