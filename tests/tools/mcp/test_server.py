from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import msgspec
import pytest

from retinue.domain.mcp_server import McpServerSpec
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext
from retinue.testing.clock import FakeClock
from retinue.tools.mcp.server import BACKOFF_S, MAX_FAILURES
from retinue.tools.mcp.servers import McpServers
from tests.tools.mcp.helpers import inside, is_alive, starts, tools_of, until

Faulty = Callable[..., McpServerSpec]
Serve = Callable[..., AbstractAsyncContextManager[McpServers]]


async def test_one_process_serves_fifty_calls(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    async with serve(faulty("--starts", str(log))) as servers:
        tools = await tools_of(servers)
        calls = (tools["echo"].run({"text": str(n)}, ctx) for n in range(50))
        answers = await asyncio.gather(*calls)
        assert [inside(answer) for answer in answers] == [str(n) for n in range(50)]
        (pid,) = starts(log)
        assert is_alive(pid)
    assert not is_alive(pid)


@pytest.mark.parametrize("faults", [[], ["--die-at-start"]], ids=["starts", "dies"])
async def test_starting_servers_leaks_no_descriptor(
    faulty: Faulty, serve: Serve, faults: list[str]
) -> None:
    def descriptors() -> dict[str, str]:
        folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
        found = {}
        for name in os.listdir(folder):
            with suppress(OSError):
                found[name] = os.readlink(f"{folder}/{name}")
        return found

    async def start() -> None:
        async with serve(faulty(*faults)) as servers:
            await servers.list_tools(refresh=True)

    await start()
    before = descriptors()
    for _ in range(3):
        await start()
    assert len(descriptors()) == len(before), descriptors()


async def test_server_is_restarted_after_it_died(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    clock = FakeClock()
    async with serve(faulty("--starts", str(log)), clock=clock) as servers:
        tools = await tools_of(servers)
        with pytest.raises(ToolFailure) as failure:
            await tools["die"].run({}, ctx)
        assert str(failure.value) == (
            "The MCP server faulty was lost during this call. The call may have taken effect; check"
            " before you call it again."
        )
        assert failure.value.quoted == "It ended with exit code 7."
        again = asyncio.create_task(tools["act"].run({"text": "back"}, ctx))
        await clock.asleep(BACKOFF_S)
        clock.advance(BACKOFF_S)
        assert inside(await again) == "back"
        first, second = starts(log)
        assert not is_alive(first)
        assert is_alive(second)


async def test_reading_call_is_repeated_after_a_loss(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    clock = FakeClock()
    async with serve(faulty(), clock=clock) as servers:
        tools = await tools_of(servers)
        call = asyncio.create_task(tools["die_once"].run({"text": str(tmp_path / "died")}, ctx))
        await clock.asleep(BACKOFF_S)
        clock.advance(BACKOFF_S)
        assert inside(await call) == "alive again"


async def test_server_is_given_up_after_max_failures(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log, clock = tmp_path / "starts", FakeClock()
    async with serve(faulty("--starts", str(log)), clock=clock) as servers:
        tools = await tools_of(servers)
        for failures in range(MAX_FAILURES):
            call = asyncio.create_task(tools["die"].run({}, ctx))
            if failures:
                wait = BACKOFF_S * 2 ** (failures - 1)
                await clock.asleep(wait)
                clock.advance(wait)
            with pytest.raises(ToolFailure, match="was lost during this call"):
                await call
        with pytest.raises(ToolFailure) as failure:
            await tools["act"].run({}, ctx)
        assert str(failure.value) == (
            "The MCP server faulty is not available. Continue without it."
        )
        assert failure.value.quoted == (
            "It failed 4 times and is not started again; the last time it ended with exit code 7."
        )
        assert len(starts(log)) == MAX_FAILURES


async def test_long_connection_resets_the_failures(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    clock = FakeClock()
    async with serve(faulty(), clock=clock) as servers:
        tools = await tools_of(servers)
        for number in range(2 * MAX_FAILURES):
            call = asyncio.create_task(tools["pid"].run({}, ctx))
            if number:
                await clock.asleep(BACKOFF_S)
                clock.advance(BACKOFF_S)
            await call
            clock.advance(100)
            with pytest.raises(ToolFailure):
                await tools["die"].run({}, ctx)


@pytest.mark.parametrize(
    ("faults", "more", "problem"),
    [
        (["--die-at-start"], {}, "ended with exit code 1: I cannot go on: no licence"),
        (["--mute"], {"start_timeout_s": 0.5}, "was not ready within 0.5 s"),
        ([], {"command": ("no-such", "x")}, "cannot be started: there is no command 'no-such'"),
        ([], {"command": ("./server",)}, "cannot be started: there is no command './server'"),
        ([], {"directory": "nowhere"}, "cannot be started: No such file or directory"),
        ([], {"command": ("cat",)}, "refused: Method not found"),
    ],
    ids=["dies", "mute", "missing", "relative", "folder", "echoes"],
)  # fmt: skip
async def test_unusable_server_has_a_reason(
    faulty: Faulty,
    serve: Serve,
    tmp_path: Path,
    faults: list[str],
    more: dict[str, object],
    problem: str,
) -> None:
    if "directory" in more:
        more = {"directory": str(tmp_path / str(more["directory"]))}
    server = msgspec.structs.replace(faulty(*faults), **more)
    async with serve(server) as servers:
        (one,) = await servers.list_tools()
    assert one.tools == ()
    assert problem in one.problem
    assert one.note == f"without the MCP server faulty: it {one.problem}"


async def test_all_callers_wait_for_one_slow_start(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log, gate = tmp_path / "starts", tmp_path / "gate"
    async with serve(faulty("--starts", str(log), "--wait-for", str(gate))) as servers:
        asking = [asyncio.create_task(tools_of(servers)) for _ in range(3)]
        await until(lambda: bool(starts(log)))
        asking[0].cancel()
        gate.touch()
        assert await asking[1] is not None
        assert (await asking[2]).keys() == asking[1].result().keys()
        assert len(starts(log)) == 1


async def test_call_timeout(faulty: Faulty, serve: Serve, ctx: ToolContext) -> None:
    async with serve(faulty(timeout_s=0.3)) as servers:
        tools = await tools_of(servers)
        with pytest.raises(ToolFailure) as failure:
            await tools["hang"].run({}, ctx)
        assert str(failure.value) == (
            "The MCP server faulty did not answer within 0.3 s. The call may have taken effect;"
            " check before you call it again."
        )
        # It is still there, and so is the connection.
        assert inside(await tools["act"].run({"text": "on"}, ctx)) == "on"


async def test_progress_extends_the_timeout(faulty: Faulty, serve: Serve, ctx: ToolContext) -> None:
    async with serve(faulty(timeout_s=2)) as servers:
        tools = await tools_of(servers)
        # 22 steps of a tenth of a second: longer than the limit, and never silent for it.
        assert inside(await tools["progress"].run({"text": "22"}, ctx)) == "done"


async def test_cancelled_call_does_not_affect_others(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        pid = inside(await tools["pid"].run({}, ctx))
        hanging = asyncio.create_task(tools["hang"].run({}, ctx))
        await tools["act"].run({}, ctx)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert inside(await tools["pid"].run({}, ctx)) == pid
