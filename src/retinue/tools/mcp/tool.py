"""Tools of MCP servers as tools of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, ToolSpec
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.tools.mcp.content import frame_untrusted
from retinue.tools.mcp.listing import ListedTool
from retinue.tools.mcp.server import McpServer


class ServerTool:
    """A tool of a server. Its results are framed as untrusted content."""

    def __init__(self, name: str, server: McpServer, listed: ListedTool) -> None:
        self.server = server
        self.listed = listed
        self.spec: Final = ToolSpec(name, listed.description, listed.schema)
        reads = server.spec.only_reads(listed.name, hinted=listed.reads)
        self.effect: Final = Effect.READ if reads else Effect.EXTERNAL
        schema = msgspec.json.decode(listed.schema)
        self._optional = {
            field
            for field, about in schema["properties"].items()
            if field not in schema.get("required", ()) and not _takes_null(about)
        }

    def spec_for(self, grant: Grant) -> ToolSpec:
        return self.spec

    def __repr__(self) -> str:
        return f"ServerTool({self.spec.name!r})"

    async def run(self, arguments: Mapping[str, Any], ctx: ToolContext) -> ToolOutcome:
        # Models send null for arguments that they leave out.
        sent = {k: v for k, v in arguments.items() if v is not None or k not in self._optional}
        # The call has its own time limit, so the watchdog need not watch it.
        with ctx.waiting():
            said = await self.server.call(self.listed, sent, traceparent=ctx.call.traceparent)
        text = frame_untrusted(said.text, f"MCP server {self.server.spec.name}")
        return ToolOutcome(
            content=f"[ERROR]\n{text}" if said.failed else text,
            images=said.images,
            ok=not said.failed,
            untrusted=True,
        )


def _takes_null(schema: Any) -> bool:
    return not isinstance(schema, dict) or b'"null"' in msgspec.json.encode(schema)
