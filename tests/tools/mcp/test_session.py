from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from retinue.domain.mcp_server import McpServerSpec
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext
from retinue.tools.mcp.servers import McpServers
from tests.tools.mcp.helpers import inside, tools_of

Faulty = Callable[..., McpServerSpec]


Serve = Callable[..., AbstractAsyncContextManager[McpServers]]


async def test_content_of_all_types(faulty: Faulty, serve: Serve, ctx: ToolContext) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        blocks = inside(await tools["blocks"].run({}, ctx))
        structured = inside(await tools["structured"].run({}, ctx))
    assert blocks == (
        "first\n"
        "[image (image/png, 5 bytes), not shown]\n"
        "[resource file:///a.txt a.txt: A file]\n"
        "[resource file:///b (text/plain)]\nb!\n"
        "[resource file:///c (unknown type, 4 bytes), not shown]\n"
        '[content of an unknown type]\n{"type":"hologram","depth":3}'
    )
    assert structured == '{"n":1}'


async def test_tool_error_and_protocol_error(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        failed = await tools["fail"].run({}, ctx)
        assert not failed.ok
        assert failed.content.startswith("[ERROR]\n<untrusted-")
        assert "\nit did not work\n" in failed.content
        with pytest.raises(
            ToolFailure, match=r"The MCP server faulty refused the call\."
        ) as refused:
            await tools["refuse"].run({}, ctx)
        assert refused.value.quoted == "no, thanks"


async def test_sampling_is_refused(faulty: Faulty, serve: Serve, ctx: ToolContext) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["ask"].run({}, ctx)) == "Sampling not supported"
