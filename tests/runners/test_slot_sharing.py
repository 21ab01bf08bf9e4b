"""Hosts and their run share the slots of an endpoint, under any order of events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import pytest
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
from retinue.errors import ModelError, Overloaded, ProviderError, RateLimited
from retinue.models.routing.endpoint_queue import EndpointQueue
from retinue.models.routing.lent_slots import HostSlots
from retinue.models.routing.pool import Pool, PoolMember
from retinue.ports.endpoint_slots import RateLimits, RateWindow, SlotRequest
from retinue.runtime.placement.hosted_slots import HostedSlots
from retinue.runtime.placement.messages import FreeSlot, LimitsSaid, SlotAnswered, TakeSlot
from retinue.testing.clock import FakeClock

ADDRESS, NAME = "http://host", "m"
REPLY = Reply(message=AssistantMessage("Yes."), usage=Usage(10, 0, 5), finish=Finish.STOP)


class FakeModel:
    """A model whose every reply waits until the test says what becomes of it."""

    name = NAME

    def __init__(self) -> None:
        self.open: list[asyncio.Future[Reply]] = []

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        outcome: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.open.append(outcome)
        try:
            return await outcome
        finally:
            self.open.remove(outcome)

    async def aclose(self) -> None:
        pass


class Asker:
    """A process with a queue of its own: the run, or a host."""

    def __init__(self, queue: EndpointQueue) -> None:
        self.queue = queue
        self.model = FakeModel()
        self.endpoint_model = queue.model(NAME)
        self.pool = Pool(NAME, [PoolMember(NAME, self.model, self.endpoint_model)])
        self.tasks: list[asyncio.Task[Reply]] = []

    async def ask(self, number: int) -> Reply:
        """As an agent does it: a request that the queue waits out is made again at once."""
        request = QueuedRequest(
            messages=(UserMessage("?"),), queue_key="run", asked_at=float(number)
        )
        while True:
            try:
                return await self.pool.reply(request)
            except ModelError as error:
                if not error.held:
                    raise

    @property
    def unfinished(self) -> list[asyncio.Task[Reply]]:
        return [task for task in self.tasks if not task.done()]


class FakeHost(Asker):
    """A host whose messages arrive when the test says so."""

    def __init__(self, run: Asker, clock: FakeClock) -> None:
        super().__init__(EndpointQueue(ADDRESS, patience_s=1e9, timers=clock))
        self.to_run: deque[TakeSlot | FreeSlot | LimitsSaid] = deque()
        self.to_host: deque[SlotAnswered] = deque()
        self.source = HostedSlots(self.to_run.append)
        self.queue.take_slots_from(self.source)
        self.lent = HostSlots(
            lambda name: run.endpoint_model if name == NAME else None,
            lambda *answer: self.to_host.append(SlotAnswered(*answer)),
        )

    def pass_to_run(self) -> None:
        match self.to_run.popleft():
            case TakeSlot(slot, wanted):
                self.lent.take(slot, wanted)
            case FreeSlot(slot, use):
                self.lent.free(slot, use)
            case LimitsSaid(model, limits):
                self.lent.report_limits(model, limits)

    def pass_to_host(self) -> None:
        self.source.answered(self.to_host.popleft())


class Sharing(RuleBasedStateMachine):
    """A run, three hosts, and an endpoint with two slots: hosts are more than slots."""

    slots: int | None = 2

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        queue = EndpointQueue(ADDRESS, slots=self.slots, patience_s=1e9, timers=self.clock)
        self.owner = Asker(queue)
        self.hosts = [self.new_host() for _ in range(3)]
        self.numbers = 0

    def new_host(self) -> FakeHost:
        return FakeHost(self.owner, self.clock)

    @property
    def askers(self) -> list[Asker]:
        return [self.owner, *self.hosts]

    # What the machine does

    @rule(who=st.integers(0, 3))
    def ask(self, who: int) -> None:
        self.numbers += 1
        asker = self.askers[who]
        asker.tasks.append(self.loop.create_task(asker.ask(self.numbers)))
        self.settle()

    @precondition(lambda self: any(host.to_run for host in self.hosts))
    @rule(data=st.data())
    def message_arrives_at_the_run(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([host for host in self.hosts if host.to_run])).pass_to_run()
        self.settle()

    @precondition(lambda self: any(host.to_host for host in self.hosts))
    @rule(data=st.data())
    def message_arrives_at_a_host(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([host for host in self.hosts if host.to_host])).pass_to_host()
        self.settle()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.open)).set_result(REPLY)
        self.settle()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), rest_s=st.sampled_from([None, 1.0, 20.0]))
    def refuse(self, data: st.DataObject, rest_s: float | None) -> None:
        outcome = data.draw(st.sampled_from(self.open))
        outcome.set_exception(RateLimited("Not now.", retry_after_s=rest_s))
        self.settle()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.open)).set_exception(ProviderError("Broken."))
        self.settle()

    @precondition(lambda self: any(asker.unfinished for asker in self.askers))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        tasks = [task for asker in self.askers for task in asker.unfinished]
        data.draw(st.sampled_from(tasks)).cancel()
        self.settle()

    @rule(which=st.integers(0, 2), unread=st.booleans())
    def lose_host(self, which: int, unread: bool) -> None:
        """A host is killed. What it has sent may arrive, and its successor starts anew."""
        lost = self.hosts[which]
        while lost.to_run and not unread:
            lost.pass_to_run()
        for task in lost.unfinished:
            task.cancel()
        self.settle()
        lost.lent.close()
        self.hosts[which] = self.new_host()
        self.settle()

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.let_pass(seconds)

    # What must hold

    @invariant()
    def never_more_than_the_slots(self) -> None:
        in_use = sum(len(asker.model.open) for asker in self.askers)
        assert in_use <= self.owner.queue.in_flight
        if self.slots is not None:
            assert self.owner.queue.in_flight <= self.slots

    def teardown(self) -> None:
        try:
            for _ in range(400):
                if not any(asker.unfinished for asker in self.askers):
                    break
                self.deliver_all()
                for outcome in self.open:
                    outcome.set_result(REPLY)
                self.settle()
                self.let_pass(1.0)
            assert not any(asker.unfinished for asker in self.askers), "somebody had no turn"
            self.deliver_all()
            assert all(asker.queue.in_flight == 0 for asker in self.askers)
            assert all(asker.queue.waiting == 0 for asker in self.askers)
        finally:
            for asker in self.askers:
                for task in asker.unfinished:
                    task.cancel()
            self.settle()
            self.loop.close()

    # Small things

    @property
    def open(self) -> list[asyncio.Future[Reply]]:
        return [one for asker in self.askers for one in asker.model.open if not one.done()]

    def deliver_all(self) -> None:
        while any(host.to_run or host.to_host for host in self.hosts):
            for host in self.hosts:
                while host.to_run:
                    host.pass_to_run()
                while host.to_host:
                    host.pass_to_host()
            self.settle()

    def let_pass(self, seconds: float) -> None:
        async def advance() -> None:
            self.clock.advance(seconds)

        self.loop.run_until_complete(advance())
        self.settle()

    def settle(self) -> None:
        async def some() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        self.loop.run_until_complete(some())
        for asker in self.askers:
            for task in asker.tasks:
                if task.done() and not task.cancelled():
                    task.exception()  # Seen.


class SharingAnUnknownNumber(Sharing):
    slots = None


for machine in (Sharing, SharingAnUnknownNumber):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestSharing = Sharing.TestCase
TestSharingAnUnknownNumber = SharingAnUnknownNumber.TestCase


class Cluster:
    """A run and its hosts, whose messages arrive at once."""

    def __init__(self, *, slots: int, hosts: int = 2, patience_s: float = 120.0) -> None:
        self.clock = FakeClock()
        queue = EndpointQueue(ADDRESS, slots=slots, patience_s=patience_s, timers=self.clock)
        self.owner = Asker(queue)
        self.hosts = [FakeHost(self.owner, self.clock) for _ in range(hosts)]
        self.numbers = 0

    async def ask(self, asker: Asker) -> asyncio.Task[Reply]:
        self.numbers += 1
        task = asyncio.create_task(asker.ask(self.numbers))
        asker.tasks.append(task)
        await self.settle()
        return task

    async def answer(self, asker: Asker) -> None:
        asker.model.open[0].set_result(REPLY)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
            for host in self.hosts:
                while host.to_run:
                    host.pass_to_run()
                while host.to_host:
                    host.pass_to_host()

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.settle()

    @property
    def in_use(self) -> list[int]:
        """How many slots the run uses, and each host."""
        return [len(asker.model.open) for asker in (self.owner, *self.hosts)]


async def test_slots_go_where_agents_wait_when_calls_end() -> None:
    cluster = Cluster(slots=4)
    first, second = cluster.hosts
    for host in (first, first, first, second):
        await cluster.ask(host)
    assert cluster.in_use == [0, 3, 1]
    for asker in (second, second, second, cluster.owner):
        await cluster.ask(asker)
    assert cluster.in_use == [0, 3, 1], "a slot is taken back only when its call has ended"
    for _ in range(3):
        await cluster.answer(first)
    assert cluster.in_use == [0, 0, 4]
    await cluster.answer(second)
    assert cluster.in_use == [1, 0, 3], "the run itself has its turn"


async def test_busy_host_leaves_turns_to_others() -> None:
    cluster = Cluster(slots=1)
    busy, other = cluster.hosts
    for _ in range(5):
        await cluster.ask(busy)
    await cluster.ask(other)
    for _ in range(5):
        await cluster.ask(busy)
    for _ in range(5):
        await cluster.answer(busy)
    assert cluster.in_use == [0, 0, 1], "the oldest request goes first, whichever host has it"


async def test_refusal_that_one_host_sees_holds_for_all() -> None:
    cluster = Cluster(slots=4)
    first, second = cluster.hosts
    await cluster.ask(first)
    first.model.open[0].set_exception(RateLimited("Not now.", retry_after_s=20.0))
    await cluster.settle()
    for asker in (second, cluster.owner):
        await cluster.ask(asker)
    assert cluster.in_use == [0, 0, 0]
    await cluster.pass_time(19.0)
    assert cluster.in_use == [0, 0, 0]
    await cluster.pass_time(1.5)
    assert sum(cluster.in_use) > 0
    while sum(cluster.in_use):
        for asker in (cluster.owner, *cluster.hosts):
            if asker.model.open:
                await cluster.answer(asker)
    assert not any(asker.unfinished for asker in (cluster.owner, *cluster.hosts))


async def test_rest_that_is_too_long_is_an_error_on_every_host() -> None:
    cluster = Cluster(slots=4, patience_s=60.0)
    first, second = cluster.hosts
    await cluster.ask(first)
    first.model.open[0].set_exception(RateLimited("Come back tomorrow.", retry_after_s=3_600.0))
    await cluster.settle()
    task = await cluster.ask(second)
    with pytest.raises(Overloaded) as caught:
        await task
    assert str(caught.value).startswith(
        "http://host accepts no requests for another 3,600 s: Come back tomorrow. Try again then,"
    )


async def test_limits_per_minute_hold_for_all_hosts_together() -> None:
    cluster = Cluster(slots=8)
    first, second = cluster.hosts
    await cluster.ask(first)
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "58s",
    }
    first.endpoint_model.on_headers(200, headers)
    await cluster.answer(first)
    for asker in (first, second, second, cluster.owner):
        await cluster.ask(asker)
    assert sum(cluster.in_use) == 2, "that is what is left of the minute"
    await cluster.pass_time(1.1)
    assert sum(cluster.in_use) == 3, "it fills up by one a second"


async def test_pool_asks_the_endpoint_that_has_a_slot_for_the_run() -> None:
    """Hosts do not see how busy an endpoint is with the others' requests."""
    clock = FakeClock()
    queues = [EndpointQueue(f"http://{n}", slots=1, timers=clock) for n in range(2)]
    owners = [queue.model(f"m{n}") for n, queue in enumerate(queues)]
    taken = owners[0].queue.send(owners[0])
    model, answers = FakeModel(), list[SlotAnswered]()
    lent = HostSlots(
        {one.name: one for one in owners}.get, lambda *answer: answers.append(SlotAnswered(*answer))
    )
    mine = [EndpointQueue(f"http://{n}", timers=clock) for n in range(2)]
    members = [
        PoolMember(f"m{n}", model, queue.model(f"m{n}"), weight=1.0) for n, queue in enumerate(mine)
    ]
    wanted: deque[TakeSlot | FreeSlot | LimitsSaid] = deque()
    source = HostedSlots(wanted.append)
    for queue in mine:
        queue.take_slots_from(source)
    for in_order in (False, True):
        pool = Pool("pool", members, in_order=in_order)
        task = asyncio.create_task(pool.reply(Request(messages=(UserMessage("?"),))))
        await asyncio.sleep(0)
        message = wanted.popleft()
        assert isinstance(message, TakeSlot)
        assert message.wanted.models == ("m0", "m1")
        lent.take(message.slot, message.wanted)
        source.answered(answers.pop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [queue.in_flight for queue in mine] == [0, 1]
        model.open[0].set_result(REPLY)
        assert (await task).model == "m1"
        freed = wanted.popleft()
        assert isinstance(freed, FreeSlot)
        lent.free(freed.slot, freed.use)
    taken.cancel()
    assert [queue.in_flight for queue in (*queues, *mine)] == [0, 0, 0, 0]


def test_model_that_the_run_does_not_have_is_an_error() -> None:
    answers: list[tuple[int, int, str]] = []
    lent = HostSlots(lambda name: None, lambda *answer: answers.append(answer))
    lent.take(1, SlotRequest(models=("m",), weights=(), queue_key="", waited_s=0.0))
    assert answers == [(1, 0, "ProviderError: The run has no model m.")]
    lent.report_limits("m", RateLimits(requests=RateWindow(1, 0, 60)))
    lent.close()
