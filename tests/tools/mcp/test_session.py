from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest

from retinue.domain.mcp_server import McpServerSpec
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext
from retinue.tools.mcp.servers import McpServers
from tests.tools.mcp.helpers import inside, tools_of

Faulty = Callable[..., McpServerSpec]


Serve = Callable[..., AbstractAsyncContextManager[McpServers]]


async def test_half_a_surrogate_pair_is_accepted(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["half"].run({}, ctx)) == "A feather: ?"


async def test_endless_output_ends_the_server(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["rubbish"].run({"text": "100"}, ctx)) == "after the rubbish"
        why = "lost during this call: it printed 8,454,144 bytes that are not messages"
        with pytest.raises(ToolFailure, match=why):
            await tools["rubbish"].run({"text": "200"}, ctx)
        assert inside(await tools["act"].run({"text": "on"}, ctx)) == "on"


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
        with pytest.raises(ToolFailure, match=r"The MCP server faulty refused: no, thanks\."):
            await tools["refuse"].run({}, ctx)


async def test_sampling_is_refused(faulty: Faulty, serve: Serve, ctx: ToolContext) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["ask"].run({}, ctx)) == "Sampling not supported"


async def test_malformed_tool_does_not_affect_the_others(faulty: Faulty, serve: Serve) -> None:
    async with serve(faulty("--odd")) as servers:
        (one,) = await servers.list_tools()
    found = {tool.listed.name: tool for tool in one.tools}
    assert "echo" in found
    for name in ("no_schema", "array_schema", "far_schema"):
        assert msgspec.json.decode(found[name].spec.parameters) == {
            "type": "object",
            "properties": {},
        }
    assert msgspec.json.decode(found["wrong_schema"].spec.parameters) == {
        "type": "object",
        "properties": {"a": {}},
    }
    assert not found["wrong_hints"].listed.reads
    names = [tool.spec.name for tool in one.tools]
    assert names == sorted(set(names))
    assert all(len(name) <= 64 for name in names)
    # Two that would be called the same are both marked, so that neither stands for the other.
    alike = [name for name in names if "spaces_and_slashes" in name]
    assert len(alike) == 2
    assert "mcp__faulty__spaces_and_slashes" not in alike
