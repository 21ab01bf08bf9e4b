"""Folds the events of a run into changes of the page.

The rules of the fold exist once, in `domain`. `RunFold` applies each event to a `RunState` and
compares what the page shows before and after. The page adds up these differences, so it has the
state as of any event without a second implementation of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from retinue.domain import events as ev
from retinue.domain.agent_state import AgentState
from retinue.domain.lifecycle import State
from retinue.domain.messages import Timing
from retinue.domain.run_state import RunState
from retinue.errors import IllegalTransition, StoreError
from retinue.interfaces.view.agent_tree import (
    WAITING_TOOLS,
    DisplayState,
    current_activity,
    display_state,
)

ASK_TOOL = "ask_user"
MAX_TEXT = 2_000
"""Characters of one text in a change; the events of the agent have the whole text."""
# Events that change every agent of the run.
RUN_WIDE = ("run.suspended", "run.resumed", "run.lapsed", "run.pruned")
# Beginnings of the types of events that change the run.
ABOUT_RUN = ("run.", "model.")
# Events that change the parent of their agent too.
ABOUT_PARENT = ("agent.subagent_created", "agent.subagent_closed")
# Events whose payload the page shows beside the tree.
WITH_PAYLOAD = ("approval.requested", "plan.adopted", "plan.step_started", "plan.step_finished")


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event, and the fields of the run and of its agents that it has changed."""

    seq: int
    time: float
    agent: str
    type: str
    summary: str
    run: dict[str, Any] = {}
    agents: dict[str, dict[str, Any]] = {}
    spans: tuple[tuple[str, float], ...] = ()
    """Phases of the agent's work that end with this event, and their seconds, in order."""
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def phase(agent: AgentState) -> str:
    """The phase that the agent is in; "" once it is closed."""
    if agent.closed_at is not None:
        return ""
    if agent.paused_at is not None:
        return "paused"
    if agent.requests:
        return "person"
    if agent.state is State.CREATED:
        return "queued"
    if agent.state is not State.RUNNING:
        return "merge"
    tools = {call.tool for call in agent.pending_calls.values()}
    if ASK_TOOL in tools:
        return "person"
    if tools:
        return "children" if tools.issubset(WAITING_TOOLS) else "tools"
    if agent.turn:
        return "model"
    # The root of a program or a plan has no model, and makes no attempt.
    return "slot" if agent.attempt else "children"


def _same(*names: str) -> dict[str, Callable[[Any], Any]]:
    return {name: attrgetter(name) for name in names}


_USAGE = {name: attrgetter(f"usage.{name}") for name in ("tokens", "billed_tokens", "cost_usd")}

AGENT_FIELDS: Mapping[str, Callable[[AgentState], Any]] = {
    **_same("id", "path", "role", "depth", "status", "attempt", "turn", "turns", "max_turns"),
    **_same("created_at", "started_at", "closed_at", "paused_at", "context_tokens", "host"),
    **_same("cached", "tainted", "tested", "replaces"),
    **_USAGE,
    "title": lambda agent: _clipped(agent.title),
    "parent": lambda agent: agent.parent_id,
    "step": lambda agent: agent.step_idx,
    "state": lambda agent: display_state(agent).value,
    "phase": phase,
    "activity": lambda agent: _clipped(_activity(agent)),
    "error": lambda agent: _clipped(agent.error),
    "tool_calls": lambda agent: agent.tool_calls + agent.child_calls,
    "checks": lambda agent: len(agent.checks),
    "files": lambda agent: len(agent.files_modified),
    "conflicts": lambda agent: len(agent.conflicts),
    "kept": lambda agent: bool(agent.unmerged_files),
    "requests": lambda agent: list(agent.requests),
    "question": lambda agent: _clipped(_question(agent)),
    "changes": lambda agent: len(agent.change_numbers),
}
"""The fields of an agent on the page, and where they come from."""

RUN_FIELDS: Mapping[str, Callable[[RunState], Any]] = {
    **_same("id", "kind", "task", "model", "mode", "sandbox", "started_at", "finished_at"),
    **_same("idle_s", "status", "reason", "suspend_reason", "pruned"),
    **_USAGE,
    "earlier": lambda run: run.earlier_runs,
    "fork_of": lambda run: _fork_of(run),
    "undo_history": lambda run: list(run.undo_history),
}


def _fork_of(run: RunState) -> dict[str, Any] | None:
    """For a fork, the moment that it starts from."""
    origin = None if run.started is None else run.started.origin
    if origin is None:
        return None
    return {"run": origin.run_id, "agent": origin.agent_id, "at": origin.seq}


def _question(agent: AgentState) -> str:
    """The agent's question to the user; "" without one."""
    asks = [call.arguments for call in agent.pending_calls.values() if call.tool == ASK_TOOL]
    try:
        return str(msgspec.json.decode(asks[0]).get("question", "")) if asks else ""
    except (msgspec.DecodeError, AttributeError):
        return ""


def _activity(agent: AgentState) -> str:
    state = display_state(agent)
    return "" if state is DisplayState.FAILED else current_activity(agent, state)


def agent_view(agent: AgentState) -> dict[str, Any]:
    return {name: read(agent) for name, read in AGENT_FIELDS.items()}


def run_view(run: RunState) -> dict[str, Any]:
    return {name: read(run) for name, read in RUN_FIELDS.items()}


class RunFold:
    """Folds the events of one run, in order."""

    def __init__(self) -> None:
        self.state = RunState()
        self._run: dict[str, Any] = dict.fromkeys(RUN_FIELDS)
        self._agents: dict[str, dict[str, Any]] = {}

    def apply(self, event: ev.Event) -> Change:
        """Apply the next event, and return what it changes. Raises StoreError."""
        state = self.state
        try:
            state.apply(event)
            spans = _spans(event)
        except (KeyError, msgspec.DecodeError, IllegalTransition) as error:
            raise StoreError(
                f"Event {event.seq} of run {event.run_id} cannot be read: it is damaged, or a newer"
                f" version of retinue wrote it. `retinue audit {event.run_id}` says more."
            ) from error
        touched = [event.agent_id]
        if event.type in RUN_WIDE:
            touched = list(state.agents)
        elif event.type in ABOUT_PARENT and event.parent_agent_id is not None:
            touched.append(event.parent_agent_id)
        agents = {}
        for id in touched:
            if (agent := state.agents.get(id)) is not None and (changed := self._agent(agent)):
                agents[id] = changed
        return Change(
            seq=event.seq,
            time=event.time,
            agent=event.agent_id,
            type=event.type,
            summary=event.summary,
            run=self._run_changes() if event.type.startswith(ABOUT_RUN) else {},
            agents=agents,
            spans=spans,
            payload=event.payload if event.type in WITH_PAYLOAD else msgspec.UNSET,
        )

    def _run_changes(self) -> dict[str, Any]:
        now, before = run_view(self.state), self._run
        self._run = now
        return {name: value for name, value in now.items() if before[name] != value}

    def _agent(self, agent: AgentState) -> dict[str, Any]:
        now = agent_view(agent)
        before = self._agents.get(agent.id)
        self._agents[agent.id] = now
        if before is None:
            return now
        return {name: value for name, value in now.items() if before[name] != value}


def _spans(event: ev.Event) -> tuple[tuple[str, float], ...]:
    match event.type:
        case "model.replied":
            timing = msgspec.json.decode(event.payload, type=_Timed).timing
            return (
                ("slot", timing.queued_s),
                ("prompt", timing.first_token_s),
                ("thinking", timing.generating_s),
            )
        case "agent.check_finished":
            check = msgspec.json.decode(event.payload, type=ev.CheckFinished).check
            return (("checks", check.duration_s),)
    return ()


class _Timed(msgspec.Struct):
    """The part of `ModelReplied` that a timeline needs."""

    timing: Timing = Timing()
