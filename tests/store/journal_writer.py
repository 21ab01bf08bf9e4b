"""Writes the journal of a run without running it, for tests of what reads journals."""

from __future__ import annotations

import hashlib
from typing import Any

from retinue.domain.chain import GENESIS
from retinue.domain.contract import Contract, Execution, Parent, Step
from retinue.domain.events import (
    AgentClosed,
    AgentCompleted,
    AgentCreated,
    AgentFailed,
    AgentStarted,
    Event,
    Fact,
    LimitReached,
    ResultProposed,
    RunFinished,
    RunResumed,
    RunStarted,
)
from retinue.domain.grant import Grant, Mode
from retinue.domain.result import Status
from retinue.ports.clock import Clock
from retinue.ports.store import NewAgent, RunRow, Store
from retinue.runtime.core.journal import Journal, JournalHead
from retinue.testing.clock import FakeClock


class JournalWriter:
    """Records the events of one run; with a row, of a run that another process has left."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        *,
        epoch: int = 1,
        clock: Clock | None = None,
        row: RunRow | None = None,
    ) -> None:
        self.run_id = run_id
        head = JournalHead(epoch - 1, 0, GENESIS) if row is None else JournalHead.of(row)
        self.journal = Journal(
            store,
            clock or FakeClock(),
            run_id,
            head=head,
            listener=None,
        )

    def begin(
        self, task: str = "Do it.", *, kind: str = "run", earlier: tuple[str, ...] = ()
    ) -> Event:
        return self.record(
            RunStarted(
                kind=kind,
                task=task,
                directory="/project",
                model="scripted",
                mode="normal",
                retinue_version="0",
                sandbox="none",
                earlier=earlier,
            )
        )

    def create_agent(
        self,
        agent_id: str = "a0",
        task: str = "Do it.",
        *,
        cache_key: str | None = None,
        **terms: Any,
    ) -> NewAgent:
        """Record the creation of an agent; return the row that should be stored."""
        parent = None if agent_id == "a0" else "a0"
        own = contract(self.run_id, parent, task, **terms)
        new_agent = NewAgent(
            run_id=self.run_id,
            agent_id=agent_id,
            parent_agent_id=parent,
            step_idx=0,
            path="root" if parent is None else f"root/{agent_id}",
            role="researcher",
            context_json=own.encode().canonical.decode(),
            cache_key=cache_key,
        )
        fact = AgentCreated(
            sub_agent_id=agent_id,
            step_idx=0,
            path=new_agent.path,
            depth=0 if parent is None else 1,
            role=new_agent.role,
            title=task[:20],
            contract_sha256=hashlib.sha256(new_agent.context_json.encode()).hexdigest(),
        )
        self.journal.record(fact, agent_id=agent_id, parent_agent_id=parent, new_agent=new_agent)
        return new_agent

    def run_agent(self, agent_id: str, *, failed: bool = False) -> None:
        """Record an agent from its start to its closing."""
        self.record(AgentStarted(sub_agent_id=agent_id), agent_id)
        self.end(agent_id, failed=failed)

    def end(self, agent_id: str, *, failed: bool = False) -> None:
        """Record the end of a running agent."""
        middle: list[Fact] = [
            ResultProposed(sub_agent_id=agent_id, response="Done."),
            AgentCompleted(sub_agent_id=agent_id),
        ]
        if failed:
            middle = [AgentFailed(sub_agent_id=agent_id, status=Status.ERROR, reason="No.")]
        end = AgentClosed(
            sub_agent_id=agent_id, step_idx=0, final_status="over", close_reason="over"
        )
        for fact in (*middle, end):
            self.record(fact, agent_id)

    def take_over(self) -> Event:
        return self.record(RunResumed(retinue_version="0", sandbox="none"))

    def note(self, text: str = "a fact that changes no row") -> Event:
        return self.record(LimitReached(limit="max_turns", detail=text))

    def finish(self, status: Status = Status.COMPLETED) -> Event:
        return self.record(RunFinished(status=status))

    def record(self, fact: Fact, agent_id: str = "a0") -> Event:
        return self.journal.record(fact, agent_id=agent_id, parent_agent_id=None)


def contract(
    run_id: str,
    agent_id: str | None = None,
    task: str = "Do it.",
    *,
    web_hosts: tuple[str, ...] = (),
    mode: Mode = Mode.NORMAL,
    model: str = "scripted",
) -> Contract:
    return Contract(
        parent=Parent(run_id=run_id, agent_id=agent_id, step_idx=0, task_prompt=task),
        step=Step(title="A task", description=task, success_criteria=("It is done.",)),
        permissions=Grant(allowed_tools=("read_file",), mode=mode, web_hosts=web_hosts),
        execution=Execution(
            role="researcher",
            instructions="Look.",
            model=model,
            attempt_timeout_ms=5_000,
            max_retries=0,
            max_tool_calls=3,
            max_turns=4,
            max_tokens=None,
            max_context_tokens=100,
        ),
    )
