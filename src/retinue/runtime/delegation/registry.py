"""The agents of one run: numbered when created, open until closed, counted when closed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from retinue.domain.account import Account, Resources
from retinue.domain.agent_state import ROOT_ID, AgentState
from retinue.domain.contract import Contract
from retinue.domain.events import AgentCreated
from retinue.domain.lifecycle import State
from retinue.domain.messages import Usage
from retinue.domain.report import markdown
from retinue.domain.result import Result, Spent
from retinue.domain.resume_point import ResumePoint
from retinue.ports.store import NewAgent
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.closing import (
    close,
    closed_result,
    finish_closing,
    recovered_result,
    unfinished_result,
)
from retinue.runtime.agent.lifecycle import AttemptOutcome
from retinue.runtime.core.journal import Journal
from retinue.runtime.core.suspension import Suspension
from retinue.runtime.history.recovery import RecoveredRun
from retinue.runtime.services import Services


class AgentRegistry:
    """Creates and closes the agents of one run. Synchronous, so a cancelled task can use it."""

    def __init__(
        self,
        run_id: str,
        services: Services,
        journal: Journal,
        suspension: Suspension,
        *,
        earlier_children: int,
    ) -> None:
        """`earlier_children` is the number of children in earlier runs of the session."""
        self._run_id = run_id
        self._services = services
        self._journal = journal
        self._suspension = suspension
        # Ids are unique in the whole session, so children of earlier runs count too.
        self._first_child = 1 + earlier_children
        self._next_child = self._first_child
        self._open: dict[str, Agent] = {}
        self._restored: dict[str, Agent] = {}
        self._by_origin: dict[str, Agent] = {}
        self._started_at = self._counted_at = services.clock.monotonic()
        self._spent = Resources()
        self._usage = Usage()
        self.failed = 0
        """Number of children that failed."""

    @property
    def open(self) -> Mapping[str, Agent]:
        """Agents that are not closed, in the order of their creation."""
        return self._open

    @property
    def children(self) -> int:
        """Number of children created so far."""
        return self._next_child - self._first_child

    @property
    def open_children(self) -> int:
        return sum(agent.parent is not None for agent in self._open.values())

    @property
    def total(self) -> Spent:
        """What all closed agents used together."""
        return Spent.of(self._spent, self._usage, self._counted_at - self._started_at)

    # Create

    def create(
        self,
        contract: Contract,
        path: str,
        parent: Agent | None,
        *,
        notes: tuple[str, ...],
        origin_key: str = "",
        background: bool = False,
        use_cache: bool = False,
    ) -> Agent:
        """Record a new agent with its contract, before it does anything."""
        agent_id = self._take_id(parent)
        parent_id = None if parent is None else parent.id
        role, step_idx = contract.execution.role, contract.parent.step_idx
        encoded = contract.encode()
        canonical = encoded.canonical
        cache_key = self._services.cache.key(contract, encoded) if use_cache else None
        created = AgentCreated(
            sub_agent_id=agent_id,
            step_idx=step_idx,
            path=path,
            depth=0 if parent is None else parent.depth + 1,
            role=role,
            title=contract.step.title,
            contract_sha256=hashlib.sha256(canonical).hexdigest(),
            notes=notes,
            origin_key=origin_key,
            background=background,
        )
        row = NewAgent(
            run_id=self._run_id,
            agent_id=agent_id,
            parent_agent_id=parent_id,
            step_idx=step_idx,
            path=path,
            role=role,
            context_json=canonical.decode(),
            cache_key=cache_key,
        )
        event = self._journal.record(created, agent_id, parent_id, new_agent=row)
        agent = self._agent(AgentState.created(event, created), contract, parent, cache_key)
        agent.touch()
        if parent is not None:
            parent.state.add_child(agent.state)
        self._open[agent_id] = agent
        return agent

    def _take_id(self, parent: Agent | None) -> str:
        if parent is None:
            return ROOT_ID
        number, self._next_child = self._next_child, self._next_child + 1
        return f"a{number}"

    def _agent(
        self, state: AgentState, contract: Contract, parent: Agent | None, cache_key: str | None
    ) -> Agent:
        above = None if parent is None else parent.account
        return Agent(
            state,
            contract,
            parent,
            account=Account(state.path, contract.execution.budget.resources(), above),
            tree=self._services.file_tree if parent is None else parent.files.tree,
            cache_key=cache_key,
            journal=self._journal,
            clock=self._services.clock,
            suspension=self._suspension,
        )

    # Restore

    def restore(self, recovered: RecoveredRun) -> Agent:
        """Recreate the agents that the journal records. Return the root."""
        agents = self._restored
        for agent_id, resume_point in recovered.state.resume_points.items():
            state, contract = resume_point.agent, recovered.contracts[agent_id]
            parent = agents.get(state.parent_id or "")
            taken = self._take_id(parent)
            assert taken == agent_id, "ids are counted"
            cache_key = self._services.cache.key(contract, contract.encode())
            agent = self._agent(state, contract, parent, cache_key)
            agents[agent_id] = agent
            if parent is not None:
                name, _, number = agent.path.removeprefix(f"{parent.path}/").rpartition(".")
                parent.child_names[name] = int(number)
                if parent.parent is None:
                    self._by_origin[state.origin_key] = agent
            agent.restore(resume_point)
            if state.state is State.CLOSED:
                agent.result = recovered_result(agent, resume_point)
                self._count(agent, agent.result)
            else:
                self._open[agent_id] = agent
        self._started_at -= recovered.state.work_time.seconds
        return agents[ROOT_ID]

    @property
    def restored(self) -> Mapping[str, Agent]:
        return self._restored

    def restored_child(self, origin_key: str) -> Agent | None:
        """The child of the root that an earlier process created for `origin_key`."""
        return self._by_origin.get(origin_key)

    # Close

    def close(self, agent: Agent, outcome: AttemptOutcome) -> Result:
        """Close `agent` and count what it used."""
        del self._open[agent.id]
        close(agent, outcome)
        result = closed_result(agent, duration_s=self._lifetime_s(agent), data=outcome.data)
        self._closed(agent, result)
        if agent.cache_key is not None and result.ok:
            self._services.cache.add(agent.cache_key)
        return result

    def finish_closing(self, agent: Agent, resume_point: ResumePoint) -> Result:
        """Record the rest of an ending that an earlier process recorded in part."""
        del self._open[agent.id]
        finish_closing(agent)
        result = recovered_result(agent, resume_point)
        self._closed(agent, result)
        return result

    def leave_open(self, agent: Agent, outcome: AttemptOutcome) -> Result:
        """The result of a root that stays open, because its run can be resumed."""
        result = unfinished_result(agent, outcome, duration_s=self._lifetime_s(agent))
        agent.result = result
        self._count_usage(agent)
        return result

    def _closed(self, agent: Agent, result: Result) -> None:
        agent.result = result
        self._suspension.check_idle()
        if agent.parent is not None:
            agent.parent.state.child_closed(agent.state)
        self._count(agent, result)

    def _lifetime_s(self, agent: Agent) -> float:
        return self._services.clock.monotonic() - agent.activity.started_at

    def _count(self, agent: Agent, result: Result) -> None:
        """Count a closed agent, and write its report."""
        self._count_usage(agent)
        if agent.parent is not None:
            self.failed += not result.ok
            self._write_report(agent, result)

    def _count_usage(self, agent: Agent) -> None:
        self._spent += agent.state.spent
        self._usage += agent.state.usage
        self._counted_at = self._services.clock.monotonic()

    def _write_report(self, agent: Agent, result: Result) -> None:
        outputs = agent.contract.outputs
        path = outputs.report_path_pattern.replace("<idx>", agent.step_path)
        self._services.storage.reports.keep(
            path.replace("<run>", self._run_id).replace("<agent>", agent.id),
            markdown(result, agent.contract, agent.path),
        )
