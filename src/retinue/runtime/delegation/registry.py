"""Who works in a run: numbered when made, open until closed, and billed when closed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from retinue.domain.account import Account
from retinue.domain.contract import Contract
from retinue.domain.events import AgentCreated
from retinue.domain.lifecycle import State
from retinue.domain.report import markdown
from retinue.domain.result import Result, Spent
from retinue.domain.resume_point import ResumePoint
from retinue.ports.store import NewAgent
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.lifecycle import (
    AttemptOutcome,
    close,
    conclude,
    recovered_result,
    result_of,
)
from retinue.runtime.core.journal import Journal
from retinue.runtime.core.suspension import Suspension
from retinue.runtime.history.recovery import RecoveredRun
from retinue.runtime.services import Services


class AgentRegistry:
    """The agents of one run. Nothing here awaits, so it holds in a cancelled task as well."""

    def __init__(
        self,
        run_id: str,
        root: Contract,
        around: Services,
        journal: Journal,
        suspension: Suspension,
        *,
        children_before: int,
    ) -> None:
        """`children_before` are those of the session that the run goes on with."""
        self._run_id = run_id
        self._around = around
        self._journal = journal
        self._suspension = suspension
        self._ids = 0
        self._open: dict[str, Agent] = {}
        self._restored: dict[str, Agent] = {}
        self._errands: dict[str, Agent] = {}
        self._started_at = around.clock.monotonic()
        self.failed = 0
        """How many children have come to nothing."""
        self.total = Spent()
        """The bill of the whole tree so far."""
        self.root = self.make(root, "root", None)
        # What a conversation calls a3 is one child for as long as it goes on.
        self._ids += children_before
        self._before = self._ids

    @property
    def open(self) -> Mapping[str, Agent]:
        """Those that are not closed yet, in the order of their birth."""
        return self._open

    @property
    def children(self) -> int:
        """How many there have been."""
        return self._ids - self._before

    @property
    def open_children(self) -> int:
        return sum(agent is not self.root for agent in self._open.values())

    # From a contract to work

    def make(self, contract: Contract, path: str, parent: Agent | None) -> Agent:
        """The next agent. It is in the run once it is entered, or restored."""
        agent_id = f"a{self._ids}"
        self._ids += 1
        account = Account(
            path, contract.execution.budget.resources(), None if parent is None else parent.account
        )
        return Agent(
            id=agent_id,
            path=path,
            depth=0 if parent is None else parent.depth + 1,
            contract=contract,
            account=account,
            journal=self._journal,
            clock=self._around.clock,
            parent=parent,
            suspension=self._suspension,
            file_tree=self._around.file_tree if parent is None else parent.file_tree,
        )

    def enter(self, agent: Agent, notes: tuple[str, ...]) -> None:
        """Put `agent` on record, with its contract, before it does anything."""
        self._open[agent.id] = agent
        agent.notes = notes
        contract, parent = agent.contract, agent.parent
        written = contract.canonical()
        agent.record(
            AgentCreated(
                sub_agent_id=agent.id,
                step_idx=contract.parent.step_idx,
                path=agent.path,
                depth=agent.depth,
                role=agent.role,
                title=contract.step.title,
                contract_sha256=hashlib.sha256(written).hexdigest(),
                notes=notes,
                origin_key=agent.origin_key,
                background=agent.background,
            ),
            new_agent=NewAgent(
                run_id=self._run_id,
                agent_id=agent.id,
                parent_agent_id=None if parent is None else parent.id,
                step_idx=contract.parent.step_idx,
                path=agent.path,
                role=agent.role,
                context_json=written.decode(),
                cache_key=agent.cache_key,
            ),
        )

    # Those of another process

    def restore(self, found: RecoveredRun) -> None:
        """Have the agents again that the journal knows of."""
        agents = self._restored
        for agent_id, past in found.state.resume_points.items():
            contract = found.contracts[agent_id]
            parent = agents.get(past.agent.parent_id or "")
            agent = self.root
            if parent is not None:
                agent = self.make(contract, past.agent.path, parent)
                assert agent.id == agent_id, "ids are counted"
                name, _, number = agent.path.removeprefix(f"{parent.path}/").rpartition(".")
                parent.names[name] = int(number)
            agents[agent_id] = agent
            agent.restore(past)
            agent.cache_key = self._around.cache.key(contract)
            if parent is self.root:
                self._errands[agent.origin_key] = agent
            if past.agent.state is State.CLOSED:
                agent.result = recovered_result(past, agent.contract)
                self._count(agent, agent.result)
            else:
                self._open[agent_id] = agent
        self._started_at -= found.state.work_time.seconds

    @property
    def restored(self) -> Mapping[str, Agent]:
        return self._restored

    def employed(self, origin_key: str) -> Agent | None:
        """The child of the root that an errand has made already, in another process."""
        return self._errands.get(origin_key)

    # From work to a result

    def close(self, agent: Agent, ending: AttemptOutcome) -> Result:
        """Close `agent` and bill what it cost."""
        self._leave(agent)
        result = agent.result = close(agent, ending, duration_s=self._lived(agent))
        self._suspension.check_idle()
        if agent.parent is not None:
            agent.parent.hear_of(agent)
        self._count(agent, result)
        if agent.cache_key is not None and result.ok:
            self._around.cache.add(agent.cache_key)
        return result

    def conclude(self, agent: Agent, past: ResumePoint) -> Result:
        """Write down what is missing of an ending that another process has begun to write."""
        self._leave(agent)
        conclude(agent, past)
        result = agent.result = recovered_result(past, agent.contract)
        self._count(agent, result)
        self._suspension.check_idle()
        return result

    def strand(self, agent: Agent, ending: AttemptOutcome) -> Result:
        """The result of a root that is not closed, since it can go on."""
        result = agent.result = result_of(agent, ending, duration_s=self._lived(agent))
        self._bill(agent)
        return result

    def _leave(self, agent: Agent) -> None:
        del self._open[agent.id]
        if agent.seat is not None:
            agent.seat.join.leave(agent.seat)

    def _lived(self, agent: Agent) -> float:
        return self._around.clock.monotonic() - agent.since

    def _count(self, agent: Agent, result: Result) -> None:
        """Take one that is closed into the sums, and write its report."""
        self._bill(agent)
        if agent is not self.root:
            self.failed += not result.ok
            self._report(agent, result)

    def _report(self, agent: Agent, result: Result) -> None:
        outputs = agent.contract.outputs
        path = outputs.report_path_pattern.replace("<idx>", agent.step_path)
        self._around.storage.reports.keep(
            path.replace("<run>", self._run_id).replace("<agent>", agent.id),
            markdown(result, agent.contract, agent.path),
        )

    def _bill(self, agent: Agent) -> None:
        mine, so_far = agent.spent(0.0), self.total
        self.total = Spent(
            tool_calls=so_far.tool_calls + mine.tool_calls,
            turns=so_far.turns + mine.turns,
            tokens_in=so_far.tokens_in + mine.tokens_in,
            tokens_cached=so_far.tokens_cached + mine.tokens_cached,
            tokens_out=so_far.tokens_out + mine.tokens_out,
            cost_usd=so_far.cost_usd + mine.cost_usd,
            duration_s=self._around.clock.monotonic() - self._started_at,
        )
