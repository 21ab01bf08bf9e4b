"""What to paste into the configuration of an MCP client."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

CLIENTS = ("claude", "codex", "opencode", "cursor", "vscode", "zed")
_FILES = {
    "claude": ".mcp.json",
    "codex": "~/.codex/config.toml",
    "opencode": "opencode.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".vscode/mcp.json",
    "zed": "~/.config/zed/settings.json",
}


def client_config(client: str, arguments: Sequence[str]) -> str:
    """The configuration that makes a client start `retinue mcp` with these arguments."""
    command = [*_own_command(), "mcp", *arguments]
    program, rest = command[0], command[1:]
    head = f"# {_FILES[client]}\n"
    if client == "codex":
        # Codex ends a call after a minute, unless it is told otherwise.
        quoted = msgspec.json.encode(rest).decode()
        return (
            f"{head}[mcp_servers.retinue]\ncommand = {_quoted(program)}\nargs = {quoted}\n"
            "tool_timeout_sec = 3600"
        )
    by_client: dict[str, dict[str, Any]] = {
        "opencode": {"mcp": {"retinue": {"type": "local", "command": [program, *rest]}}},
        "vscode": {"servers": {"retinue": {"type": "stdio", "command": program, "args": rest}}},
        "zed": {"context_servers": {"retinue": {"command": program, "args": rest}}},
    }
    config = by_client.get(client, {"mcpServers": {"retinue": {"command": program, "args": rest}}})
    return head + msgspec.json.format(msgspec.json.encode(config), indent=2).decode()


def _own_command() -> list[str]:
    """How this program was started, with absolute paths: clients have another PATH."""
    program = os.path.abspath(sys.argv[0])
    if os.path.basename(program) == "retinue" and os.access(program, os.X_OK):
        return [program]
    return [sys.executable, "-m", "retinue"]


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
