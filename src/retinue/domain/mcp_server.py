"""MCP servers: how to start or reach one, and what the user has decided about its tools."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from retinue.domain.tool_names import matches

CALL_TIMEOUT_S = 60.0
# Long enough to download a package first.
START_TIMEOUT_S = 60.0


class Transport(StrEnum):
    STDIO = "stdio"
    HTTP = "http"
    SSE = "sse"


class McpServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One server, ready to be started."""

    name: str
    source: str
    transport: Transport
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    """All environment variables of its process."""
    directory: str = "."
    url: str = ""
    headers: Mapping[str, str] = {}
    proxy: str | None = None
    ca_file: str | None = None
    tools: tuple[str, ...] = ("*",)
    """Patterns of the tools that agents may have."""
    read: tuple[str, ...] = ()
    """Patterns of the tools that, as the user says, change nothing."""
    trust_hints: bool = False
    """Whether the server's own hints about that count too."""
    confined: bool = False
    """Whether it runs in the sandbox, where it reads the project and writes nothing."""
    network: bool = False
    """Whether it has network in the sandbox."""
    code: str = ""
    """The code that the user has trusted, as a hash; empty if any code may run."""
    timeout_s: float = CALL_TIMEOUT_S
    start_timeout_s: float = START_TIMEOUT_S

    def __repr__(self) -> str:
        """Leaves out addresses, headers and variables: they may hold keys."""
        return f"ToolServer({self.name!r}, {self.transport}, from {self.source})"

    def offers(self, tool: str) -> bool:
        return any(matches(pattern, tool) for pattern in self.tools)

    @property
    def may_read(self) -> bool:
        """Whether any of its tools can count as reading."""
        return bool(self.read) or self.trust_hints

    def only_reads(self, tool: str, *, hinted: bool) -> bool:
        """Whether a tool changes nothing; `hinted` is what the server says."""
        if self.trust_hints and hinted:
            return True
        return any(matches(pattern, tool) for pattern in self.read)
