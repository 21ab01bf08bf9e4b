from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec

from retinue.domain.mcp_server import McpServerSpec
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
