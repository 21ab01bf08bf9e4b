from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from retinue.domain.mcp_server import McpServerSpec
from retinue.ports.tool import ToolContext
from retinue.testing.clock import FakeClock
from retinue.tools.mcp.servers import McpServers
from tests.tools.mcp.helpers import starts, tools_of, until

Faulty = Callable[..., McpServerSpec]


Serve = Callable[..., AbstractAsyncContextManager[McpServers]]


async def test_cached_list_starts_no_server(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    server = faulty("--starts", str(log))
    async with serve(server) as servers:
        first = await servers.list_tools()
    assert len(starts(log)) == 1
    async with serve(server) as servers:
        (one,) = await servers.list_tools()
        assert [t.spec for t in one.tools] == [t.spec for t in first[0].tools]
        assert len(starts(log)) == 1
        await one.tools[0].run({}, ctx)
        assert len(starts(log)) == 2


async def test_list_is_refreshed_when_old_or_program_changed(
    faulty: Faulty, serve: Serve, tmp_path: Path
) -> None:
    log, clock = tmp_path / "starts", FakeClock()
    server = faulty("--starts", str(log))
    for seconds, count in ((0, 1), (3_000, 1), (601, 2)):
        clock.advance(seconds)
        async with serve(server, clock=clock) as servers:
            await servers.list_tools()
        assert len(starts(log)) == count
    os.utime(server.command[3])
    async with serve(server, clock=clock) as servers:
        await servers.list_tools()
    assert len(starts(log)) == 3
    async with serve(server, clock=clock) as servers:
        await servers.list_tools(refresh=True)
    assert len(starts(log)) == 4


async def test_changed_list_is_used_next_time(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    server = faulty()
    async with serve(server) as servers:
        tools = await tools_of(servers)
        assert "new" not in tools
        await tools["change"].run({}, ctx)
        kept = next((tmp_path / "cache").iterdir())
        await until(lambda: b'"new"' in kept.read_bytes())
    async with serve(server) as servers:
        assert "new" in await tools_of(servers)
