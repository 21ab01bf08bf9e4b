from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from retinue.domain.mcp_server import McpServerSpec, Transport
from retinue.tools.mcp.servers import McpServers
from tests.tools.mcp.helpers import tools_of

Faulty = Callable[..., McpServerSpec]


Serve = Callable[..., AbstractAsyncContextManager[McpServers]]


async def test_user_selects_tools(faulty: Faulty, serve: Serve) -> None:
    async with serve(faulty(tools=("echo", "d*"))) as servers:
        assert (await tools_of(servers)).keys() == {"echo", "daemon", "die", "die_once"}


async def test_error_of_the_body_is_not_wrapped(faulty: Faulty, serve: Serve) -> None:
    async def work() -> None:
        async with serve(faulty()) as servers:
            await servers.list_tools()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await work()


async def test_servers_are_listed_concurrently(
    faulty: Faulty, serve: Serve, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    # Each waits for the other to have been started.
    servers = (
        faulty("--starts", str(first), "--wait-for", str(second), name="one"),
        faulty("--starts", str(second), "--wait-for", str(first), name="two"),
    )
    async with serve(*servers) as opened:
        one, two = await opened.list_tools()
    assert {tool.spec.name for tool in one.tools} >= {"mcp__one__echo"}
    assert {tool.spec.name for tool in two.tools} >= {"mcp__two__echo"}


async def test_unreachable_http_server(serve: Serve) -> None:
    server = McpServerSpec(
        name="web", source="settings", transport=Transport.HTTP, url="http://127.0.0.1:9/mcp"
    )
    async with serve(server) as servers:
        (one,) = await servers.list_tools()
    assert one.problem == "cannot be reached"
