"""Calls that a killed process has sent are charged when the run is resumed, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.domain.events import Event, ModelFailed, TurnStarted
from retinue.errors import RunSuspended, Unreachable
from retinue.models.scripted.model import ScriptedModel, Step, fail, hold, say
from retinue.project import open_journal
from retinue.runtime.delegation.task import Task
from retinue.runtime.history.audit import read_all
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Response, ResponseEnding, failing, streamed
from tests.durability.journal_cut import cut

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
LOST = "the process ended before the reply"


class Killed:
    """Collects the events of a run, and cuts its journal off at the first one that is `wanted`."""

    def __init__(self, wanted: Callable[[Event], bool]) -> None:
        self._wanted = wanted
        self._last: Event | None = None
        self._reached = asyncio.Event()

    def __call__(self, event: Event) -> None:
        if self._last is None and self._wanted(event):
            self._last = event
            self._reached.set()

    async def kill(
        self, work: asyncio.Task[object], first: Awaitable[object] | None = None
    ) -> None:
        await self._reached.wait()
        if first is not None:
            await first
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work

    def cut_journal(self, project: Path) -> str:
        assert self._last is not None
        cut(project / ".retinue" / "retinue.db", self._last.seq)
        return self._last.run_id


async def failures(project: Path, run_id: str) -> list[ModelFailed]:
    async with open_journal(project) as store:
        facts = [event.fact for event in await read_all(store, run_id)]
    return [fact for fact in facts if isinstance(fact, ModelFailed)]


def is_turn(event: Event) -> bool:
    return isinstance(event.fact, TurnStarted)


def script(*steps: Step) -> ScriptedModel:
    """A model whose place is told by the conversation, so that any process finds it."""
    return ScriptedModel({"": list(steps)}, strict=False)


async def test_call_that_was_under_way_is_charged_once(opened: Opened, project: Path) -> None:
    killed = Killed(is_turn)
    model = script(hold(asyncio.Event(), say("never")))
    async with opened(model=model, on_event=killed) as rt:
        await killed.kill(asyncio.create_task(rt.run("Look.")))
    run_id = killed.cut_journal(project)
    for model in (script(fail(Unreachable("Gone."))), script(say("Here."))):
        async with opened(model=model) as rt:
            with suppress(RunSuspended):
                await rt.resume(run_id)
    lost, refused = await failures(project, run_id)
    assert (lost.error, refused.error) == (LOST, "Gone.")
    assert lost.usage.estimated
    assert (lost.usage.billed_tokens > 0, refused.usage.billed_tokens) == (True, 0)
    assert lost.usage.tokens == 0, "the next try sends the same prompt"


async def test_queued_call_is_not_charged(
    opened: Opened, project: Path, environment: Environment
) -> None:
    """Three children share the only slot of their server: one request is sent, two wait."""
    answers = [Response(ending=ResponseEnding.HANG), *[streamed(say("Seen."))] * 3]
    async with ModelServer(answers) as server:
        settings = environment.home / ".config" / "retinue" / "config.toml"
        settings.parent.mkdir(parents=True)
        origin = server.base_url.removesuffix("/v1")
        settings.write_text(f'[servers."{origin}"]\nslots = 1\n')
        queued, seen = asyncio.Event(), list[Event]()

        def listen(event: Event) -> None:
            seen.append(event)
            if sum(each.type == "agent.subagent_attempt" for each in seen) == 3:
                queued.set()

        tasks = [Task(role="researcher", task=f"Look at {n}.") for n in range(3)]
        model = f"openai:m@{server.base_url}"
        async with opened(model=model, on_event=listen) as rt:
            work = asyncio.create_task(rt.fan_out(tasks))
            await server.received()
            await queued.wait()
            last = seen[-1]
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        assert len(server.requests) == 1
        cut(project / ".retinue" / "retinue.db", last.seq)
        async with opened(model=model) as rt:
            assert (await rt.resume(last.run_id)).ok
    assert [failed.error for failed in await failures(project, last.run_id)] == [LOST]


@pytest.mark.parametrize("sent", [True, False])
async def test_retry_that_was_under_way_is_charged(
    opened: Opened, project: Path, sent: bool
) -> None:
    """A retry is on record when it is sent, and not while the agent waits before it."""
    answers = [failing(500, "Not now."), *[Response(ending=ResponseEnding.HANG)] * sent]

    def is_retry(event: Event) -> bool:
        return isinstance(event.fact, TurnStarted) and event.fact.retry == 1

    def has_failed(event: Event) -> bool:
        return isinstance(event.fact, ModelFailed)

    async with ModelServer([*answers, streamed(say("Seen."))]) as server:
        killed = Killed(is_retry if sent else has_failed)
        model = f"openai:m@{server.base_url}"
        async with opened(model=model, on_event=killed) as rt:
            work = asyncio.create_task(rt.run("Look."))
            await killed.kill(work, server.received(len(answers)))
        run_id = killed.cut_journal(project)
        async with opened(model=model) as rt:
            assert (await rt.resume(run_id)).ok
    refused, *lost = await failures(project, run_id)
    assert refused.usage.billed_tokens == 0
    assert [failed.error for failed in lost] == [LOST] * sent
    assert all(failed.usage.billed_tokens for failed in lost)


async def test_prompts_of_broken_replies_are_charged(opened: Opened) -> None:
    """A server that has begun to answer has read the prompt; one that refuses has not."""
    whole = streamed(say("Here it is.").using(500, 5))
    answers = [
        Response(status=200, ending=ResponseEnding.DROP),
        failing(503, "Not now."),
        whole,
    ]
    seen: list[Event] = []
    async with (
        ModelServer(answers) as server,
        opened(model=f"openai:m@{server.base_url}", on_event=seen.append) as rt,
    ):
        assert (await rt.run("Look.")).ok
    charged = [e.fact.usage.billed_tokens > 0 for e in seen if isinstance(e.fact, ModelFailed)]
    assert charged == [True, False]
