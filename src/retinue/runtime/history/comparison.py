"""Compares two runs: where they diverge, what they used, and how their changed files differ."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from retinue.domain.events import (
    AgentCreated,
    AttemptStarted,
    ContextCompacted,
    Event,
    ForkOrigin,
    MessageReceived,
    ModelReplied,
    RunStarted,
    ToolDenied,
    ToolFinished,
)
from retinue.domain.result import Status
from retinue.domain.run_state import RunState
from retinue.runtime.history.undo import ChangePatch

_BLOB = re.compile(r"^index [0-9a-f]+\.\.([0-9a-f]+)", re.M)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an agent: a reply, an answer to a call, or a message."""

    seq: int
    """Number of its event."""
    turn: int
    text: str


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first step that two runs do not share; None for a run that has no further step."""

    agent: str
    """Path of the agent."""
    first: Moment | None
    second: Moment | None


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and what all its agents together used."""

    run_id: str
    model: str
    status: Status | None
    agents: int
    turns: int
    tool_calls: int
    tokens: int
    billed_tokens: int
    cost_usd: float
    duration_s: float | None
    """None before the end of the run."""
    checks: int
    checks_passed: int


class FileDifferences(msgspec.Struct, frozen=True, kw_only=True):
    """Paths that the runs have changed, undone and unmerged changes included."""

    same: tuple[str, ...] = ()
    """Changed by both, with the same content in the end."""
    different: tuple[str, ...] = ()
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()


def figures(state: RunState) -> RunFigures:
    """The figures of a run, also of one that was cleaned away."""
    agents = state.agents.values()
    checks = [check for agent in agents for check in agent.checks]
    return RunFigures(
        run_id=state.id,
        model=state.model,
        status=state.status,
        agents=len(agents),
        turns=sum(agent.turns for agent in agents),
        tool_calls=sum(agent.tool_calls for agent in agents),
        tokens=state.usage.tokens,
        billed_tokens=state.usage.billed_tokens,
        cost_usd=state.usage.cost_microusd / 1_000_000,
        duration_s=state.duration_s,
        checks=len(checks),
        checks_passed=sum(check.ok for check in checks),
    )


def diverge(first: Sequence[Event], second: Sequence[Event]) -> Divergence | None:
    """Where the agents of two runs first differ; None if they did and said the same.

    Agents are matched by their paths. Limits, times and ids do not count. What a run did before
    the other was forked from it does not count either: both have it.
    """
    ours = _steps(first, after=_forked_at(first, second))
    theirs = _steps(second, after=_forked_at(second, first))
    found = [
        different
        for path in ours | theirs
        if (different := _first_difference(path, ours.get(path, []), theirs.get(path, [])))
    ]
    # A parent differs because its child did: the earliest difference is the cause.
    return min(found, key=_time, default=None)


def _forked_at(events: Sequence[Event], others: Sequence[Event]) -> int:
    """The event of a run that another run was forked at; 0 if it is no fork of it."""
    match others[0].fact:
        case RunStarted(origin=ForkOrigin(run_id=run_id, seq=seq)) if run_id == events[0].run_id:
            return seq
    return 0


def _time(found: Divergence) -> tuple[bool, int]:
    moment = found.first or found.second
    assert moment is not None, "one of them goes on"
    return found.first is None, moment.seq


def _first_difference(
    path: str, ours: Sequence[Moment], theirs: Sequence[Moment]
) -> Divergence | None:
    for index in range(max(len(ours), len(theirs))):
        one = ours[index] if index < len(ours) else None
        other = theirs[index] if index < len(theirs) else None
        if one is None or other is None or one.text != other.text:
            return Divergence(agent=path, first=one, second=other)
    return None


def _steps(events: Sequence[Event], *, after: int) -> dict[str, list[Moment]]:
    """The steps of each agent after an event, by its path."""
    paths: dict[str, str] = {}
    turns: dict[str, int] = {}
    found: dict[str, list[Moment]] = {}
    for event in events:
        fact, agent = event.fact, event.agent_id
        if isinstance(fact, AgentCreated):
            paths[agent] = fact.path
        elif isinstance(fact, ModelReplied):
            turns[agent] = turns.get(agent, 0) + 1
        text = _text(event)
        if text is not None and event.seq > after:
            moment = Moment(seq=event.seq, turn=turns.get(agent, 0), text=text)
            found.setdefault(paths[agent], []).append(moment)
    return found


def _text(event: Event) -> str | None:
    """The words of a step; None for an event that is no part of a conversation."""
    match event.fact:
        case AgentCreated(title=title):
            return f"task: {title}"
        case AttemptStarted(number=number, because=because) if number > 1:
            return f"attempt {number} after {because}"
        case ModelReplied(content=content, calls=calls):
            asked = [f"{call.name} {call.arguments}" for call in calls]
            return "\n".join([content, *asked]).strip()
        case ToolFinished() | ToolDenied() as fact:
            return f"{fact.tool}: {fact.content}"
        case MessageReceived(content=content):
            return f"message: {content}"
        case ContextCompacted():
            return event.summary
        case _:
            return None


def compare_files(first: Sequence[ChangePatch], second: Sequence[ChangePatch]) -> FileDifferences:
    """Compare the files that two runs have changed, by their content after the last change."""
    ours, theirs = _last_content(first), _last_content(second)
    both = [path for path in ours if path in theirs]
    return FileDifferences(
        same=tuple(sorted(path for path in both if ours[path] == theirs[path])),
        different=tuple(sorted(path for path in both if ours[path] != theirs[path])),
        only_first=tuple(sorted(ours.keys() - theirs.keys())),
        only_second=tuple(sorted(theirs.keys() - ours.keys())),
    )


def _last_content(changes: Sequence[ChangePatch]) -> dict[str, str]:
    """The id of the content of each changed file, as git's patches name it."""
    found: dict[str, str] = {}
    for change in changes:
        for part in re.split(r"^(?=diff --git )", change.patch, flags=re.M):
            head = part.partition("\n")[0]
            if head.startswith("diff --git "):
                blob = _BLOB.search(part)
                # A patch that only renames a file, or sets its mode, names no content.
                found[head.rpartition(" b/")[2]] = part if blob is None else blob[1]
    return found
