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


def spend_a_slice() -> None:
    end = perf_counter() + BACKGROUND_SLICE_S
    while perf_counter() < end:
        pass


def test_key_waits_for_one_slice_only(runner: asyncio.Runner) -> None:
    seen: list[str] = []

    async def agent(name: str) -> None:
        spend_a_slice()
        seen.append(name)
        if name == "a0":
            asyncio.get_running_loop().call_soon_threadsafe(seen.append, "key")

    async def main() -> None:
        async with asyncio.TaskGroup() as agents:
            for number in range(3):
                agents.create_task(agent(f"a{number}"), context=background_context())

    runner.run(main())

    assert seen == ["a0", "key", "a1", "a2"]


def test_tasks_of_background_tasks_are_background_tasks(runner: asyncio.Runner) -> None:
    seen: list[str] = []

    async def child(name: str) -> None:
        spend_a_slice()
        seen.append(name)

    async def parent() -> None:
        asyncio.get_running_loop().call_soon_threadsafe(seen.append, "key")
        await asyncio.gather(child("c0"), child("c1"))

    async def main() -> None:
        await asyncio.create_task(parent(), context=background_context())

    runner.run(main())

    # The first child still runs in the slice of its parent.
    assert seen == ["c0", "key", "c1"]


def test_task_keeps_its_context(runner: asyncio.Runner) -> None:
    noted: ContextVar[str] = ContextVar("noted", default="nothing")

    async def main() -> str:
        noted.set("something")
        await asyncio.sleep(0)
        return noted.get()

    # An empty context, like that of the first task of a program.
    assert runner.run(main(), context=Context()) == "something"


def test_cancelled_callback_does_not_run(runner: asyncio.Runner) -> None:
    seen: list[str] = []

    async def main() -> None:
        loop, context = asyncio.get_running_loop(), background_context()
        loop.call_soon(seen.append, "kept", context=context)
        loop.call_soon(seen.append, "cancelled", context=context).cancel()
        done = asyncio.Event()
        loop.call_soon(done.set, context=context)
        await done.wait()

    runner.run(main())

    assert seen == ["kept"]


def test_error_is_reported_and_other_callbacks_run(runner: asyncio.Runner) -> None:
    reported: list[dict[str, Any]] = []
    error = ValueError("broken")

    def broken() -> None:
        raise error

    async def main() -> None:
        loop, context = asyncio.get_running_loop(), background_context()
        loop.set_exception_handler(lambda _, about: reported.append(about))
        loop.call_soon(broken, context=context)
        done = asyncio.Event()
        loop.call_soon(done.set, context=context)
        await done.wait()

    runner.run(main())

    assert [about["exception"] for about in reported] == [error]


def test_system_exit_ends_the_loop(runner: asyncio.Runner) -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def main() -> None:
        asyncio.get_running_loop().call_soon(leave, context=background_context())
        await asyncio.Event().wait()

    with pytest.raises(SystemExit):
        runner.run(main())
