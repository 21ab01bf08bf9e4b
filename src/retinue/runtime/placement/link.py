"""The connection of an agent on a host to its run: reports, requests, and the reserved budget."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import Any

import msgspec

from retinue.domain.account import UNLIMITED, ZERO, Account, Overdraft, Reservation, Resources
from retinue.errors import BudgetExceeded
from retinue.runtime.agent.agent import Agent
from retinue.runtime.core.reservations import Reservations
from retinue.runtime.core.task_group import run_to_completion
from retinue.runtime.placement import messages as msg
from retinue.runtime.placement.host_reports import HostReports
from retinue.runtime.placement.request_errors import error_from


class Link:
    """An agent's connection to its run: reports, and requests with their answers."""

    def __init__(self, reports: HostReports, place: msg.Place) -> None:
        self._reports = reports
        self._serial = place.serial
        self._requests = itertools.count(1)
        self._open: dict[int, asyncio.Future[msg.Answered]] = {}
        self._last_number = 0
        self.agent: Agent
        self.reservations: HostedReservations
        self._below = place.below

    def report(self, report: msg.Report) -> int:
        self._last_number = self._reports.add(self._serial, report)
        return self._last_number

    async def durable(self) -> None:
        """Wait until the run has recorded everything that was reported so far."""
        # The run is silent meanwhile, not the agent.
        with self.agent.waiting():
            await self._reports.durable(self._last_number)

    async def ask(self, what: msg.Request, type: Any, key: str = "") -> Any:
        """Ask the run, and wait for the answer. Raises what the run's side raised."""
        answer = await self.request(what, key)
        self.learn(answer)
        return self.value(answer, type)

    def value(self, answer: msg.Answered, type: Any) -> Any:
        """The value of an answer. Raises what the run's side raised."""
        if answer.error:
            raise error_from(answer.error, self.agent.contract.parent.run_id)
        return msgspec.json.decode(answer.value, type=type)

    async def request(self, what: msg.Request, key: str = "") -> msg.Answered:
        """Ask the run, and wait for the answer. `learn` takes over its other fields."""
        number = next(self._requests)
        future: asyncio.Future[msg.Answered] = asyncio.get_running_loop().create_future()
        self._open[number] = future
        self.report(msg.Asked(number, what, key))
        try:
            with self.agent.waiting():
                return await asyncio.shield(future)
        except asyncio.CancelledError:
            self.report(msg.Withdrawn(number))
            await run_to_completion(_done(future))
            raise
        finally:
            del self._open[number]

    def answered(self, answer: msg.Answered) -> None:
        future = self._open.get(answer.request)
        if future is not None and not future.done():
            future.set_result(answer)

    def learn(self, answer: msg.Answered) -> None:
        """Take over what has happened at the run meanwhile, mostly by children."""
        agent, state = self.agent, self.agent.state
        state.tainted |= answer.tainted
        state.read_untrusted |= answer.read_untrusted
        calls = answer.child_calls - state.child_calls
        state.child_calls = answer.child_calls
        below = Resources(calls, 0, *answer.below) - Resources(0, 0, *self._below)
        self._below = answer.below
        agent.account.spent += below
        self.reservations.update(answer.left)


async def _done(future: asyncio.Future[msg.Answered]) -> None:
    with suppress(Exception):
        await future


class HostedReservations(Reservations):
    """Reservations of one agent. If ancestors have limits, the run holds what is reserved."""

    def __init__(self, link: Link, account: Account, ancestors: Account, *, draws: bool) -> None:
        super().__init__()
        self._link = link
        self._account = account
        self._ancestors = ancestors
        self._draws = draws
        self._wanted: tuple[Resources, Resources, int] | None = None
        self._granted: tuple[Resources, Resources, int] | None = None
        self._answer: msg.Answered
        """The answer by which `_granted` was granted."""
        self._error: BudgetExceeded | None = None
        self._kept = False

    def update(self, left: msg.Shared) -> None:
        """Take over what ancestors with limits have left."""
        if self._draws:
            used = self._ancestors.spent + self._ancestors.kept
            self._ancestors.limit = Resources(UNLIMITED, UNLIMITED, *left) + used.shared()

    def try_reserve(
        self,
        account: Account,
        amount: Resources,
        *,
        keep: Resources = ZERO,
        overdraft: Overdraft | None = None,
    ) -> Reservation | None:
        if not self._draws:
            return super().try_reserve(account, amount, keep=keep, overdraft=overdraft)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        more = 0 if overdraft is None else overdraft.amount.tokens
        wanted = amount, keep, more
        granted, self._granted = self._granted, None
        reservation: Reservation | None = None
        if wanted == granted:
            self._kept = keep != ZERO
            reservation = account.reserve(amount, keep=keep)
        if granted is not None:
            # In the answer, this reservation and what it keeps are subtracted already.
            self._link.learn(self._answer)
        self._wanted = wanted
        return reservation

    async def wait_for_release(self, account: Account) -> None:
        """Have the run reserve what `try_reserve` was asked for."""
        assert self._wanted is not None, "a reservation was tried"
        amount, keep, more = self._wanted
        draw = msg.Draw(amount, keep, more, account.remaining_shared())
        self._answer = answer = await self._link.request(draw)
        drawn: msg.Drawn = self._link.value(answer, msg.Drawn)
        if drawn.granted:
            self._granted = self._wanted
        else:
            self._link.learn(answer)
        if drawn.refused:
            self._error = BudgetExceeded(drawn.refused, limit=drawn.limit)

    def notify_released(self) -> None:
        if not self._draws:
            return
        kept, self._kept = self._kept, self._account.own_kept != ZERO
        self._link.report(msg.Released(kept=not self._kept and kept))
