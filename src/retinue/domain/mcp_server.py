"""A server that gives tools: how it is reached, and what the user has decided about it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from retinue.domain.tool_names import matches

CALL_TIMEOUT_S = 60.0
# Long enough for a package to be fetched first.
START_TIMEOUT_S = 60.0


class Transport(StrEnum):
    STDIO = "stdio"
    HTTP = "http"
    SSE = "sse"


class McpServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One server, ready to be started. `environment` is all that its process gets to see.

    `tools` are patterns of the tools that are offered. `read` are patterns of those that, by the
    user's word, change nothing; the server's own word counts only with `trust_hints`.
    """

    name: str
    source: str
    transport: Transport
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    directory: str = "."
    url: str = ""
    headers: Mapping[str, str] = {}
    proxy: str | None = None
    ca_file: str | None = None
    tools: tuple[str, ...] = ("*",)
    read: tuple[str, ...] = ()
    trust_hints: bool = False
    timeout_s: float = CALL_TIMEOUT_S
    start_timeout_s: float = START_TIMEOUT_S

    def __repr__(self) -> str:
        """Without addresses, headers and variables, which may hold keys."""
        return f"ToolServer({self.name!r}, {self.transport}, from {self.source})"

    def offers(self, tool: str) -> bool:
        return any(matches(pattern, tool) for pattern in self.tools)

    @property
    def may_read(self) -> bool:
        """Whether it can have a tool that only reads."""
        return bool(self.read) or self.trust_hints

    def only_reads(self, tool: str, *, hinted: bool) -> bool:
        """Whether a tool changes nothing, by the word of somebody who may say so."""
        if self.trust_hints and hinted:
            return True
        return any(matches(pattern, tool) for pattern in self.read)
