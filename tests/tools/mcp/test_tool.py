from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from retinue.domain.mcp_server import McpServerSpec
from retinue.domain.messages import Effect
from retinue.ports.tool import ToolContext
from retinue.tools.mcp.servers import McpServers
from tests.tools.mcp.helpers import inside, tools_of

Faulty = Callable[..., McpServerSpec]


Serve = Callable[..., AbstractAsyncContextManager[McpServers]]


async def test_result_is_framed_as_untrusted(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        outcome = await tools["echo"].run({"text": "hello"}, ctx)
    assert outcome.ok
    assert outcome.content == (
        '<untrusted-2cf24dba from="MCP server faulty">\nhello\n</untrusted-2cf24dba>'
    )


async def test_large_result_is_cut(faulty: Faulty, serve: Serve, ctx: ToolContext) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        outcome = await tools["flood"].run({"text": "3000000"}, ctx)
    assert len(outcome.content) < 16_300
    assert outcome.content.endswith("\n[the first 16,000 of 3,000,000 bytes; ask for less at once]")


async def test_only_the_user_marks_tools_as_read(faulty: Faulty, serve: Serve) -> None:
    for more, reading in (
        ({}, set()),
        ({"trust_hints": True}, {"echo", "pid", "die_once"}),
        ({"read": ("blocks", "f*")}, {"blocks", "fail", "flood"}),
    ):
        async with serve(faulty(**more)) as servers:
            tools = await tools_of(servers)
        found = {name for name, tool in tools.items() if tool.effect is Effect.READ}
        assert found == reading
        assert {tool.effect for tool in tools.values()} <= {Effect.READ, Effect.EXTERNAL}


async def test_null_arguments_are_left_out(faulty: Faulty, serve: Serve, ctx: ToolContext) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        said = inside(await tools["echo"].run({"text": None}, ctx))
    # It echoes the empty text of a call without arguments, and not a null.
    assert said == "[The server answered without content.]"
