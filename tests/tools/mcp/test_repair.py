from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import mcp_types as types
import msgspec
from mcp.shared.message import SessionMessage

from retinue.domain.mcp_server import McpServerSpec
from retinue.tools.mcp.repair import repaired
from retinue.tools.mcp.servers import McpServers

Faulty = Callable[..., McpServerSpec]


Serve = Callable[..., AbstractAsyncContextManager[McpServers]]


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


def result_of(result: dict[str, Any]) -> dict[str, Any]:
    """What the SDK gets of a server's result."""
    sent = types.JSONRPCResponse(jsonrpc="2.0", id=1, result=result)
    message = repaired(SessionMessage(sent)).message
    assert isinstance(message, types.JSONRPCResponse)
    return message.result


def test_sdk_checks_a_limited_number_of_tools_and_blocks() -> None:
    """A message can hold 200,000, and checking so many blocked the event loop for 20 seconds."""
    tools = [{"name": f"tool_{number}"} for number in range(501)]
    listed = result_of({"tools": [{"name": ""}, "no tool", *tools]})
    assert [tool["name"] for tool in listed["tools"]] == [tool["name"] for tool in tools[:500]]
    blocks = [{"type": "text", "text": str(number)} for number in range(3_000)]
    assert result_of({"content": blocks[:1_000]})["content"] == blocks[:1_000]
    more = {"type": "text", "text": "[2,000 more blocks of content are left out]"}
    assert result_of({"content": blocks})["content"] == [*blocks[:1_000], more]
