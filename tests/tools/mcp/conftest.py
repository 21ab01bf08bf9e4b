"""Fixtures of MCP servers: a program with every fault, started like a server of a user."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.grant import Access
from retinue.domain.mcp_server import McpServerSpec, Transport
from retinue.domain.scope import NOWHERE
from retinue.ports.clock import Clock
from retinue.ports.tool import ToolContext
from retinue.runtime.core.clock import SystemClock
from retinue.tools.mcp.servers import McpServers
from retinue.workspace.directory import DirectoryWorkspace

PROGRAM = Path(__file__).parent / "programs" / "server.py"


@pytest.fixture
def ctx(tmp_path: Path) -> ToolContext:
    return ToolContext(
        workspace=DirectoryWorkspace(str(tmp_path)),
        sandbox=None,
        access=Access(root="/", write_scope=NOWHERE),
        agent_id="a1",
    )


@pytest.fixture
def faulty(tmp_path: Path) -> Callable[..., McpServerSpec]:
    """A server with these faults, by the words for its command line."""

    def make(*faults: str, name: str = "faulty", **more: Any) -> McpServerSpec:
        return McpServerSpec(
            name=name,
            source="settings",
            transport=Transport.STDIO,
            command=(sys.executable, "-I", "-S", str(PROGRAM), *faults),
            environment={"PATH": os.environ["PATH"], **more.pop("environment", {})},
            directory=str(tmp_path),
            **more,
        )

    return make


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[McpServers]]:
    """Open these servers, with their listings and logs below the test's folder."""

    @asynccontextmanager
    async def opened(*servers: McpServerSpec, clock: Clock | None = None) -> Any:
        async with McpServers(
            servers, cache=tmp_path / "cache", logs=tmp_path / "logs", clock=clock or SystemClock()
        ) as found:
            yield found

    return opened
