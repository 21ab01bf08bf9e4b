"""`canonical_journal`: what a run did, without times, ids and the order of concurrent work.

Two runs of one plan with one scripted model do the same, and still their journals differ: events of
concurrent work are recorded as they come. `canonical_journal` puts a journal into the one order
that follows from cause and effect, with paths in place of ids, so that two journals can be
compared:

    assert canonical_journal(first) == canonical_journal(second)

Causes and effects are these. An agent does one thing after the other, except for calls that it
makes at the same time. A child is created after the call or the step that asked for it, and that
call or step ends after the child is closed. A step starts after the steps that it needs, and a plan
is adopted after everything before it.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from retinue.domain.events import (
    AgentClosed,
    AgentCreated,
    AgentPlaced,
    ApprovalDecided,
    ClockGapDetected,
    Event,
    Fact,
    MessageReceived,
    PlanAdopted,
    PlanStepFinished,
    PlanStepStarted,
    RunFinished,
    RunStarted,
    ToolDenied,
    ToolFinished,
    ToolStarted,
    WorktreeCreated,
)
from retinue.domain.plan.plan import REVIEW

# Times, and fields that depend on times or ids, such as hashes.
_VOLATILE = frozenset([
    "timing", "duration_s", "retry_in_s", "quiet_s", "seal", "contract_sha256", "output_sha256",
    "commit", "base",
])  # fmt: skip


class CanonicalFact(msgspec.Struct, frozen=True):
    """One fact of a journal, with the path of its agent."""

    path: str
    fact: dict[str, Any]


def canonical_journal(events: Sequence[Event]) -> list[CanonicalFact]:
    """The facts of a whole journal, in an order that does not depend on time."""
    kept = [
        (event, fact)
        for event in events
        if not isinstance(fact := event.fact, ClockGapDetected | AgentPlaced)
    ]
    names = _Names(kept)
    causes = list(_causes(kept))
    keys = [(names.path(event), _thread(fact), at) for at, (event, fact) in enumerate(kept)]
    effects = defaultdict(list)
    for at, of in enumerate(causes):
        for cause in of:
            effects[cause].append(at)
    open_causes = [len(of) for of in causes]
    ready = [keys[at] for at, count in enumerate(open_causes) if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        path, _, at = heapq.heappop(ready)
        found.append(CanonicalFact(path, names.replaced(kept[at][0])))
        for effect in effects[at]:
            open_causes[effect] -= 1
            if not open_causes[effect]:
                heapq.heappush(ready, keys[effect])
    return found


# Cause and effect


def _thread(fact: Fact) -> str:
    """Which of the concurrent calls or steps of an agent a fact belongs to; "" for none."""
    match fact:
        case PlanStepStarted(step=step) | PlanStepFinished(step=step):
            return _step(step)
        case (
            ToolStarted(call_id=call)
            | ToolFinished(call_id=call)
            | ToolDenied(call_id=call)
            | ApprovalDecided(call_id=call)
        ):
            return call
        case _:
            return ""


def _step(name: str) -> str:
    return f"step {name}"


def _creating_thread(origin_key: str) -> str:
    """The thread of the parent that created a child."""
    if origin_key == REVIEW:
        return _step(REVIEW)
    if origin_key.startswith("step "):
        return origin_key.rpartition(" ")[0]
    return origin_key.partition("/")[0]


def _causes(kept: Sequence[tuple[Event, Fact]]) -> Iterator[set[int]]:
    """For each event, the positions of the events that caused it."""
    last: dict[str, int] = {}  # by agent: its last event outside of any thread
    since: dict[str, list[int]] = defaultdict(list)  # by agent: all events after that one
    latest: dict[tuple[str, str], int] = {}  # by agent and thread: its last event
    closed: dict[str, int] = {}
    created_by: dict[tuple[str, str], list[str]] = defaultdict(list)
    needs: dict[str, tuple[str, ...]] = {}
    for at, (event, fact) in enumerate(kept):
        agent, parent, thread = event.agent_id, event.parent_agent_id, _thread(fact)
        of = {last[agent]} if agent in last else set()
        if thread:
            of |= {latest[key] for key in [(agent, thread)] if key in latest}
        else:
            of |= set(since.pop(agent, ()))
        match fact:
            case PlanAdopted(plan=plan):
                needs |= plan.needs
            case AgentCreated(origin_key=origin_key, background=background) if parent is not None:
                creator = (parent, _creating_thread(origin_key))
                of |= {latest.get(creator, last.get(parent, 0))}
                if not background:
                    created_by[creator].append(agent)
            case PlanStepStarted(step=step):
                over = [(agent, _step(name)) for name in needs.get(step, ())]
                of |= {latest[key] for key in over if key in latest}
            case PlanStepFinished() | ToolFinished():
                children = created_by.pop((agent, thread), [])
                about = fact.about if isinstance(fact, ToolFinished) else ()
                of |= {closed[child] for child in (*children, *about) if child in closed}
            case MessageReceived(about=about):
                of |= {closed[child] for child in about if child in closed}
            case AgentClosed():
                closed[agent] = at
            case RunFinished():
                of |= set(closed.values())
            case _:
                pass
        if thread:
            latest[agent, thread] = at
            since[agent].append(at)
        else:
            last[agent] = at
        yield of - {at}


# Names


class _Names:
    """The names that replace the ids and folders of a run."""

    def __init__(self, kept: Sequence[tuple[Event, Fact]]) -> None:
        self._paths = {
            fact.sub_agent_id: fact.path for _, fact in kept if isinstance(fact, AgentCreated)
        }
        folders: dict[str, str] = {}
        for event, fact in kept:
            if isinstance(fact, RunStarted):
                folders |= {fact.directory: "<project>", event.run_id: "<run>"}
            elif isinstance(fact, WorktreeCreated):
                folders[fact.directory] = f"<copy of {self.path(event)}>"
        # The longest first: a copy may be inside the project.
        literal = "|".join(re.escape(text) for text in sorted(folders, key=len, reverse=True))
        self._replaced = re.compile(rf"{literal}|\ba\d+\b")
        self._name_of = folders | self._paths

    def path(self, event: Event) -> str:
        return self._paths.get(event.agent_id, event.agent_id)

    def replaced(self, event: Event) -> dict[str, Any]:
        """The fact of an event, without what belongs to this run only."""
        fact: dict[str, Any] = self._without_ids(msgspec.json.decode(event.payload))
        if event.type == "agent.files_changed":
            del fact["step"]
        if fact.get("usage", {}).get("estimated"):
            del fact["usage"]
        return fact

    def _without_ids(self, value: Any) -> Any:
        match value:
            case str():
                return self._replaced.sub(lambda m: self._name_of.get(m[0], m[0]), value)
            case list():
                return [self._without_ids(item) for item in value]
            case dict():
                return {k: self._without_ids(v) for k, v in value.items() if k not in _VOLATILE}
            case _:
                return value
