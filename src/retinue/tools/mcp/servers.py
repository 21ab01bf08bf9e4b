"""All MCP servers of a runtime, and their tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from retinue.domain.mcp_server import McpServerSpec
from retinue.domain.tool_names import mcp_tool_names, server_slug
from retinue.extras import install_command, is_installed
from retinue.ports.clock import Clock
from retinue.tools.mcp.errors import ServerUnavailable
from retinue.tools.mcp.listing import ListedTool, ListingCache
from retinue.tools.mcp.process import ServerStarter
from retinue.tools.mcp.server import McpServer
from retinue.tools.mcp.tool import ServerTool


class ServerTools(msgspec.Struct, frozen=True):
    """Tools of a server, or the problem that prevents their use."""

    server: McpServerSpec
    tools: tuple[ServerTool, ...] = ()
    problem: str = ""

    @property
    def note(self) -> str:
        """A line about a server that cannot be used; empty if it can."""
        return (
            f"without the MCP server {self.server.name}: it {self.problem}" if self.problem else ""
        )


class McpServers:
    """Async context manager. On exit all processes of all servers have ended."""

    def __init__(
        self,
        servers: Iterable[McpServerSpec],
        *,
        cache: Path,
        logs: Path,
        clock: Clock,
        starter: ServerStarter | None = None,
    ) -> None:
        """`cache` is the folder of tool lists, `logs` the folder of the servers' error output."""
        self._starter = starter or ServerStarter()
        self._specs = tuple(servers)
        self._listings = ListingCache(cache, clock)
        self._logs = logs
        self._clock = clock
        self._tasks = asyncio.TaskGroup()
        self._servers: list[McpServer] = []

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._servers = [
            McpServer(
                spec,
                listings=self._listings,
                log=self._logs / f"{server_slug(spec.name)}.log",
                clock=self._clock,
                tasks=self._tasks,
                starter=self._starter,
            )
            for spec in self._specs
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.close()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as several:
            # Servers raise nothing. Return, so that an error of the body propagates unwrapped.
            if several.exceptions[0] is not error:
                raise

    def servers_to_start(self, *, refresh: bool = False) -> list[str]:
        """Names of the servers that `list_tools` has to start."""
        if not is_installed("mcp"):
            return []
        return [one.spec.name for one in self._servers if refresh or not one.has_cached_listing]

    async def list_tools(self, *, refresh: bool = False) -> Sequence[ServerTools]:
        """Tools of each server, in order. All servers are asked at the same time."""
        if not is_installed("mcp"):
            problem = f"needs {install_command('mcp')}"
            return [ServerTools(spec, problem=problem) for spec in self._specs]
        answers = await asyncio.gather(*(_list_tools(server, refresh) for server in self._servers))
        names = mcp_tool_names(
            (server.spec.name, tool.name)
            for server, answer in zip(self._servers, answers, strict=True)
            if not isinstance(answer, str)
            for tool in answer
        )
        found = []
        for server, answer in zip(self._servers, answers, strict=True):
            if isinstance(answer, str):
                found.append(ServerTools(server.spec, problem=answer))
                continue
            tools = (
                ServerTool(names[server.spec.name, tool.name], server, tool) for tool in answer
            )
            found.append(ServerTools(server.spec, tuple(sorted(tools, key=lambda t: t.spec.name))))
        return found


async def _list_tools(server: McpServer, refresh: bool) -> Sequence[ListedTool] | str:
    try:
        return await server.tools(refresh=refresh)
    except ServerUnavailable as error:
        return str(error)
