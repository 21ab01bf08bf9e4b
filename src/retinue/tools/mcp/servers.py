"""All servers of a runtime, and the tools that they give."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from retinue.domain.mcp_server import ToolServer
from retinue.domain.tool_names import clean_server, foreign_names
from retinue.extras import install_command, is_installed
from retinue.ports.clock import Clock
from retinue.tools.mcp.errors import Unusable
from retinue.tools.mcp.listing import Listed, Listings
from retinue.tools.mcp.server import Server
from retinue.tools.mcp.tool import ServerTool


class Offered(msgspec.Struct, frozen=True):
    """What a server gives: its tools, or why there are none."""

    server: ToolServer
    tools: tuple[ServerTool, ...] = ()
    problem: str = ""

    @property
    def note(self) -> str:
        """A line about a server that cannot be had."""
        return (
            f"without the MCP server {self.server.name}: it {self.problem}" if self.problem else ""
        )


class Servers:
    """Use it as an async context manager: nothing of a server is left when it is over."""

    def __init__(
        self, servers: Iterable[ToolServer], *, cache: Path, logs: Path, clock: Clock
    ) -> None:
        """`cache` is where listings are kept, `logs` where what servers complain of goes."""
        self._specs = tuple(servers)
        self._listings = Listings(cache, clock)
        self._logs = logs
        self._clock = clock
        self._tasks = asyncio.TaskGroup()
        self._servers: list[Server] = []

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._servers = [
            Server(
                spec,
                listings=self._listings,
                log=self._logs / f"{clean_server(spec.name)}.log",
                clock=self._clock,
                tasks=self._tasks,
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
            # Servers raise nothing. Returning lets an error of the body go on as it was raised.
            if several.exceptions[0] is not error:
                raise

    def asked(self, *, anew: bool = False) -> list[str]:
        """The names of those that `offered` has to start."""
        if not is_installed("mcp"):
            return []
        return [one.spec.name for one in self._servers if anew or not one.is_known]

    async def offered(self, *, anew: bool = False) -> Sequence[Offered]:
        """What each of them gives, in their order; all are asked at the same time."""
        if not is_installed("mcp"):
            problem = f"needs {install_command('mcp')}"
            return [Offered(spec, problem=problem) for spec in self._specs]
        answers = await asyncio.gather(*(_listed(server, anew) for server in self._servers))
        names = foreign_names(
            (server.spec.name, tool.name)
            for server, answer in zip(self._servers, answers, strict=True)
            if not isinstance(answer, str)
            for tool in answer
        )
        found = []
        for server, answer in zip(self._servers, answers, strict=True):
            if isinstance(answer, str):
                found.append(Offered(server.spec, problem=answer))
                continue
            tools = (
                ServerTool(names[server.spec.name, tool.name], server, tool) for tool in answer
            )
            found.append(Offered(server.spec, tuple(sorted(tools, key=lambda t: t.spec.name))))
        return found


async def _listed(server: Server, anew: bool) -> Sequence[Listed] | str:
    try:
        return await server.tools(anew=anew)
    except Unusable as error:
        return str(error)
