"""`Race`: candidates work at the same time under one contract; the work of one is merged.

Each candidate is a child with a copy of its own. When its work has passed the checks, it waits for
the decision. The decision is on record before anything is merged. The others complete too, and
their work is kept. If the winner cannot be merged, the next one takes its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec

from retinue.domain.account import MICROUSD_PER_USD, Resources
from retinue.domain.agent_spec import AgentSpec
from retinue.domain.budget import Limits
from retinue.domain.contract import Contract, WorkspaceKind
from retinue.domain.events import RaceDecided, RaceForecast
from retinue.domain.plan.forecast import Forecast
from retinue.domain.race import FIRST, RaceResult, Standing, no_winner, rank
from retinue.domain.result import Result, Status
from retinue.errors import BudgetExceeded, ContractError, OutOfBudget, RunSuspended, UsageError
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.loop import AttemptOutcome
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.delegation.children import Permit
from retinue.runtime.delegation.registry import AgentRegistry
from retinue.runtime.delegation.spawner import Spawner
from retinue.runtime.integration.baseline import Baseline
from retinue.runtime.integration.integrator import Integrator

MIN_CANDIDATES = 2
RACE_OVER = "the race is over: {winner} has won"
PASSED_FIRST = "{winner} passed its checks first"
TOO_FEW = (
    "A race needs at least two candidates; there is {count}. Name more (--with), or let one take"
    " part several times (--times)."
)
NO_CHECKS = (
    "A race needs checks, which decide it first: --check COMMAND, or checks in your settings."
)
READS_ONLY = "{role} cannot change files here, and a race compares changes; use --mode auto."
NO_COPY = "Each candidate of a race needs a copy of the files: {why}."
TOO_MUCH = (
    "{count} candidates may use {worst}, and there are {left} left. Race fewer, or give each less,"
    " such as --{flag} {share}."
)

MakeSpec = Callable[[int], Awaitable[AgentSpec]]


class CandidateRunner(Protocol):
    """What a race needs of `AgentRunner`, which runs its candidates."""

    registry: AgentRegistry
    spawner: Spawner
    integrator: Integrator

    async def run(self, agent: Agent, permit: Permit | None = None) -> Result: ...

    async def forecast(self, contracts: Sequence[Contract]) -> Forecast: ...

    def close(self, agent: Agent, outcome: AttemptOutcome) -> Result: ...

    async def cancel_restored(self, agent: Agent) -> None: ...


class _Candidate:
    """A child in a race: it works, then waits for the decision if its work has passed, and ends."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.task: asyncio.Task[Result] | None = None
        self.passed = False
        """Whether its work has passed the checks."""
        self.duration_s = 0.0
        loop = asyncio.get_running_loop()
        self.decision: asyncio.Future[bool] = loop.create_future()
        """Whether its work is merged."""
        self.left_open: asyncio.Future[None] = loop.create_future()
        """Done when its model endpoint is gone."""

    @property
    def is_over(self) -> bool:
        return self.agent.result is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for the decision."""
        return self.passed and not self.is_over and not self.decision.done()

    @property
    def works(self) -> bool:
        """Whether it may still pass."""
        return not (self.is_over or self.passed or self.left_open.done())

    def stop(self, reason: str) -> None:
        """Stop it for good, unless it has passed already."""
        activity = self.agent.activity
        # A second cancellation would interrupt what follows the first.
        if self.task is not None and not (self.is_over or self.passed) and not activity.stop_reason:
            activity.stop_reason = reason
            self.task.cancel()


class Race:
    """One race between children of `parent`."""

    def __init__(
        self,
        runner: CandidateRunner,
        parent: Agent,
        key: str,
        rule: str,
        permits: asyncio.Semaphore,
        on_candidate: Callable[[Agent], None] = lambda _: None,
    ) -> None:
        """`key` names the race, unique within the parent; `rule` is "best" or "first".

        At most as many candidates as there are `permits` work at a time.
        """
        self._on_candidate = on_candidate
        self._runner = runner
        self._parent = parent
        self._key = key
        self._rule = rule
        self._permits = permits
        self._candidates: list[_Candidate] = []
        self._preferred: _Candidate | None = None
        """The winner that an earlier process has put on record."""
        self._changed = asyncio.Event()
        """Set when a candidate has passed, has ended, or is left open."""

    async def run(
        self, origin_keys: Sequence[str], make_spec: MakeSpec, *, typed: bool = False
    ) -> RaceResult:
        """Run the race. Raises UsageError, before any call of a model, if it cannot be run.

        Candidates that an earlier process has created continue. If the user has `typed` the
        request, it needs no approval.
        """
        agents = {agent.state.origin_key: agent for agent in self._restored()}
        missing = [number for number, key in enumerate(origin_keys) if key not in agents]
        if missing:
            specs = {origin_keys[number]: await make_spec(number) for number in missing}
            agents |= await self._create(specs, typed=typed, is_new=not agents)
        self._candidates = [_Candidate(agents[key]) for key in origin_keys]
        for candidate in self._candidates:
            self._on_candidate(candidate.agent)
        return await self._run()

    # Create

    def _restored(self) -> Sequence[Agent]:
        return [
            agent
            for agent in self._runner.registry.restored.values()
            if agent.parent is self._parent and agent.state.race == self._key
        ]

    async def _create(
        self, specs: Mapping[str, AgentSpec], *, typed: bool, is_new: bool
    ) -> dict[str, Agent]:
        spawner, parent, forecast = self._runner.spawner, self._parent, None
        if is_new:
            specs, forecast = await self._checked(specs)
            parent.record(RaceForecast(race=self._key, rule=self._rule, forecast=forecast))
        await spawner.approve(specs, parent, typed=typed, forecast=forecast)
        created: dict[str, Agent] = {}
        base = None
        try:
            for key, spec in specs.items():
                baseline = Baseline(queue=key, race=self._key)
                baseline.base = base
                created[key] = await spawner.create(spec, parent, baseline, origin_key=key)
                base = baseline.base
            for agent in created.values():
                agent.account.prepay()
        except (UsageError, BudgetExceeded) as error:
            for agent in created.values():
                self._runner.close(agent, AttemptOutcome(Status.REJECTED, "", str(error)))
            raise error if isinstance(error, UsageError) else OutOfBudget(str(error)) from error
        return created

    async def _checked(
        self, specs: Mapping[str, AgentSpec]
    ) -> tuple[dict[str, AgentSpec], Forecast]:
        """The specs, with equal shares of limits that only their parent has, and their forecast.

        Raises ContractError if they make no race, or if its worst case exceeds the budget.
        """
        if len(specs) < MIN_CANDIDATES:
            raise ContractError(TOO_FEW.format(count=len(specs)))
        if why := await self._parent.files.tree.why_no_copies():
            raise ContractError(NO_COPY.format(why=why.rstrip(".")))
        left = self._parent.account.remaining()
        shared = {key: self._with_share(spec, left, len(specs)) for key, spec in specs.items()}
        contracts = [self._runner.spawner.preview(spec, self._parent) for spec in shared.values()]
        for contract in contracts:
            if not contract.outputs.checks:
                raise ContractError(NO_CHECKS)
            kind, role = contract.execution.workspace, contract.execution.role
            if kind is WorkspaceKind.READONLY:
                raise ContractError(READS_ONLY.format(role=role))
            if kind is WorkspaceKind.SHARED:
                raise ContractError(NO_COPY.format(why="one is to work in yours (--workspace)"))
        _check_worst_case(contracts, self._parent.contract, left)
        return shared, await self._runner.forecast(contracts)

    def _with_share(self, spec: AgentSpec, left: Resources, count: int) -> AgentSpec:
        asked = spec.limits.applied_to(spec.role.budget)
        shares = {
            name: amount // count if name != "max_cost_usd" else amount / count / MICROUSD_PER_USD
            for name, amount in _amounts(left).items()
            if getattr(asked, name) is None and _has_limit(self._parent.contract, name)
        }
        if not all(shares.values()):
            raise OutOfBudget("Nothing is left for the candidates of a race.")
        limits = Limits(**(spec.limits.given() | shares))
        return msgspec.structs.replace(spec, limits=limits, cache=False)

    # Run

    async def _run(self) -> RaceResult:
        parent = self._parent
        decided = parent.state.races.get(self._key)
        passed = frozenset[str]()
        if decided is not None:
            passed = frozenset(one.agent_id for one in decided.standings if one.passed)
        for candidate in self._candidates:
            if decided is not None and candidate.agent.id == decided.winner:
                self._preferred = candidate
        for candidate in self._candidates:
            slot = self._runner.integrator.slot_of(candidate.agent)
            if slot is not None:
                slot.is_chosen = partial(self._is_chosen, candidate)
                slot.passed_before = candidate.agent.id in passed
        await self._continue_earlier(passed)
        async with TaskGroup() as tasks:
            for candidate in self._candidates:
                if not candidate.is_over:
                    candidate.agent.activity.awaited_by.append(candidate.left_open)
                    candidate.left_open.add_done_callback(self._notify)
                    work = self._runner.run(candidate.agent, Permit(self._permits))
                    candidate.task = tasks.create_task(work)
                    candidate.task.add_done_callback(self._notify)
            # A task that is cancelled before its first step never runs, and closes no agent.
            await asyncio.sleep(0)
            winner = await self._decide()
            for candidate in self._candidates:
                if candidate.waits:
                    candidate.decision.set_result(False)
                if winner is not None:
                    candidate.stop(RACE_OVER.format(winner=winner.agent.id))
        return self._result(winner)

    async def _continue_earlier(self, passed: Set[str]) -> None:
        """Stop the candidates that an earlier process was about to stop, and prepay for others."""
        for candidate in self._candidates:
            agent = candidate.agent
            if candidate.is_over or agent.resume_point is None:
                continue
            winner = self._preferred
            if self._rule == FIRST and winner is not None and agent.id not in passed:
                agent.stop(PASSED_FIRST.format(winner=winner.agent.id))
                await self._runner.cancel_restored(agent)
                continue
            # No room is left if a server has billed too much; each call is still checked.
            with suppress(BudgetExceeded):
                agent.account.prepay()

    def _notify(self, _: object) -> None:
        self._changed.set()

    async def _is_chosen(self, candidate: _Candidate) -> bool:
        """Called when the work of `candidate` has passed: waits until its race is decided."""
        candidate.duration_s = self._runner.registry.lifetime_s(candidate.agent)
        candidate.passed = True
        self._changed.set()
        return await candidate.decision

    async def _decide(self) -> _Candidate | None:
        """Decide until the work of a candidate is merged, or none is left. Return the winner."""
        earlier_decision = self._parent.state.races.get(self._key)
        if earlier_decision is not None and not earlier_decision.winner:
            return None  # An earlier process has put that on record.
        while True:
            self._changed.clear()
            if (earlier := self._preferred) is not None and earlier.is_over:
                if _completed(earlier):
                    return earlier
                self._preferred = None
            chosen = self._next()
            if chosen is not None:
                if chosen is not self._preferred:
                    self._record(chosen)
                if self._rule == FIRST:
                    for other in self._candidates:
                        other.stop(PASSED_FIRST.format(winner=chosen.agent.id))
                chosen.decision.set_result(True)
                self._preferred = chosen
                while not (chosen.is_over or chosen.left_open.done()):
                    self._changed.clear()
                    await self._changed.wait()
                if chosen.is_over and _status(chosen) is Status.REJECTED:
                    # The user does not want it, and may choose another with `redo`.
                    self._record(None)
                    return None
            elif any(candidate.works for candidate in self._candidates):
                await self._changed.wait()
            elif any(one.left_open.done() and not one.is_over for one in self._candidates):
                await self._suspend()
            else:
                self._record(None)
                return None

    def _next(self) -> _Candidate | None:
        """The candidate to merge now; None if there is none, or none yet."""
        if self._preferred is not None:
            return self._preferred if self._preferred.waits else None
        waiting = {one.agent.id: one for one in self._candidates if one.waits}
        if self._rule != FIRST and any(candidate.works for candidate in self._candidates):
            return None
        best = next(iter(rank(self._standing(one) for one in waiting.values())), None)
        return None if best is None else waiting[best.agent_id]

    def _standing(self, candidate: _Candidate) -> Standing:
        agent = candidate.agent
        spent, changes = agent.account.spent, agent.state.files_modified.values()
        duration_s = candidate.duration_s
        if agent.result is not None:
            duration_s = duration_s or agent.result.usage.duration_s
        return Standing(
            agent_id=agent.id,
            passed=candidate.passed or (candidate.is_over and _completed(candidate)),
            # A file without lines, such as an image, counts as one.
            changed_lines=sum(max(1, change.added + change.removed) for change in changes),
            cost_usd=spent.cost_microusd / MICROUSD_PER_USD,
            tokens=spent.tokens,
            duration_s=round(duration_s, 3),
        )

    def _record(self, winner: _Candidate | None) -> None:
        self._parent.record(
            RaceDecided(
                race=self._key,
                rule=self._rule,
                standings=tuple(map(self._standing, self._candidates)),
                winner="" if winner is None else winner.agent.id,
            )
        )

    async def _suspend(self) -> None:
        """Leave all candidates open, as they wait for one whose model endpoint is gone."""
        gone = next(one for one in self._candidates if one.left_open.done() and not one.is_over)
        run_id = self._parent.contract.parent.run_id
        suspended = RunSuspended(gone.agent.activity.endpoint_failure, run_id=run_id)
        for candidate in self._candidates:
            if candidate.waits:
                candidate.decision.set_exception(suspended)
                await candidate.left_open
        raise suspended

    def _result(self, winner: _Candidate | None) -> RaceResult:
        results = []
        for candidate in self._candidates:
            assert candidate.agent.result is not None, "its task has ended"
            results.append(candidate.agent.result)
        error = None
        if winner is None:
            error = no_winner(results)
            self._runner.registry.count_lost_race(self._candidates[0].agent, error)
        return RaceResult(
            run_id=self._parent.contract.parent.run_id,
            status=Status.ERROR if winner is None else Status.COMPLETED,
            winner=None if winner is None else winner.agent.result,
            results=tuple(results),
            standings=tuple(map(self._standing, self._candidates)),
            error=error,
        )


def _status(candidate: _Candidate) -> Status:
    result = candidate.agent.result
    assert result is not None, "it is over"
    return result.status


def _completed(candidate: _Candidate) -> bool:
    return _status(candidate) is Status.COMPLETED


def _amounts(resources: Resources) -> dict[str, int]:
    """Resources that all agents of a tree share, by the names of the limits."""
    return {
        "max_tokens": resources.tokens,
        "max_billed_tokens": resources.billed_tokens,
        "max_cost_usd": resources.cost_microusd,
    }


def _has_limit(contract: Contract, name: str) -> bool:
    return getattr(contract.execution.budget, name) is not None


def _check_worst_case(contracts: Sequence[Contract], parent: Contract, left: Resources) -> None:
    """Raise OutOfBudget if all candidates together may use more than is `left`."""
    each = [_amounts(contract.execution.budget.resources()) for contract in contracts]
    for name, room in _amounts(left).items():
        worst = sum(amounts[name] for amounts in each)
        if _has_limit(parent, name) and worst > room:
            in_usd = name == "max_cost_usd"
            shown = [
                f"{n / MICROUSD_PER_USD:g} USD" if in_usd else f"{n:,} {name.removeprefix('max_')}"
                for n in (worst, room)
            ]
            share = room // len(contracts)
            raise OutOfBudget(
                TOO_MUCH.format(
                    count=len(contracts),
                    worst=shown[0].replace("_", " "),
                    left=shown[1].replace("_", " "),
                    flag=name.replace("_", "-"),
                    share=f"{share / MICROUSD_PER_USD:g}" if in_usd else share,
                )
            )
