"""MCP servers that the editor passes to a session, as entries of `.mcp.json`."""

from __future__ import annotations

import re
from typing import Any

from retinue.interfaces.json_rpc import INVALID_PARAMS, RpcError

_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
MAX_NAME_CHARS = 40


def editor_servers(servers: Any) -> dict[str, dict[str, Any]]:
    """The servers of `session/new`, by name. Raises RpcError."""
    if not isinstance(servers, list | None):
        raise RpcError(INVALID_PARAMS, "mcpServers must be a list.")
    found: dict[str, dict[str, Any]] = {}
    for server in servers or []:
        match server:
            case {"name": str(name), "command": str(command)}:
                arguments, variables = server.get("args") or [], _pairs(server.get("env"))
                entry = {"command": command, "args": arguments, "env": variables}
            case {"type": "http" | "sse" as kind, "name": str(name), "url": str(url)}:
                entry = {"type": kind, "url": url, "headers": _pairs(server.get("headers"))}
            case _:
                raise RpcError(
                    INVALID_PARAMS, "An MCP server has a name, and a command or a type and a url."
                )
        # Editors show these names to people; here they are part of the names of tools.
        found[_NAME.sub("-", name)[:MAX_NAME_CHARS].strip("-") or "server"] = entry
    return found


def _pairs(items: Any) -> dict[str, str]:
    """Variables or headers, which are a list of names and values."""
    try:
        return {item["name"]: item["value"] for item in items or []}
    except (KeyError, TypeError):
        raise RpcError(
            INVALID_PARAMS, "env and headers are lists of objects with a name and a value."
        ) from None
