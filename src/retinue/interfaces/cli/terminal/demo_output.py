"""Prints the demo: headings, paragraphs, events and results."""

from __future__ import annotations

import textwrap
from typing import Any

import click
import msgspec

from retinue.domain import events
from retinue.domain.agent_state import AgentState
from retinue.domain.result import Result
from retinue.domain.run_state import RunState
from retinue.interfaces.view.formatting import clip

MAX_TEXT_WIDTH = 100


class DemoOutput:
    """Prints the demo, wrapped or cut to the width of the terminal."""

    def __init__(self, columns: int, *, silent: bool) -> None:
        self.silent = silent
        self._columns = max(40, columns)
        self._view = RunState()

    def echo(self, text: str = "", **style: Any) -> None:
        if not self.silent:
            click.secho(text, **style)

    def heading(self, text: str) -> None:
        self.echo(text, bold=True)

    def command(self, text: str) -> None:
        """Print what one would type."""
        wide = min(self._columns, MAX_TEXT_WIDTH)
        self.heading(textwrap.fill(f"$ {text}", wide, subsequent_indent="  "))

    def section(self, heading: str, text: str) -> None:
        self.echo()
        self.heading(heading)
        self.paragraph(text)
        self.echo()

    def paragraph(self, text: str) -> None:
        self.echo(textwrap.fill(" ".join(text.split()), min(self._columns, MAX_TEXT_WIDTH)))

    def answer(self, text: str) -> None:
        """Print an answer with its own lines, wrapped and indented."""
        self.echo()
        for line in text.strip().splitlines():
            self.echo(self._indented(line))
        self.echo()

    def lines(self, text: str) -> None:
        for line in text.splitlines():
            self.echo(clip(f"  {line}", self._columns))

    def on_past_event(self, event: events.Event) -> None:
        """Take in an event without printing it."""
        if isinstance(event.fact, events.RunStarted):
            self._view = RunState()
        self._view.apply(event)

    def on_event(self, event: events.Event) -> None:
        """Print what agents do, what the root says to its children, and when a run is resumed."""
        self.on_past_event(event)
        fact = event.fact
        if isinstance(fact, events.RunResumed):
            resumed = "        the process was killed here; `retinue resume` continues the run"
            self.echo(clip(resumed, self._columns), fg="magenta")
        agent = self._view.agents.get(event.agent_id)
        if agent is None or (agent.parent_id is None and not _is_of_root(fact)):
            return
        described = _description(event, agent)
        if described is not None:
            text, color = described
            since_s = event.time - self._view.started_at
            line = clip(f"{since_s:5.1f}s  {agent.id}  {text}", self._columns)
            self.echo(line, fg=color, dim=color is None)

    def results(self, results: list[Result], *, max_tokens: int, counted: bool) -> None:
        """Print each child's answer, and the total usage."""
        self.echo()
        self.heading("Their answers, in the order of the tasks")
        for result in results:
            self.echo(clip(f"\n{result.agent_id}  {result.task}", self._columns), bold=True)
            self.echo(self._indented(result.response))
            if not result.ok:
                ended = f"{result.status}: {result.error} This is its partial result."
                self.echo(self._indented(ended), fg="yellow")
        self.echo()
        usage = [result.usage for result in results]
        self.echo(
            f"{sum(r.ok for r in results)} of {len(results)} completed"
            f" · {sum(u.turns for u in usage)} turns"
            f" · {sum(u.tool_calls for u in usage)} tool calls\n"
            f"{sum(u.tokens for u in usage):,} of {max_tokens:,} tokens used"
            f"{' (estimated: no server counted them)' if not counted else ''}"
        )

    def _indented(self, text: str) -> str:
        return textwrap.fill(
            text,
            min(self._columns, MAX_TEXT_WIDTH),
            initial_indent="    ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _is_of_root(fact: events.Fact) -> bool:
    """Whether to print that of a root. What it delegates is printed as the beginning of a child."""
    if isinstance(fact, events.ToolStarted):
        return not fact.tool.startswith("spawn_")
    return isinstance(fact, events.ModelReplied | events.ToolFinished)


def _description(event: events.Event, agent: AgentState) -> tuple[str, str | None] | None:
    """An event in a few words, with a colour for important ones."""
    fact = event.fact
    match fact:
        case events.AgentCreated():
            return f"{fact.role}: {fact.title}", "cyan"
        case events.ModelReplied() if agent.parent_id is None and fact.calls and fact.content:
            return fact.content, "cyan"
        case events.ToolStarted():
            return f"→ {fact.tool} {_values(fact.arguments)}", None
        case events.ToolFinished() if not fact.receipt.ok:
            return f"✗ {fact.content.removeprefix('[ERROR] ')}", "yellow"
        case events.ToolDenied():
            return f"✗ {fact.tool} denied: {fact.content.removeprefix('[DENIED] ')}", "yellow"
        case events.ModelFailed() | events.LimitReached():
            return f"✗ {fact}", "yellow"
        case (
            events.WorktreeCreated()
            | events.WorktreeMerged()
            | events.CheckFinished()
            | events.FilesChanged()
            | events.UnmergedWorkKept()
        ):
            return str(fact), "cyan"
        case events.AgentClosed():
            status = agent.status or fact.final_status
            color = "green" if fact.final_status == "completed" else "yellow"
            return f"{status} after {agent.turn} turns, {agent.usage.tokens:,} tokens", color
        case _:
            return None


def _values(arguments: str) -> str:
    """The values of a call's arguments, without their names."""
    values = msgspec.json.decode(arguments)
    return " ".join(" ".join(str(value).split()) for value in values.values())
