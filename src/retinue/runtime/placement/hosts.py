"""The hosts of a runtime: starts them, passes on their reports, and replaces lost ones."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import NamedTuple, Protocol, assert_never

from retinue.domain.events import AgentPlaced
from retinue.errors import RunError
from retinue.ports.clock import Clock
from retinue.ports.endpoint_slots import LendSlots, LentSlots
from retinue.runtime.agent.agent import Agent
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.placement.host import Host, HostLost
from retinue.runtime.placement.host_choice import UNLIMITED, Room
from retinue.runtime.placement.messages import (
    Acknowledged,
    AgentReport,
    Alive,
    FreeSlot,
    Heard,
    HostReport,
    Item,
    LimitsSaid,
    SlotAnswered,
    TakeSlot,
)

SILENT_S = 10.0
"""A host that reports nothing for so long is lost: it reports that it lives every second."""
RESTART_S, MAX_RESTART_S = 1.0, 60.0

StartHost = Callable[[], AbstractAsyncContextManager[Host]]
"""Starts a host, which has ended with the context. Raises HostLost if it cannot be started."""


class Placed(Protocol):
    """An agent whose attempts run on hosts, as they see it."""

    @property
    def agent(self) -> Agent: ...

    @property
    def role(self) -> str: ...

    @property
    def waits_for_others(self) -> bool:
        """Whether it waits for children or for the user, and does not work on its host."""
        ...

    def why_not(self, host: Host) -> str:
        """Why `host` cannot run the agent; "" if it can."""
        ...

    def handle(self, number: int, report: AgentReport) -> None:
        """Handle a report of the current placement. Raises HostLost."""
        ...

    def lost(self, error: Exception) -> None:
        """End this placement: its host was lost, or what it reports cannot be recorded."""
        ...


class _Seat:
    """One host at a time: when it is lost, another one is started."""

    def __init__(self, start: StartHost) -> None:
        self.start = start
        self.host: Host | None = None
        self.problem = ""
        """Why there is no host."""
        self.tried = asyncio.Event()
        self.serials: set[int] = set()


class Placement(NamedTuple):
    """Where an agent was placed, and the serial number of the placement."""

    host: Host
    serial: int


class NoSuchHost(RunError):
    """No host has what an agent needs, and none is going to, or the agent was stopped before."""


class Hosts:
    """The hosts of a runtime, and which agents they run. `lend` gives them slots of endpoints."""

    def __init__(
        self,
        starts: Sequence[StartHost],
        clock: Clock,
        lend: LendSlots,
        room: Room = UNLIMITED,
    ) -> None:
        self._seats = [_Seat(start) for start in starts]
        self._clock = clock
        self._lend = lend
        self._room = room
        self._placed: dict[int, Placed] = {}
        self._serials = itertools.count(1)
        self._changed = asyncio.Event()
        self.refused = 0
        """Number of reports that came from an earlier placement of their agent."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Hosts]:
        """Start the hosts. Raises RunError if none can be started."""
        async with TaskGroup() as tasks:
            keeping = [tasks.create_task(self._keep(seat)) for seat in self._seats]
            try:
                for seat in self._seats:
                    await seat.tried.wait()
                if not self.live:
                    problems = dict.fromkeys(seat.problem for seat in self._seats)
                    raise RunError(f"No host could be started: {'; '.join(problems)}.")
                yield self
            finally:
                for task in keeping:
                    task.cancel()

    @property
    def live(self) -> list[Host]:
        return [seat.host for seat in self._seats if seat.host is not None]

    # Agents

    async def take(self, placed: Placed) -> Placement:
        """Choose the host with the fewest agents, of those that can run it and have room.

        Waits if there is none. `leave` ends the placement. Raises NoSuchHost.
        """
        agent, seats, told = placed.agent, self._seats, ""
        while not (free := [seat for seat in seats if not self._why_not_now(seat, placed)]):
            if (stopped := agent.inherited_stop_reason) is not None:
                raise NoSuchHost(stopped)
            if why := self._why_never(placed):
                raise NoSuchHost(f"no host has what the role {placed.role} needs: {why}")
            problems = "; ".join(dict.fromkeys(self._why_not_now(one, placed) for one in seats))
            if problems != told:
                told, number = problems, agent.state.placement
                agent.record(AgentPlaced(placement=number, reason=f"waits for a host: {problems}"))
            with agent.waiting():
                self._changed.clear()
                await self._changed.wait()
        seat = min(free, key=lambda seat: len(seat.serials))
        assert seat.host is not None, "it is live"
        serial = next(self._serials)
        seat.serials.add(serial)
        self._placed[serial] = placed
        return Placement(seat.host, serial)

    def leave(self, serial: int) -> None:
        """End a placement: what is still reported of it is refused."""
        del self._placed[serial]
        for seat in self._seats:
            seat.serials.discard(serial)
        self._changed.set()

    def look_again(self) -> None:
        """An agent has begun to wait for others, which takes no room, or an agent was stopped."""
        self._changed.set()

    def _why_not_now(self, seat: _Seat, placed: Placed) -> str:
        """Why no host of the seat can run the agent now; "" if it can."""
        if seat.host is None:
            return seat.problem
        placements = (self._placed[serial] for serial in seat.serials)
        at_work = [one.role for one in placements if not one.waits_for_others]
        return (
            placed.why_not(seat.host)
            or self._room.why_never(placed.role, seat.host)
            or self._room.why_not_now(placed.role, seat.host, at_work)
        )

    def _why_never(self, placed: Placed) -> str:
        """Why no host is going to have the resources for the agent; "" if one may."""
        if placed.role not in self._room.needs or len(self.live) < len(self._seats):
            return ""
        whys = [
            placed.why_not(host) or self._room.why_never(placed.role, host) for host in self.live
        ]
        return "; ".join(dict.fromkeys(whys)) if all(whys) else ""

    # Hosts

    async def _keep(self, seat: _Seat) -> None:
        failures = 0
        while True:
            failures += 1
            try:
                async with seat.start() as host:
                    seat.host, failures = host, 0
                    self._set_changed(seat)
                    slots = self._lend(partial(_answer_slot, host))
                    try:
                        await self._follow(seat, host, slots)
                    except HostLost as error:
                        # Agents may ask for a host while this one is ended.
                        seat.problem = str(error)
                        raise
                    finally:
                        seat.host = None
                        # Nothing of the host may run when another one takes over.
                        try:
                            await host.end()
                        finally:
                            slots.close()
            except (HostLost, OSError) as error:
                lost = error
                if isinstance(error, OSError):
                    lost = HostLost(f"a host cannot be started here: {error.strerror or error}")
                seat.problem = str(lost)  # Also for a host that did not start.
                for serial in list(seat.serials):
                    self._placed[serial].lost(lost)
                self._set_changed(seat)
            await self._clock.sleep(min(RESTART_S * 2**failures, MAX_RESTART_S))

    def _set_changed(self, seat: _Seat) -> None:
        seat.tried.set()
        self._changed.set()

    async def _follow(self, seat: _Seat, host: Host, slots: LentSlots) -> None:
        """Record what a host reports, and acknowledge it. Raises HostLost."""
        after, unacknowledged = 0, _Unacknowledged()
        async with TaskGroup() as tasks:
            acknowledging = tasks.create_task(self._acknowledge(host, unacknowledged))
            try:
                while True:
                    try:
                        async with self._clock.timeout(SILENT_S):
                            items = await host.poll(after)
                    except TimeoutError:
                        why = f"{host.name} has not answered for {SILENT_S:g} s"
                        raise HostLost(why) from None
                    if not items:
                        raise HostLost(f"{host.name} reports nothing")
                    after = items[-1].number
                    unacknowledged.add(after, self._handle(seat, host, items, slots))
            finally:
                acknowledging.cancel()

    async def _acknowledge(self, host: Host, unacknowledged: _Unacknowledged) -> None:
        """Acknowledge what is durable. A slow store does not keep anybody from reading reports."""
        while True:
            upto, reporting = await unacknowledged.take()
            for placed in reporting:
                try:
                    await placed.agent.durable()
                except Exception as error:
                    self._cannot_record(placed.agent.contract.parent.run_id, error)
            host.send(Acknowledged(upto))

    def _cannot_record(self, run_id: str, error: Exception) -> None:
        """End the placements of a run: no work may continue that is not on record."""
        for placed in list(self._placed.values()):
            if placed.agent.contract.parent.run_id == run_id:
                placed.lost(error)

    def _handle(
        self, seat: _Seat, host: Host, items: Sequence[Item], slots: LentSlots
    ) -> dict[str, Placed]:
        """Handle reports in one step of the loop. Return an agent of each run that has reported.

        Raises HostLost for a report that the host may not make.
        """
        reporting: dict[str, Placed] = {}
        for item in items:
            if isinstance(item.report, HostReport):
                try:
                    self._handle_of_host(seat, host, item.number, item.report, slots)
                except Exception as error:
                    why = f"{host.name} reports what makes no sense: {error!r}"
                    raise HostLost(why) from error
            elif item.serial not in seat.serials:
                self.refused += 1
            else:
                placed = self._placed[item.serial]
                try:
                    placed.handle(item.number, item.report)
                except HostLost:
                    raise
                except Exception as error:
                    placed.lost(error)
                reporting[placed.agent.contract.parent.run_id] = placed
        return reporting

    def _handle_of_host(
        self, seat: _Seat, host: Host, number: int, report: HostReport, slots: LentSlots
    ) -> None:
        match report:
            case TakeSlot():
                slots.take(report.slot, report.wanted)
            case FreeSlot():
                slots.free(report.slot, report.use)
            case LimitsSaid():
                slots.report_limits(report.model, report.limits)
            case Alive():
                host.send(Heard(number))
                for serial in seat.serials.intersection(report.waiting):
                    self._placed[serial].agent.touch()
            case _:
                assert_never(report)


def _answer_slot(host: Host, slot: int, index: int, error: str) -> None:
    host.send(SlotAnswered(slot, index, error))


class _Unacknowledged:
    """Reports that were handled, and may not be durable yet."""

    def __init__(self) -> None:
        self._upto = 0
        self._reporting: dict[str, Placed] = {}
        self._added = asyncio.Event()

    def add(self, upto: int, reporting: dict[str, Placed]) -> None:
        """Add the reports up to a number, with an agent of each run that they are about."""
        self._upto = upto
        self._reporting.update(reporting)
        self._added.set()

    async def take(self) -> tuple[int, list[Placed]]:
        """Wait for reports, and take all."""
        await self._added.wait()
        self._added.clear()
        reporting, self._reporting = self._reporting, {}
        return self._upto, list(reporting.values())
