from __future__ import annotations

import asyncio
import threading

import pytest

from retinue.threads import in_thread, in_thread_shielded


async def test_result_and_error_are_passed_on() -> None:
    for run in (in_thread, in_thread_shielded):
        assert await run(lambda: 3) == 3
        with pytest.raises(ZeroDivisionError):
            await run(lambda: 1 // 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_shielded_work_is_awaited_even_if_cancelled(fails: bool) -> None:
    started, go, wrote = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go.wait()
        wrote.set()
        if fails:
            raise OSError("disk full")

    task = asyncio.create_task(in_thread_shielded(work))
    await in_thread(started.wait)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert wrote.is_set()
