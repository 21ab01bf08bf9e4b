"""The queue under any order of events: requests that are made, answered, refused,
dropped, cancelled, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    QueuedRequest,
    Reply,
    Request,
    Usage,
    UserMessage,
)
from retinue.errors import ModelError, ProviderError, RateLimited, Unreachable
from retinue.models.routing.endpoint_queue import EndpointQueue
from retinue.models.routing.pool import Pool, PoolMember
from retinue.testing.clock import FakeClock

LANES = ("red", "green", "blue")
REPLY = Reply(message=AssistantMessage("Yes."), usage=Usage(10, 0, 5), finish=Finish.STOP)


class FakeEndpoint:
    """A model whose every reply waits until the test says what becomes of it."""

    def __init__(self, name: str, on_ask: Callable[[QueuedRequest], None]) -> None:
        self.name = name
        self.open: dict[float, asyncio.Future[Reply]] = {}
        self._on_ask = on_ask

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        assert isinstance(request, QueuedRequest)
        self._on_ask(request)
        outcome: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.open[request.asked_at] = outcome
        try:
            return await outcome
        finally:
            del self.open[request.asked_at]

    async def aclose(self) -> None:
        pass


class Waiting(RuleBasedStateMachine):
    """One endpoint, several runs."""

    slots: int | None = 3
    endpoints = 1

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.queues = [
            EndpointQueue(f"http://host{n}", slots=self.slots, patience_s=1e9, timers=self.clock)
            for n in range(self.endpoints)
        ]
        self.desks = [FakeEndpoint(f"m{n}", self.granted) for n in range(self.endpoints)]
        self.pool = Pool(
            "pool",
            [
                PoolMember(d.name, d, g.model(d.name))
                for d, g in zip(self.desks, self.queues, strict=True)
            ],
        )
        self.numbers = 0
        self.lane_of: dict[float, str] = {}
        self.tasks: dict[float, asyncio.Task[Reply]] = {}
        self.waited: set[float] = set()
        """Who was waiting when the rule began."""
        self.passed_over: dict[str, set[str]] = {lane: set() for lane in LANES}
        self.wasted: str | None = None
        """The lane of somebody who was cancelled, maybe in its turn, which nobody else got then. It
        may be passed over once more before its next."""
        self.wrong: list[str] = []

    # What the machine does

    async def asking(self, request: Request) -> Reply:
        """As an agent does it: a request that the queue waits out is made again at once."""
        while True:
            try:
                return await self.pool.reply(request)
            except ModelError as error:
                if not error.held:
                    raise

    @rule(lane=st.sampled_from(LANES))
    def ask(self, lane: str) -> None:
        self.begin()
        self.numbers += 1
        number = float(self.numbers)
        self.lane_of[number] = lane
        request = QueuedRequest(messages=(UserMessage("?"),), queue_key=lane, asked_at=number)
        self.tasks[number] = self.loop.create_task(self.asking(request))
        self.settle()

    @precondition(lambda self: any(endpoint.open for endpoint in self.desks))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.begin()
        self.pick(data).set_result(REPLY)
        self.settle()

    @precondition(lambda self: any(endpoint.open for endpoint in self.desks))
    @rule(data=st.data(), rest_s=st.sampled_from([None, 1.0, 20.0]))
    def refuse(self, data: st.DataObject, rest_s: float | None) -> None:
        self.begin()
        self.pick(data).set_exception(RateLimited("Not now.", retry_after_s=rest_s))
        self.settle()

    @precondition(lambda self: any(endpoint.open for endpoint in self.desks))
    @rule(data=st.data(), retryable=st.booleans())
    def fail(self, data: st.DataObject, retryable: bool) -> None:
        self.begin()
        self.pick(data).set_exception(ProviderError("Broken.", retryable=retryable))
        self.settle()

    @precondition(lambda self: any(endpoint.open for endpoint in self.desks))
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        self.begin()
        self.pick(data).set_exception(Unreachable("Nobody there.", retryable=True))
        self.settle()

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.begin()
        data.draw(st.sampled_from(self.unfinished)).cancel()
        self.settle()

    @precondition(lambda self: any(endpoint.open for endpoint in self.desks) and self.next_ones)
    @rule(data=st.data(), steps=st.integers(0, 3))
    def cancel_while_places_change_hands(self, data: st.DataObject, steps: int) -> None:
        self.begin()
        number = data.draw(st.sampled_from(self.next_ones))
        victim = self.tasks[number]
        self.wasted = self.lane_of[number]
        self.pick(data).set_result(REPLY)

        async def cancelling() -> None:
            for _ in range(steps):
                await asyncio.sleep(0)
            victim.cancel()

        # Before the loop runs, so that even the moment between being let in and knowing it is hit.
        assassin = self.loop.create_task(cancelling())
        self.settle()
        assert assassin.done()

    @rule(seconds=st.sampled_from([0.1, 1.0, 15.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.begin()
        self.let_pass(seconds)
        self.settle()

    # What must hold

    def granted(self, request: QueuedRequest) -> None:
        number, lane = request.asked_at, request.queue_key
        if self.endpoints > 1:
            return
        waiting = {n for n in self.waited if not self.tasks[n].done()} - self.in_flight
        older = {n for n in waiting if self.lane_of[n] == lane and n < number}
        if older:
            self.wrong.append(f"{number} went before {older} of the same lane")
        for other in LANES:
            if other == lane:
                self.passed_over[other] = set()
                if self.wasted == lane:
                    self.wasted = None
            elif any(self.lane_of[n] == other for n in waiting):
                if lane in self.passed_over[other] and other == self.wasted:
                    self.wasted, self.passed_over[other] = None, set()
                elif lane in self.passed_over[other]:
                    self.wrong.append(f"{lane} had two turns while {other} waited for one")
                self.passed_over[other].add(lane)

    @invariant()
    def lanes_take_turns_and_each_is_in_order(self) -> None:
        assert not self.wrong

    @invariant()
    def never_more_than_the_slots(self) -> None:
        for queue, endpoint in zip(self.queues, self.desks, strict=True):
            assert queue.in_flight == len(endpoint.open)
            if self.slots is not None:
                assert queue.in_flight <= self.slots

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        now = self.clock.time()
        waiting = [number for number in self.tasks if not self.tasks[number].done()]
        if not set(waiting) - self.in_flight:
            return
        assert self.clock.next_call_s is not None, "nobody will ever look again"
        for queue in self.queues:
            if queue.waiting:
                assert queue.in_flight >= queue.limit or queue.health.available_at > now

    def teardown(self) -> None:
        try:
            for _ in range(200):
                if not self.unfinished:
                    break
                for endpoint in self.desks:
                    for outcome in endpoint.open.values():
                        if not outcome.done():
                            outcome.set_result(REPLY)
                self.begin()
                self.settle()
                self.let_pass(0.5)
                self.settle()
            assert not self.unfinished, "somebody never had their turn"
            assert all(queue.in_flight == 0 and queue.waiting == 0 for queue in self.queues)
        finally:
            for task in self.unfinished:
                task.cancel()
            self.run(3)
            self.loop.close()

    # Small things

    @property
    def in_flight(self) -> set[float]:
        return {number for endpoint in self.desks for number in endpoint.open}

    @property
    def unfinished(self) -> list[asyncio.Task[Reply]]:
        return [task for task in self.tasks.values() if not task.done()]

    @property
    def next_ones(self) -> list[float]:
        """The first of every lane."""
        first: dict[str, float] = {}
        for number, task in self.tasks.items():
            if not task.done() and number not in self.in_flight:
                first.setdefault(self.lane_of[number], number)
        return list(first.values())

    def pick(self, data: st.DataObject) -> asyncio.Future[Reply]:
        open_ones = [o for endpoint in self.desks for o in endpoint.open.values() if not o.done()]
        return data.draw(st.sampled_from(open_ones))

    def begin(self) -> None:
        self.waited = {n for n, t in self.tasks.items() if not t.done()} - self.in_flight
        for lane in LANES:
            if not any(self.lane_of[n] == lane for n in self.waited):
                self.passed_over[lane] = set()
                if self.wasted == lane:
                    self.wasted = None

    def run(self, steps: int) -> None:
        async def some() -> None:
            for _ in range(steps):
                await asyncio.sleep(0)

        self.loop.run_until_complete(some())

    def let_pass(self, seconds: float) -> None:
        async def advance() -> None:
            self.clock.advance(seconds)

        self.loop.run_until_complete(advance())

    def settle(self) -> None:
        self.run(12)
        for task in self.tasks.values():
            if task.done() and not task.cancelled():
                task.exception()  # Seen.


class WaitingForAnUnknownNumber(Waiting):
    slots = None


class WaitingForAPool(Waiting):
    slots = 2
    endpoints = 2


for machine in (Waiting, WaitingForAnUnknownNumber, WaitingForAPool):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestWaiting = Waiting.TestCase
TestWaitingForAnUnknownNumber = WaitingForAnUnknownNumber.TestCase
TestWaitingForAPool = WaitingForAPool.TestCase
