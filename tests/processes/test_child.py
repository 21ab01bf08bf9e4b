"""Child processes: what they are given, how they end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from subprocess import DEVNULL

import pytest

from retinue.processes.child import (
    Kill,
    OutputPipe,
    ProcessResult,
    ProcessSpec,
    child_process,
    finish_within,
    kill_group,
    run_process,
)


def shell(
    script: str, *, directory: str | None = None, kill_leftovers: Kill | None = None
) -> ProcessSpec:
    return ProcessSpec(
        argv=("/bin/sh", "-c", script),
        environment={"PATH": "/usr/bin:/bin"},
        directory=directory,
        kill_leftovers=kill_leftovers,
    )


async def run(spec: ProcessSpec) -> ProcessResult:
    return await run_process(spec, timeout_s=60.0, max_output_bytes=1000)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


async def test_output_and_errors_are_captured_in_order(tmp_path: Path) -> None:
    done = await run(shell("echo a; echo b >&2; pwd; exit 3", directory=str(tmp_path)))
    assert done == ProcessResult(exit_code=3, output=f"a\nb\n{tmp_path}\n")


async def test_program_that_does_not_exist_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        await run(ProcessSpec(argv=("/no/such/program",), environment={}))


async def test_process_and_its_children_are_killed_at_the_end_of_the_block(tmp_path: Path) -> None:
    with OutputPipe(lambda _: None) as pipe:
        sleeping = shell("sleep 100 & sleep 100")
        async with child_process(sleeping, stdout=pipe.write_fd, stderr=DEVNULL) as child:
            pipe.close_write_end()
            assert is_running(child.process.pid)
        assert child.exit_code == -9
        async with asyncio.timeout(20):
            await pipe.ended.wait()


async def test_cancelled_caller_still_waits_for_the_end() -> None:
    pids: list[int] = []

    async def hold() -> None:
        async with child_process(shell("sleep 100"), stdout=DEVNULL, stderr=DEVNULL) as child:
            pids.append(child.process.pid)
            await child.wait()

    task = asyncio.ensure_future(hold())
    while not pids:  # noqa: ASYNC110 - set by the task
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(pids[0])


async def test_monitor_that_raises_ends_the_process() -> None:
    calls = 0

    def monitor() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("too much")

    with pytest.raises(RuntimeError, match="too much"):
        await run_process(
            shell("sleep 100"),
            timeout_s=60.0,
            max_output_bytes=10,
            monitors=[monitor],
            monitor_every_s=0.01,
        )
    assert calls == 3


async def test_leftovers_of_an_ended_process_are_killed() -> None:
    script = "sleep 100 >/dev/null 2>&1 & echo $!"
    done = await run(shell(script, kill_leftovers=kill_group))
    async with asyncio.timeout(20):
        while is_running(int(done.output)):  # noqa: ASYNC110 - it is another process that ends
            await asyncio.sleep(0.01)


async def test_no_descriptor_is_lost() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    await asyncio.gather(*(run(shell("echo x")) for _ in range(10)))
    cat = ProcessSpec(argv=("/bin/cat",), environment={}, stdin=subprocess.PIPE)
    async with child_process(cat, stdout=DEVNULL, stderr=DEVNULL) as child:
        assert child.process.stdin is not None
        child.process.stdin.close()
        await child.wait()
    assert sorted(os.listdir("/proc/self/fd")) == before


async def test_finish_within_gives_up_in_time() -> None:
    assert await finish_within(asyncio.sleep(0), 10)
    assert not await finish_within(asyncio.Event().wait(), 0.01)
