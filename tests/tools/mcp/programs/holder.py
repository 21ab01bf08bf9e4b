"""Opens a server, has it start a daemon, and calls a tool that never answers."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from retinue.domain.grant import Access
from retinue.domain.mcp_server import McpServerSpec, Transport
from retinue.domain.scope import NOWHERE
from retinue.ports.tool import ToolContext
from retinue.runtime.core.clock import SystemClock
from retinue.tools.mcp.servers import McpServers
from retinue.workspace.directory import DirectoryWorkspace


async def main(directory: Path, command: tuple[str, ...]) -> None:
    server = McpServerSpec(
        name="held",
        source="settings",
        transport=Transport.STDIO,
        command=command,
        environment={"PATH": os.environ["PATH"]},
        directory=str(directory),
    )
    ctx = ToolContext(
        workspace=DirectoryWorkspace(str(directory)),
        sandbox=None,
        access=Access(root="/", write_scope=NOWHERE),
        agent_id="a1",
    )
    cache, logs = directory / "cache", directory / "logs"
    async with McpServers([server], cache=cache, logs=logs, clock=SystemClock()) as servers:
        (one,) = await servers.list_tools()
        tools = {tool.listed.name: tool for tool in one.tools}
        said = await tools["daemon"].run({}, ctx)
        print(said.content.split("\n")[1], flush=True)
        await tools["hang"].run({}, ctx)


asyncio.run(main(Path(sys.argv[1]), tuple(sys.argv[2:])))
