"""What a run was doing when its process ended, read from its journal.

A journal is the beginning of what was recorded, cut off anywhere. So everything in it happened, in
this order, and whatever followed from it may or may not have happened outside.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from retinue.domain.budget import Amounts
from retinue.domain.chain import verify
from retinue.domain.contract import Contract, decode_contract
from retinue.domain.events import (
    AgentAttempted,
    AgentClosed,
    AgentCreated,
    AgentStarted,
    AgentTold,
    AgentWaiting,
    CheckFinished,
    Event,
    Fact,
    FilesChanged,
    PlanAdopted,
    RunLapsed,
    RunStarted,
    StepFinished,
    StepStarted,
    TasksGiven,
    ToolFinished,
    ToolStarted,
    WorktreeCreated,
)
from retinue.domain.evidence import still_tested, unverified
from retinue.domain.lifecycle import State
from retinue.domain.result import Result, Spent, Status, cap
from retinue.domain.run_state import AgentState, RunState
from retinue.errors import ChainBroken, RunError
from retinue.ports.store import AgentRow, RunRow, Store
from retinue.runtime.agent.agent import ROOT, plain_id
from retinue.runtime.agent.lifecycle import TAINTED, AttemptOutcome
from retinue.runtime.agent.loop import LOOSE_ENDS
from retinue.runtime.agent.output_schema import OutputSchema
from retinue.runtime.core.journal import JournalHead
from retinue.runtime.history.audit import read_all
from retinue.runtime.integration.file_changes import Authors

MESSAGE = "agent_message"
BEGUN = 2  # The run, and its root.


class Stretch:
    """How long something has taken, in the processes that worked on it."""

    def __init__(self) -> None:
        self._earlier_s = 0.0
        self._epoch = 0
        self._from = self._to = 0.0

    def at(self, event: Event) -> None:
        if event.epoch != self._epoch:
            self._earlier_s = self.seconds
            self._epoch, self._from = event.epoch, event.time
        self._to = event.time

    def lost(self, seconds: float) -> None:
        """So much of it was no time that anything took."""
        self._from += seconds

    @property
    def seconds(self) -> float:
        # A clock that was set back has measured nothing.
        return self._earlier_s + max(0.0, self._to - self._from)


@dataclass(slots=True)
class RecoveredAgent:
    """An agent, as far as the journal has come."""

    created: AgentCreated
    contract: Contract
    view: AgentState
    attempted: AgentAttempted | None = None
    facts: list[Fact] = field(default_factory=list)
    """What happened in the attempt under way."""
    children: list[str] = field(default_factory=list)
    """Those it has employed in this attempt."""
    delivered: set[str] = field(default_factory=set)
    """Those of them whose end it was told of."""
    messages: list[str] = field(default_factory=list)
    """What its parent has said to it, and it has not heard."""
    worktree: WorktreeCreated | None = None
    waiting: AgentWaiting | None = None
    tainted: bool = False
    heard_untrusted: bool = False
    tested: bool = False
    more_calls: int = 0
    """Tool calls that it has paid for its children, beside those that it made."""
    life: Stretch = field(default_factory=Stretch)
    attempt: Stretch = field(default_factory=Stretch)

    @property
    def state(self) -> State:
        return self.view.state

    @property
    def has_ended(self) -> bool:
        """Whether its end has begun to be written: nothing is left to do but the rest of that."""
        return self.state not in (State.CREATED, State.RUNNING)

    @property
    def spent(self) -> Amounts:
        view = self.view
        return Amounts(
            tool_calls=view.tool_calls + self.more_calls,
            turns=view.turns,
            tokens=view.usage.tokens,
            cost_microusd=view.usage.cost_microusd,
        )

    @property
    def told_of_loose_ends(self) -> bool:
        return any(isinstance(f, AgentTold) and f.source == LOOSE_ENDS for f in self.facts)

    def apply(self, event: Event, fact: Fact) -> None:
        self.life.at(event)
        self.attempt.at(event)
        match fact:
            case AgentStarted():
                self.life = Stretch()
                self.life.at(event)
            case AgentAttempted():
                self.attempted, self.attempt = fact, Stretch()
                self.attempt.at(event)
                self.facts.clear()
                self.children.clear()
                self.delivered.clear()
            case AgentClosed():
                self.facts.clear()
            case WorktreeCreated():
                self.worktree = fact
            case CheckFinished():
                self.tested = fact.check.ok
            case AgentWaiting():
                self.waiting = fact
            case ToolFinished():
                self.delivered.update(fact.about)
                self.tainted |= fact.receipt.untrusted
                if fact.receipt.command is not None or fact.receipt.changed:
                    self.tested = still_tested(self.tested, fact.receipt)
                self.heard_untrusted |= fact.receipt.untrusted and fact.receipt.command is None
                self.facts.append(fact)
            case AgentTold():
                if fact.source == "parent" and self.messages:
                    self.messages.pop(0)
                if fact.source == "staff":
                    self.delivered.update(fact.about)
                self.facts.append(fact)
            case _:
                self.facts.append(fact)

    def hear_of(self, child: RecoveredAgent) -> None:
        """As an agent does of a child that has ended."""
        if child.tainted:
            self.tainted, self.heard_untrusted = (
                True,
                self.heard_untrusted or self.attempted is not None,
            )
        if child.tested or (child.view.files_modified and not child.view.kept):
            self.tested = child.tested

    def result(self, run_id: str) -> Result:
        """How it ended, as far as that is on record."""
        view, contract = self.view, self.contract
        summary, _ = cap(view.response, contract.outputs.result_cap_tokens)
        spent = self.spent
        # Who waits to be integrated, and has nothing to be, is done.
        ok = view.status in (None, Status.COMPLETED)
        return Result(
            status=view.status or Status.COMPLETED,
            agent_id=view.id,
            run_id=run_id,
            role=view.role,
            task=contract.step.description,
            summary=summary,
            response=view.response,
            data=self._data if ok else None,
            error=None if ok else view.error,
            cached=view.cached,
            notes=(*self.created.notes, *((TAINTED,) if self.tainted else ())),
            usage=Spent(
                tool_calls=spent.tool_calls,
                turns=spent.turns,
                tokens_in=view.usage.tokens_in,
                tokens_cached=view.usage.tokens_cached,
                tokens_out=view.usage.tokens_out,
                cost_usd=view.usage.cost_usd,
                duration_s=self.life.seconds,
            ),
            attempts=view.attempt,
            files_read=tuple(view.files_read),
            files_modified=tuple(view.files_modified.values()),
            receipts=tuple(view.receipts),
            tainted=self.tainted,
            checks=tuple(view.checks),
            conflicts=view.conflicts,
            kept=bool(view.kept),
            unverified=self.claim,
        )

    @property
    def claim(self) -> str:
        """What it says that nothing shows."""
        return self.view.unverified or unverified(self.view.response, tested=self.tested)

    @property
    def ending(self) -> AttemptOutcome:
        """How it ended that waits to be integrated."""
        return AttemptOutcome(Status.COMPLETED, self.view.response, data=self._data, proposed=True)

    @property
    def _data(self) -> Any:
        schema = self.contract.outputs.output_schema
        return None if schema is None else OutputSchema(schema).check(self.view.response)[0]


class Recovered(msgspec.Struct, frozen=True):
    """A run that can be gone on with. Agents are in the order of their birth."""

    row: RunRow
    started: RunStarted
    agents: dict[str, RecoveredAgent]
    tasks: list[TasksGiven]
    plan: list[Fact]
    """What was decided in a plan, and when children were made for it."""
    steps: int
    """How many changes of the user's files there were."""
    authors: Authors
    seconds: float
    """How long it was worked on."""

    @property
    def end(self) -> JournalHead:
        return JournalHead.of(self.row)


async def recover(store: Store, run_id: str) -> Recovered:
    """Read what a run was doing. Nobody may be writing it.

    Raises UnknownRun; RunError if it is over; ChainBroken if the journal is not what was written.
    """
    row = await store.run(run_id)
    check_journal(row)
    if row.status is not None:
        raise RunError(
            f"Run {row.id} is over ({row.status}); there is nothing to resume."
            + ("" if row.session is None else f' To go on from it: retinue run -r {row.id} "…"')
        )
    events = await read_all(store, row.id)
    verify(events, head_seq=row.head_seq, head_hash=row.head_hash)
    if len(events) < BEGUN:
        raise RunError(f"Run {row.id} was ended before it had begun; there is nothing to resume.")
    rows = {agent.id: agent for agent in await store.agents(row.id)}
    view, agents, tasks = RunState(), dict[str, RecoveredAgent](), list[TasksGiven]()
    plan, steps, authors, life = list[Fact](), 0, Authors(), Stretch()
    started = events[0].fact
    assert isinstance(started, RunStarted), "a journal begins with run.started"
    for event in events:
        view.apply(event)
        life.at(event)
        fact = event.fact
        match fact:
            case TasksGiven():
                tasks.append(fact)
            case PlanAdopted() | StepStarted() | StepFinished():
                plan.append(fact)
            case AgentCreated():
                _born(event, fact, view, agents, rows)
                if event.parent_agent_id == ROOT:
                    plan.append(fact)
                if event.parent_agent_id is None:
                    agents[event.agent_id].tainted = started.tainted
                    agents[event.agent_id].heard_untrusted = started.heard_untrusted
            case RunLapsed(stalled_s=stalled, jumped_s=jumped):
                life.lost(stalled + jumped)
                for past in agents.values():
                    if past.state is not State.CLOSED:
                        past.life.lost(stalled + jumped)
                        past.attempt.lost(stalled + jumped)
            case FilesChanged():
                steps = max(steps, fact.step)
                past = agents[event.agent_id]
                who = f"{past.view.id} ({past.view.path})"
                authors.extend((file.path, who) for file in fact.files)
            case _ if event.agent_id in agents and event.type.startswith(_OF_AGENTS):
                past = agents[event.agent_id]
                if isinstance(fact, ToolFinished) and fact.tool == MESSAGE and not fact.failed:
                    _sent(past, fact.call_id, agents)
                past.apply(event, fact)
                if isinstance(fact, AgentClosed) and past.view.parent_id is not None:
                    agents[past.view.parent_id].hear_of(past)
    return Recovered(row, started, agents, tasks, plan, steps, authors, life.seconds)


def check_journal(row: RunRow) -> None:
    """RunError if only the outcome of a run is left."""
    if row.pruned:
        raise RunError(
            f"The journal of run {row.id} was cleaned away; there is nothing left to resume."
        )


_OF_AGENTS = ("agent.", "turn.", "model.", "tool.")


def _born(
    event: Event,
    fact: AgentCreated,
    view: RunState,
    agents: dict[str, RecoveredAgent],
    rows: dict[str, AgentRow],
) -> None:
    row = rows.get(event.agent_id)
    digest = None if row is None else hashlib.sha256(row.context_json.encode()).hexdigest()
    if row is None or digest != fact.contract_sha256:
        raise ChainBroken(
            f"The contract of agent {event.agent_id} is not the one that event {event.seq}"
            " created.",
            seq=event.seq,
        )
    agents[event.agent_id] = past = RecoveredAgent(
        created=fact,
        contract=decode_contract(row.context_json),
        view=view.agents[event.agent_id],
    )
    past.life.at(event)
    if event.parent_agent_id is not None:
        parent = agents[event.parent_agent_id]
        parent.children.append(event.agent_id)
        # A stranger's words may be in its task.
        past.heard_untrusted = parent.heard_untrusted
        _, _, part = fact.origin_key.partition("/")
        # The call itself has paid for the first one.
        parent.more_calls += part not in ("", "0")


class _Message(msgspec.Struct):
    id: str
    text: str


def _sent(sender: RecoveredAgent, call_id: str, agents: dict[str, RecoveredAgent]) -> None:
    """A message is on its way to a child."""
    for fact in reversed(sender.facts):
        if isinstance(fact, ToolStarted) and fact.call_id == call_id:
            message = msgspec.json.decode(fact.arguments, type=_Message)
            child = agents.get(plain_id(message.id))
            if child is not None:
                child.messages.append(message.text)
                child.heard_untrusted |= sender.heard_untrusted
            return
