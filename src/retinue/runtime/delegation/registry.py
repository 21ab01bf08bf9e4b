"""The agents of one run: numbered when created, recorded and counted when closed."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from retinue.domain.account import Account, Resources
from retinue.domain.agent_spec import Continued
from retinue.domain.agent_state import ROOT_ID, AgentState
from retinue.domain.contract import Contract
from retinue.domain.events import (
    AgentClosed,
    AgentCompleted,
    AgentCreated,
    AgentFailed,
    ResultProposed,
)
from retinue.domain.images import Image
from retinue.domain.lifecycle import State
from retinue.domain.messages import Usage
from retinue.domain.report import markdown
from retinue.domain.result import ChildFailure, Result, Spent, Status
from retinue.ports.store import NewAgent
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.loop import AttemptOutcome
from retinue.runtime.agent.output_schema import OutputSchema
from retinue.runtime.agent.remote_answers import RemoteAnswers
from retinue.runtime.core.journal import Journal
from retinue.runtime.core.suspension import Suspension
from retinue.runtime.history.recovery import RecoveredRun
from retinue.runtime.history.reports import project_result, report_path
from retinue.runtime.services import Services

LOST = "no candidate of its race has won"


class AgentNumbers:
    """Numbers of children. Runs of one session, and all runs of a chat, share them."""

    def __init__(self) -> None:
        self._last = 0

    def take(self) -> int:
        self._last += 1
        return self._last

    def skip_to(self, taken: int) -> None:
        """Note that the numbers up to `taken` are taken."""
        self._last = max(self._last, taken)


class AgentRegistry:
    """Creates and closes the agents of one run. Synchronous, so a cancelled task can use it."""

    def __init__(
        self, services: Services, journal: Journal, suspension: Suspension, numbers: AgentNumbers
    ) -> None:
        self._services = services
        self._journal = journal
        self.run_id = journal.run_id
        self._suspension = suspension
        self.remote_answers = RemoteAnswers()
        self._numbers = numbers
        self.children = 0
        """Number of children created so far."""
        self.open: dict[str, Agent] = {}
        """Agents that are not closed, in the order of their creation."""
        self.restored: dict[str, Agent] = {}
        """Agents that an earlier process created."""
        self._by_origin: dict[str, Agent] = {}
        self._started_at = self._counted_at = services.clock.monotonic()
        self._asked_s = 0.0
        self._spent = Resources()
        self._usage = Usage()
        self._lost: set[str] = set()
        """The first candidates of races without a winner."""
        self.failed = 0
        """Number of children that failed."""
        self.failures: dict[str, ChildFailure] = {}
        """Failed children of the root that no other child replaces, by id."""

    @property
    def open_children(self) -> int:
        return sum(agent.parent is not None for agent in self.open.values())

    @property
    def endpoint_failure(self) -> str | None:
        """Why an agent is left open until the run is resumed; None if no agent is."""
        failures = (agent.activity.endpoint_failure for agent in self.open.values())
        return next(filter(None, failures), None)

    @property
    def total(self) -> Spent:
        """What all closed agents used together."""
        took_s = self._counted_at - self._started_at - self._asked_s
        return Spent.of(self._spent, self._usage, took_s)

    # Create

    def create(
        self,
        contract: Contract,
        path: str,
        parent: Agent | None,
        *,
        notes: tuple[str, ...],
        images: tuple[Image, ...] = (),
        origin_key: str = "",
        background: bool = False,
        replaces: str = "",
        continues: Continued | None = None,
        use_cache: bool = False,
        race: str = "",
    ) -> Agent:
        """Record a new agent with its contract, before it does anything."""
        agent_id = ROOT_ID if parent is None else f"a{self._numbers.take()}"
        parent_id = None if parent is None else parent.id
        execution, step_idx = contract.execution, contract.parent.step_idx
        role = execution.role
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
            replaces=replaces,
            continues="" if continues is None else continues.reference,
            tainted=continues is not None and continues.tainted,
            read_untrusted=continues is not None and continues.read_untrusted,
            images=images,
            model="" if execution.model == self._services.policy.model else execution.model,
            race=race,
        )
        row = NewAgent(
            run_id=self._journal.run_id,
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
        agent.created = event
        agent.touch()
        if parent is not None:
            self.children += 1
            parent.state.add_child(agent.state)
            self._settle(agent.state)
        self.open[agent_id] = agent
        return agent

    def _agent(
        self, state: AgentState, contract: Contract, parent: Agent | None, cache_key: str | None
    ) -> Agent:
        above = None if parent is None else parent.account
        execution = contract.execution
        # Without a price, prompts that are sent again are limited too: the worst case of a
        # candidate is known for all that an ancestor may limit.
        priced = self._services.models.price(execution.model) is not None and not state.race
        return Agent(
            state,
            contract,
            parent,
            account=Account(state.path, execution.budget.resources(priced=priced), above),
            tree=self._services.file_tree if parent is None else parent.files.tree,
            cache_key=cache_key,
            journal=self._journal,
            clock=self._services.clock,
            suspension=self._suspension,
            remote_answers=self.remote_answers,
            on_progress=self._services.listeners.on_progress,
        )

    # Restore

    def restore(self, recovered: RecoveredRun) -> Agent:
        """Recreate the agents that the journal records. Return the root."""
        agents = self.restored
        for agent_id, resume_point in recovered.state.resume_points.items():
            state, contract = resume_point.agent, recovered.contracts[agent_id]
            parent = agents.get(state.parent_id or "")
            cache_key = self._services.cache.key(contract, contract.encode())
            agent = self._agent(state, contract, parent, cache_key)
            agents[agent_id] = agent
            self._suspension.answered_models.add(contract.execution.model)
            if parent is not None:
                self.children += 1
                self._numbers.skip_to(int(agent_id[1:]))
                name, _, number = agent.path.removeprefix(f"{parent.path}/").rpartition(".")
                parent.child_names[name] = int(number)
                if parent.parent is None:
                    self._by_origin[state.origin_key] = agent
            agent.restore(resume_point)
            self._settle(state)
            if state.state is State.CLOSED:
                agent.result = _recovered_result(agent)
                self._count(agent, agent.result)
            else:
                self.open[agent_id] = agent
        self._count_lost_races()
        self._started_at -= recovered.state.work_time.seconds
        return agents[ROOT_ID]

    def _count_lost_races(self) -> None:
        """Count the races that were lost, unless another child has settled the failure."""
        for parent in self.restored.values():
            for race, decided in parent.state.races.items():
                candidates = (a for a in self.restored.values() if a.parent is parent)
                first = next((a for a in candidates if a.state.race == race), None)
                if not decided.winner and first is not None and first.result is not None:
                    self.count_lost_race(first, LOST)
        for agent in self.restored.values() if self._lost else ():
            self._settle(agent.state)

    def _settle(self, child: AgentState) -> None:
        """Remove the failed child that `child` replaces or continues from the failures."""
        self.failures.pop(child.replaces, None)
        run_id, _, continued = child.continues.partition("/")
        if run_id == self._journal.run_id:
            self.failures.pop(continued, None)

    def restored_child(self, origin_key: str) -> Agent | None:
        """The child of the root that an earlier process created for `origin_key`."""
        return self._by_origin.get(origin_key)

    # Close

    def close(self, agent: Agent, outcome: AttemptOutcome | None) -> Result:
        """Record how `agent` ended, close it, and count what it used.

        Without `outcome`, record the rest of an ending that an earlier process recorded in part.
        """
        del self.open[agent.id]
        if outcome is not None:
            _record_ending(agent, outcome)
            _record_closed(agent, outcome.reason or "done")
            result = _result(agent, self.lifetime_s(agent), outcome.data)
        else:
            if agent.state.state is State.WAITING_FOR_MERGE:
                agent.record(AgentCompleted(sub_agent_id=agent.id))
            failed = agent.state.state is State.FAILED
            _record_closed(agent, agent.state.error if failed else "done")
            result = _recovered_result(agent)
        agent.result = result
        agent.suspension.check_idle()
        if agent.parent is not None:
            agent.parent.state.child_closed(agent.state)
            agent.parent.touch()
        self._count(agent, result)
        if outcome is not None and agent.cache_key is not None and result.ok:
            self._services.cache.add(agent.cache_key)
        return result

    def lifetime_s(self, agent: Agent) -> float:
        """How long the agent took, without the time that people took to answer."""
        activity = agent.activity
        return self._services.clock.monotonic() - activity.started_at - activity.asked_s

    def _count(self, agent: Agent, result: Result) -> None:
        """Count a closed agent, and write its report."""
        self._spent += agent.state.spent
        self._usage += agent.state.usage
        self._counted_at = self._services.clock.monotonic()
        # A question of any agent is one of the root, too.
        self._asked_s = agent.activity.asked_s if agent.parent is None else self._asked_s
        if agent.parent is not None:
            if not agent.state.race:
                self._count_failure(agent, result)
            self._write_report(agent, result)

    def _count_failure(self, agent: Agent, result: Result) -> None:
        self.failed += not result.ok
        if agent.depth == 1 and not result.ok and result.status is not Status.CANCELLED:
            failure = ChildFailure(agent.id, result.status, result.error or "")
            self.failures[agent.id] = failure

    def count_lost_race(self, first: Agent, error: str) -> None:
        """Count a race that no candidate won as one failed child: the `first` of them."""
        assert first.result is not None, "it has ended"
        if first.id not in self._lost:
            self._lost.add(first.id)
            result = msgspec.structs.replace(first.result, status=Status.ERROR, error=error)
            self._count_failure(first, result)

    def _write_report(self, agent: Agent, result: Result) -> None:
        self._services.storage.reports.keep(
            report_path(agent.contract, agent.id, agent.step_path),
            markdown(result, agent.contract, agent.path),
        )


def output_data(response: str, contract: Contract) -> Any:
    """The value in a response, if the contract has an output schema."""
    schema = contract.outputs.output_schema
    return None if schema is None else OutputSchema(schema).check(response)[0]


def _record_ending(agent: Agent, outcome: AttemptOutcome) -> None:
    if outcome.status is Status.COMPLETED:
        if not outcome.proposed:
            changed = tuple(agent.state.files_modified.values())
            agent.record(
                ResultProposed(sub_agent_id=agent.id, response=outcome.text, files_modified=changed)
            )
        agent.record(AgentCompleted(sub_agent_id=agent.id))
    else:
        agent.record(
            AgentFailed(
                sub_agent_id=agent.id,
                status=outcome.status,
                reason=outcome.reason,
                response=outcome.text,
                conflicts=agent.files.conflicts,
            )
        )


def _record_closed(agent: Agent, reason: str) -> None:
    agent.record(
        AgentClosed(
            sub_agent_id=agent.id,
            step_idx=agent.contract.parent.step_idx,
            final_status="failed" if agent.state.state is State.FAILED else "completed",
            close_reason=reason,
            unverified=agent.state.claim,
            unread=agent.unread_messages,
        )
    )


def _result(agent: Agent, duration_s: float, data: Any = None) -> Result:
    root = agent
    while root.parent is not None:
        root = root.parent
    return project_result(agent.state, agent.contract, root.contract, duration_s, data)


def _recovered_result(agent: Agent) -> Result:
    """The result of an agent whose ending an earlier process recorded."""
    assert agent.resume_point is not None, "it was restored"
    completed = agent.state.status in (None, Status.COMPLETED)
    data = output_data(agent.state.response, agent.contract) if completed else None
    return _result(agent, agent.resume_point.lifetime.seconds, data)
