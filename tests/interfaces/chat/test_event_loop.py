"""The loop of the chat: agents are run in slices, and whoever draws goes between them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import Context, ContextVar
from time import perf_counter
from typing import Any

import pytest

from retinue.interfaces.chat.event_loop import (
    BACKGROUND_SLICE_S,
    UiPriorityLoop,
    background_context,
)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=UiPriorityLoop) as runner:
        yield runner


def use_up_a_slice() -> None:
    end = perf_counter() + BACKGROUND_SLICE_S
    while perf_counter() < end:
        pass


def test_a_key_waits_for_one_slice_and_not_for_all_agents(runner: asyncio.Runner) -> None:
    seen: list[str] = []

    async def agent(name: str) -> None:
        use_up_a_slice()
        seen.append(name)
        if name == "a0":
            asyncio.get_running_loop().call_soon_threadsafe(seen.append, "key")

    async def main() -> None:
        async with asyncio.TaskGroup() as agents:
            for number in range(3):
                agents.create_task(agent(f"a{number}"), context=background_context())

    runner.run(main())

    assert seen == ["a0", "key", "a1", "a2"]


def test_what_an_agent_begins_lets_others_go_first_too(runner: asyncio.Runner) -> None:
    seen: list[str] = []

    async def child(name: str) -> None:
        use_up_a_slice()
        seen.append(name)

    async def parent() -> None:
        asyncio.get_running_loop().call_soon_threadsafe(seen.append, "key")
        await asyncio.gather(child("c0"), child("c1"))

    async def main() -> None:
        await asyncio.create_task(parent(), context=background_context())

    runner.run(main())

    # The first of them still has the slice of its parent.
    assert seen == ["c0", "key", "c1"]


def test_a_task_keeps_its_context(runner: asyncio.Runner) -> None:
    noted: ContextVar[str] = ContextVar("noted", default="nothing")

    async def main() -> str:
        noted.set("something")
        await asyncio.sleep(0)
        return noted.get()

    # An empty one, as that of a program's first task.
    assert runner.run(main(), context=Context()) == "something"


def test_what_is_taken_back_is_not_run(runner: asyncio.Runner) -> None:
    seen: list[str] = []

    async def main() -> None:
        loop, context = asyncio.get_running_loop(), background_context()
        loop.call_soon(seen.append, "kept", context=context)
        loop.call_soon(seen.append, "taken back", context=context).cancel()
        done = asyncio.Event()
        loop.call_soon(done.set, context=context)
        await done.wait()

    runner.run(main())

    assert seen == ["kept"]


def test_an_error_is_told_and_the_others_go_on(runner: asyncio.Runner) -> None:
    told: list[dict[str, Any]] = []
    error = ValueError("broken")

    def broken() -> None:
        raise error

    async def main() -> None:
        loop, context = asyncio.get_running_loop(), background_context()
        loop.set_exception_handler(lambda _, about: told.append(about))
        loop.call_soon(broken, context=context)
        done = asyncio.Event()
        loop.call_soon(done.set, context=context)
        await done.wait()

    runner.run(main())

    assert [about["exception"] for about in told] == [error]


def test_it_can_be_left_by_an_exit(runner: asyncio.Runner) -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def main() -> None:
        asyncio.get_running_loop().call_soon(leave, context=background_context())
        await asyncio.Event().wait()

    with pytest.raises(SystemExit):
        runner.run(main())
