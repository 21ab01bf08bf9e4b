"""Helpers of the tests of MCP servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from retinue.ports.tool import ToolOutcome
from retinue.tools.mcp.servers import McpServers
from retinue.tools.mcp.tool import ServerTool


async def tools_of(servers: McpServers) -> dict[str, ServerTool]:
    return {tool.listed.name: tool for one in await servers.list_tools() for tool in one.tools}


def inside(outcome: ToolOutcome) -> str:
    """What the server said, without the frame around it."""
    lines = outcome.content.split("\n")
    assert lines[0].startswith("<untrusted-")
    assert lines[-1].startswith("</untrusted-")
    return "\n".join(lines[1:-1])


def starts(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what another process does, which has no way to tell us."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
