"""Servers that nobody here wrote, where they are installed; run with script/test --live.

    pip install mcp-server-time mcp-server-git mcp-server-fetch
    npm install -g @modelcontextprotocol/server-everything @modelcontextprotocol/server-filesystem \
        @modelcontextprotocol/server-memory
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from retinue.domain.grant import Access
from retinue.domain.mcp_server import McpServerSpec, Transport
from retinue.domain.scope import NOWHERE
from retinue.ports.tool import ToolContext
from retinue.runtime.core.clock import SystemClock
from retinue.tools.mcp.servers import McpServers
from retinue.workspace.directory import DirectoryWorkspace

pytestmark = pytest.mark.live


class Case(NamedTuple):
    command: tuple[str, ...]
    tools: int
    tool: str
    arguments: dict[str, Any]
    answer: str


CASES = [
    Case(
        ("mcp-server-time", "--local-timezone=UTC"),
        2,
        "convert_time",
        {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo", "time": "12:00"},
        '"time_difference": "+9.0h"',
    ),
    Case(("mcp-server-git",), 12, "git_status", {"repo_path": "."}, "On branch"),
    Case(("mcp-server-fetch",), 1, "fetch", {"url": "http://127.0.0.1:9/"}, "Refused to fetch"),
    Case(("mcp-server-everything",), 13, "get-sum", {"a": 2, "b": 3}, "The sum of 2 and 3 is 5"),
    Case(("mcp-server-filesystem", "."), 14, "list_directory", {"path": "."}, "[DIR] .git"),
    Case(("mcp-server-memory",), 9, "read_graph", {}, '"entities": []'),
]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.command[0])
async def test_a_server_of_somebody_else(case: Case, repository: Path) -> None:
    if shutil.which(case.command[0]) is None:
        pytest.skip(f"{case.command[0]} is not installed")
    server = McpServerSpec(
        name="theirs",
        source="settings",
        transport=Transport.STDIO,
        command=case.command,
        environment={
            "PATH": os.environ["PATH"],
            "MEMORY_FILE_PATH": str(repository / "memory.json"),
        },
        directory=str(repository),
    )
    ctx = ToolContext(
        workspace=DirectoryWorkspace(str(repository)),
        sandbox=None,
        access=Access(root="/", write_scope=NOWHERE),
        agent_id="a1",
    )
    cache, logs = repository / "cache", repository / "logs"
    async with McpServers([server], cache=cache, logs=logs, clock=SystemClock()) as servers:
        (one,) = await servers.list_tools()
        assert one.problem == ""
        assert len(one.tools) >= case.tools
        tools = {tool.listed.name: tool for tool in one.tools}
        outcome = await tools[case.tool].run(case.arguments, ctx)
    assert case.answer in outcome.content
