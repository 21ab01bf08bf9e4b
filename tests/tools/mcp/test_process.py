from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from retinue.domain.mcp_server import McpServerSpec
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext
from retinue.tools.mcp.servers import McpServers
from tests.tools.mcp.helpers import inside, is_alive, starts, tools_of, until

HOLDER = Path(__file__).parent / "programs" / "holder.py"


Faulty = Callable[..., McpServerSpec]


Serve = Callable[..., AbstractAsyncContextManager[McpServers]]


async def test_other_output_goes_to_the_log(
    faulty: Faulty,
    serve: Serve,
    ctx: ToolContext,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["garbage"].run({}, ctx)) == "after the garbage"
    log = tmp_path / "logs" / "faulty.log"
    assert "Traceback: not JSON" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert capfd.readouterr() == ("", "")


async def test_endless_line_ends_the_server(faulty: Faulty, serve: Serve, ctx: ToolContext) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        with pytest.raises(ToolFailure, match="lost during this call") as failure:
            await tools["line"].run({"text": "40000000"}, ctx)
        assert failure.value.quoted == "It sent a line of more than 16,777,216 bytes."
        assert inside(await tools["act"].run({"text": "on"}, ctx)) == "on"


async def test_server_gets_only_configured_variables(
    faulty: Faulty, serve: Serve, ctx: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with serve(faulty(environment={"NAMED": "yes"})) as servers:
        tools = await tools_of(servers)
        seen = json.loads(inside(await tools["env"].run({}, ctx)))
    seen.pop("LC_CTYPE", None)  # Python's own, where the environment names no locale.
    assert seen.keys() == {"PATH", "NAMED"}


async def test_all_processes_end_with_the_runtime(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    async with serve(faulty("--starts", str(log), "--deaf")) as servers:
        tools = await tools_of(servers)
        daemon = int(inside(await tools["daemon"].run({}, ctx)))
        (pid,) = starts(log)
        assert is_alive(pid)
        assert is_alive(daemon)
    assert not is_alive(pid)
    assert not is_alive(daemon)


async def test_daemon_ends_when_its_server_dies(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        daemon = int(inside(await tools["daemon"].run({}, ctx)))
        with pytest.raises(ToolFailure):
            await tools["die"].run({}, ctx)
        await until(lambda: not is_alive(daemon))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_all_processes_end_when_the_runtime_is_killed(
    faulty: Faulty, tmp_path: Path, number: signal.Signals
) -> None:
    """A server that is busy and does not listen, and a daemon of it that has left the group."""
    log = tmp_path / "starts"
    command = faulty("--starts", str(log), "--deaf").command
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HOLDER), str(tmp_path), *command, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    daemon = int(await process.stdout.readline())
    (pid,) = starts(log)
    assert is_alive(pid)
    assert is_alive(daemon)
    process.send_signal(number)
    await process.wait()
    await until(lambda: not is_alive(pid) and not is_alive(daemon))


@pytest.mark.parametrize("when", ["starting", "calling"])
async def test_all_processes_end_after_cancellation(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path, when: str
) -> None:
    log = tmp_path / "starts"
    faults = ["--mute"] if when == "starting" else []

    async def work() -> None:
        async with serve(faulty("--starts", str(log), *faults)) as servers:
            tools = await tools_of(servers)
            await tools["hang"].run({}, ctx)

    task = asyncio.create_task(work())
    await until(lambda: bool(starts(log)))
    (pid,) = starts(log)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(pid)
