"""Models that can stand in for each other: who is asked, and who takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from retinue.domain.messages import QueuedRequest, Reply, Request, UserMessage
from retinue.errors import (
    ContextOverflow,
    EndpointUnusable,
    ModelError,
    ProviderError,
    RateLimited,
    Unreachable,
)
from retinue.models.routing.endpoint_queue import EndpointQueue
from retinue.models.routing.pool import Pool, PoolMember
from retinue.models.scripted.model import ScriptedModel, ScriptedReply
from retinue.ports.model import Model
from retinue.testing.clock import FakeClock
from retinue.testing.model_contract import ModelContract
from tests.models.routing.fake_endpoint import REPLY, settled


def broke() -> ModelError:
    return ProviderError("The reply broke off.", retryable=True)


class TestAPoolOfOne(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Model]:
        model = ScriptedModel(steps, name="mine")
        yield Pool("mine", [PoolMember("mine", model, EndpointQueue("scripted").model("mine"))])


class Member:
    """A model of the pool. Replies wait until the test says what becomes of them."""

    def __init__(self, name: str, clock: FakeClock, slots: int) -> None:
        self.name = name
        self.queue = EndpointQueue(f"http://{name}", slots=slots, timers=clock)
        self.model = self.queue.model(name)
        self.open: dict[str, asyncio.Future[Reply]] = {}
        self.closed = False

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        outcome: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.open[request.messages[0].content] = outcome
        try:
            return await outcome
        finally:
            del self.open[request.messages[0].content]

    async def aclose(self) -> None:
        self.closed = True

    async def answers(self, name: str) -> None:
        self.model.on_headers(200, {})
        self.open[name].set_result(REPLY)
        await settled()

    async def fails(self, name: str, error: ModelError) -> None:
        self.open[name].set_exception(error)
        await settled()


class Trio:
    """Three members and who asks them."""

    def __init__(
        self,
        clock: FakeClock,
        *,
        in_order: bool = False,
        slots: int = 2,
        weights: tuple[float, ...] = (1.0, 1.0, 1.0),
    ) -> None:
        self.clock = clock
        self.a, self.b, self.c = self.members = [Member(n, clock, slots) for n in "abc"]
        members = [
            PoolMember(member.name, member, member.model, weight=weight)
            for member, weight in zip(self.members, weights, strict=True)
        ]
        self.pool = Pool("smart", members, in_order=in_order)
        self.tasks: dict[str, asyncio.Task[Reply]] = {}
        self.errors: list[ModelError] = []

    async def ask(self, *names: str, preferred_model: str = "") -> None:
        for name in names:
            request = QueuedRequest(
                messages=(UserMessage(name),),
                asked_at=float(len(self.tasks)),
                preferred_model=preferred_model,
            )
            self.tasks[name] = asyncio.create_task(self._asking(request))
            await settled()

    async def _asking(self, request: Request) -> Reply:
        while True:
            try:
                return await self.pool.reply(request)
            except ModelError as error:
                self.errors.append(error)
                if not error.held:
                    raise

    async def b_and_c_rest(self) -> None:
        await self.ask("b", "c")
        for member in (self.b, self.c):
            (name,) = member.open
            await member.fails(name, RateLimited("Not now.", retry_after_s=30.0))
        for name in ("b", "c"):
            self.tasks[name].cancel()
        await settled()

    @property
    def where(self) -> dict[str, list[str]]:
        return {member.name: list(member.open) for member in self.members if member.open}

    async def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await settled()


@pytest.fixture
async def trio() -> AsyncIterator[Callable[..., Trio]]:
    made: list[Trio] = []

    def make(**terms: object) -> Trio:
        made.append(Trio(FakeClock(), **terms))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        for task in one.tasks.values():
            task.cancel()
        await asyncio.gather(*one.tasks.values(), return_exceptions=True)
        assert all(member.queue.in_flight == 0 for member in one.members)
        assert all(member.queue.waiting == 0 for member in one.members)


Made = Callable[..., Trio]


async def test_least_loaded_member_is_asked(trio: Made) -> None:
    t = trio()
    await t.ask("1", "2", "3", "4")
    assert t.where == {"a": ["1", "4"], "b": ["2"], "c": ["3"]}


async def test_weights(trio: Made) -> None:
    t = trio(slots=9, weights=(4.0, 1.0, 1.0))
    await t.ask(*"123456")
    assert {name: len(asked) for name, asked in t.where.items()} == {"a": 4, "b": 1, "c": 1}


async def test_in_order_the_first_free_member_is_asked(trio: Made) -> None:
    t = trio(in_order=True)
    await t.ask("1", "2", "3")
    assert t.where == {"a": ["1", "2"], "b": ["3"]}


async def test_member_of_the_last_reply_is_preferred(trio: Made) -> None:
    t = trio()
    await t.ask("1", preferred_model="c")
    await t.ask("2", preferred_model="c")
    await t.ask("3", preferred_model="c")
    assert t.where == {"c": ["1", "2"], "a": ["3"]}, "while it has room"
    await t.ask("4", preferred_model="nobody")
    assert t.where["b"] == ["4"]


async def test_first_free_member_takes_a_waiting_request(trio: Made) -> None:
    t = trio(slots=1)
    await t.ask("1", "2", "3", "4", "5")
    assert t.where == {"a": ["1"], "b": ["2"], "c": ["3"]}
    t.clock.advance(2.0)
    await t.b.answers("2")
    assert t.where["b"] == ["4"]
    await t.c.answers("3")
    await t.b.answers("4")
    reply = await t.tasks["4"]
    assert (reply.model, reply.timing.queued_s) == ("b", 2.0)


async def test_reply_names_its_member(trio: Made) -> None:
    t = trio()
    await t.ask("1")
    await t.a.answers("1")
    assert (await t.tasks["1"]).model == "a"


@pytest.mark.parametrize(
    "error",
    [
        ProviderError("The reply broke off.", retryable=True),
        ProviderError("The API key was refused (401)."),
        ProviderError("The quota is used up."),
        RateLimited("Too many.", retry_after_s=60.0),
        Unreachable("Nobody there.", retryable=True),
    ],
    ids=str,
)
async def test_failed_request_goes_to_another_member_at_once(trio: Made, error: ModelError) -> None:
    t = trio(in_order=True)
    await t.ask("1")
    await t.a.fails("1", error)
    assert t.where == {"b": ["1"]}
    assert [(str(e), e.held, e.retry_after_s) for e in t.errors] == [(str(error), True, None)]
    await t.b.answers("1")
    assert (await t.tasks["1"]).model == "b"
    # The next one does not walk into it again.
    await t.ask("2")
    assert t.where == {"b": ["2"]}


async def test_context_overflow_is_not_retried_elsewhere(trio: Made) -> None:
    t = trio()
    await t.ask("1")
    await t.a.fails("1", ContextOverflow("Too large."))
    with pytest.raises(ContextOverflow):
        await t.tasks["1"]


async def test_error_is_not_held_if_no_member_is_available(trio: Made) -> None:
    t = trio(in_order=True)
    await t.ask("1")
    for member in t.members:
        await member.fails("1", broke())
    with pytest.raises(ProviderError):
        await t.tasks["1"]
    assert [error.held for error in t.errors] == [True, True, False]
    # Nobody is to be trusted, so the first is as good as any.
    await t.ask("2")
    assert t.where == {"a": ["2"]}


async def test_failed_member_is_avoided_longer_each_time(trio: Made) -> None:
    t = trio(in_order=True)
    await t.ask("1")
    await t.a.fails("1", broke())
    assert t.where == {"b": ["1"]}
    await t.wait(0.05)
    await t.ask("2")
    assert t.where == {"b": ["1"], "a": ["2"]}
    await t.a.fails("2", broke())
    await t.wait(0.1)
    await t.ask("3")
    assert "a" not in t.where
    await t.wait(0.1)
    await t.ask("4")
    await t.a.answers("4")
    await t.ask("5")
    assert t.where["a"] == ["5"], "and all of it, once it has answered"


async def test_concurrent_failures_count_once(trio: Made) -> None:
    t = trio(in_order=True, slots=9)
    await t.ask(*"12345678")
    for name in "12345678":
        await t.a.fails(name, broke())
    await t.wait(0.05)
    await t.ask("9")
    assert t.where["a"] == ["9"]


async def test_fatal_error_avoids_the_member_longer(trio: Made) -> None:
    t = trio(in_order=True)
    await t.ask("1")
    await t.a.fails("1", ProviderError("No such model (404)."))
    await t.wait(59.0)
    await t.ask("2")
    assert "a" not in t.where
    await t.wait(1.0)
    await t.ask("3")
    assert t.where["a"] == ["3"]


async def test_down_member_is_probed_by_one_request(trio: Made) -> None:
    t = trio(in_order=True, slots=4)
    await t.ask("0")
    await t.a.answers("0")
    for name in "123":
        await t.ask(name)
    for name in "123":
        await t.a.fails(name, Unreachable("Nobody there.", retryable=True))
    assert t.where == {"b": ["1", "2", "3"]}
    await t.wait(2.0)
    await t.ask("4", "5")
    assert t.where == {"a": ["4"], "b": ["1", "2", "3", "5"]}, "one, to see whether it is back"
    await t.a.answers("4")
    await t.ask("6", "7")
    assert t.where["a"] == ["6", "7"]


async def test_waiting_requests_use_a_member_that_comes_back(trio: Made) -> None:
    t = trio(in_order=True, slots=1)
    await t.ask("1", "2", "3")
    await t.a.fails("1", broke())
    assert t.where == {"b": ["2"], "c": ["3"]}
    await t.wait(0.05)
    assert t.where == {"a": ["1"], "b": ["2"], "c": ["3"]}


async def test_waiting_requests_leave_a_paused_member(trio: Made) -> None:
    t = trio(in_order=True, slots=1)
    await t.ask("1", "2", "3", "4")
    for member, name in ((t.a, "1"), (t.b, "2")):
        await member.fails(name, RateLimited("Not now.", retry_after_s=30.0))
    await t.c.answers("3")
    assert t.where == {"c": ["1"]}
    await t.wait(30.0)
    assert sorted(name for names in t.where.values() for name in names) == ["1", "2", "4"]


async def test_last_error_is_raised_if_all_members_are_given_up(trio: Made) -> None:
    t = trio(in_order=True, slots=1)
    await t.ask("1")
    for member in t.members:
        await member.fails("1", RateLimited("Not today.", retry_after_s=5000.0))
    with pytest.raises(ProviderError, match=r"http://c accepts no requests for another 5,000 s"):
        await t.tasks["1"]
    await t.ask("2")
    with pytest.raises(
        ProviderError, match=r"accepts no requests for another 5,000 s: Not today\."
    ):
        await t.tasks["2"]


REFUSED = "The key was refused (401)."


async def test_refused_key_waits_for_a_member_that_rests(trio: Made) -> None:
    """A wrong key of one member does not fail requests that another can serve a moment later."""
    t = trio(in_order=True, slots=1)
    await t.ask("1")
    await t.a.fails("1", EndpointUnusable(REFUSED))
    await t.b.fails("1", RateLimited("Not now.", retry_after_s=30.0))
    await t.c.fails("1", EndpointUnusable(REFUSED))
    assert [error.held for error in t.errors] == [True, True, True]
    assert t.where == {}, "the members with the wrong key are not asked again"
    await t.wait(30.0)
    assert t.where == {"b": ["1"]}
    await t.b.answers("1")
    assert (await t.tasks["1"]).model == "b"


async def test_refused_key_waits_for_a_member_that_failed_once(trio: Made) -> None:
    t = trio(in_order=True, slots=1)
    await t.ask("1")
    await t.a.fails("1", broke())
    await t.b.fails("1", EndpointUnusable(REFUSED))
    await t.c.fails("1", EndpointUnusable(REFUSED))
    assert t.where == {"a": ["1"]}
    await t.a.fails("1", broke())
    with pytest.raises(ProviderError, match="broke off"):
        await t.tasks["1"]
    assert [error.held for error in t.errors] == [True, True, True, False]


async def test_refused_keys_of_all_members_are_an_error(trio: Made) -> None:
    t = trio(in_order=True)
    await t.ask("1")
    for member in t.members:
        await member.fails("1", EndpointUnusable(REFUSED))
    with pytest.raises(EndpointUnusable):
        await t.tasks["1"]


async def test_failing_member_is_tried_while_another_rests(trio: Made) -> None:
    """Each time later, and without counting as a retry of the agent."""
    t = trio(in_order=True, slots=1)
    await t.ask("1")
    await t.b_and_c_rest()
    for pause_s in (0.05, 0.2, 0.8, 3.2):
        await t.a.fails("1", broke())
        await t.wait(pause_s * 0.9)
        assert t.where == {}
        await t.wait(pause_s * 0.1)
        assert t.where == {"a": ["1"]}
    await t.a.answers("1")
    assert (await t.tasks["1"]).model == "a"


async def test_avoided_member_is_asked_when_the_others_are_given_up(trio: Made) -> None:
    t = trio(in_order=True, slots=3)
    for member in (t.b, t.c):
        names = [f"{member.name}{n}" for n in range(3)]
        await t.ask(*names, preferred_model=member.name)
        for name in names:
            await member.fails(name, Unreachable("Nobody there.", retryable=True))
            t.tasks[name].cancel()
        await settled()
    await t.wait(0.5)
    for name in ("b", "c"):  # Probes that hang.
        await t.ask(name, preferred_model=name)
    await t.ask("1")
    for pause_s in (0.05, 0.2, 0.8, 3.2, 12.8, *[15.0] * 6):
        await t.a.fails("1", broke())
        await t.wait(pause_s)
    await t.a.fails("1", broke())
    assert t.where == {"b": ["b"], "c": ["c"]}
    await t.wait(13.0)
    assert t.where == {"a": ["1"], "b": ["b"], "c": ["c"]}, "before it is avoided no longer"


async def test_closing_closes_all_members(trio: Made) -> None:
    t = trio()
    await t.pool.aclose()
    assert all(member.closed for member in t.members)
    assert repr(t.pool) == "Pool('smart', a, b, c)"
    assert t.pool.name == "smart"
