"""What the person in front of the demo sees."""

from __future__ import annotations

import textwrap

import click
import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.events import (
    AgentClosed,
    AgentCreated,
    Event,
    FilesChanged,
    LimitReached,
    ModelFailed,
    ModelReplied,
    RunResumed,
    RunStarted,
    ToolDenied,
    ToolFinished,
    ToolStarted,
    UnmergedWorkKept,
    WorktreeCreated,
    WorktreeMerged,
)
from retinue.domain.result import Result
from retinue.domain.run_state import RunState

WIDEST = 100  # for text that is read, not scanned


class Stage:
    """What a person sees: nothing is wider than the terminal, and long text is wrapped."""

    def __init__(self, columns: int) -> None:
        self._columns = max(40, columns)
        self._view = RunState()

    def heading(self, text: str) -> None:
        click.secho(text, bold=True)

    def text(self, text: str) -> None:
        """A paragraph, filled to the width."""
        click.echo(textwrap.fill(" ".join(text.split()), min(self._columns, WIDEST)))

    def say(self, line: str, color: str | None = None) -> None:
        click.secho(self._clipped(line), fg=color)

    def lines(self, text: str) -> None:
        for line in text.splitlines():
            click.echo(self._clipped(f"  {line}"))

    def watch(self, event: Event) -> None:
        """Say what a child did, what a root said, and that a run goes on."""
        if isinstance(event.fact, RunStarted):
            self._view = RunState()
        self._view.apply(event)
        if isinstance(event.fact, RunResumed):
            self.say("        the process was killed here; `retinue resume` goes on", "magenta")
        agent = self._view.agents.get(event.agent_id)
        if agent is None or (agent.parent_id is None and not isinstance(event.fact, ModelReplied)):
            return
        told = _told(event, agent)
        if told is not None:
            text, color = told
            since_s = event.time - self._view.started_at
            line = self._clipped(f"{since_s:5.1f}s  {agent.id}  {text}")
            click.secho(line, fg=color, dim=color is None)

    def results(self, results: list[Result], *, max_tokens: int, counted: bool) -> None:
        """What each of them answered, and what all of it took."""
        click.echo()
        self.heading("What they reported, in the order of the tasks")
        for result in results:
            click.secho(self._clipped(f"\n{result.agent_id}  {result.task}"), bold=True)
            click.echo(self._indented(result.response))
            if not result.ok:
                ended = f"{result.status}: {result.error} This is what it had."
                click.secho(self._indented(ended), fg="yellow")
        click.echo()
        usage = [result.usage for result in results]
        click.echo(
            f"{sum(r.ok for r in results)} of {len(results)} completed"
            f" · {sum(u.turns for u in usage)} turns"
            f" · {sum(u.tool_calls for u in usage)} tool calls\n"
            f"{sum(u.tokens for u in usage):,} of {max_tokens:,} tokens used"
            f"{', as estimated: no server counted them' if not counted else ''}"
        )

    def _indented(self, text: str) -> str:
        return textwrap.fill(
            text,
            min(self._columns, WIDEST),
            initial_indent="    ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )

    def _clipped(self, line: str) -> str:
        return line if len(line) <= self._columns else line[: self._columns - 1] + "…"


def _told(event: Event, agent: AgentState) -> tuple[str, str | None] | None:
    """An event in a few words, with a colour if it should be noticed."""
    fact = event.fact
    match fact:
        case AgentCreated():
            return f"{fact.role}: {fact.title}", "cyan"
        case ModelReplied() if agent.parent_id is None and fact.calls:
            return fact.content, "cyan"
        case ToolStarted():
            return f"→ {fact.tool} {_plain(fact.arguments)}", None
        case ToolFinished() if not fact.receipt.ok:
            return f"✗ {fact.content.removeprefix('[ERROR] ')}", "yellow"
        case ToolDenied():
            return f"✗ {fact.tool} denied: {fact.content.removeprefix('[DENIED] ')}", "yellow"
        case ModelFailed() | LimitReached():
            return f"✗ {fact.summary}", "yellow"
        case WorktreeCreated() | WorktreeMerged() | FilesChanged() | UnmergedWorkKept():
            return fact.summary, "cyan"
        case AgentClosed():
            status = agent.status or fact.final_status
            color = "green" if fact.final_status == "completed" else "yellow"
            return f"{status} after {agent.turn} turns, {agent.usage.tokens:,} tokens", color
        case _:
            return None


def _plain(arguments: str) -> str:
    """The values of a call's arguments, without their names."""
    values = msgspec.json.decode(arguments)
    return " ".join(" ".join(str(value).split()) for value in values.values())
