"""Configuration of MCP clients, as text to paste."""

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
_KEYS = {"opencode": "mcp", "vscode": "servers", "zed": "context_servers"}
# By default, codex ends a call after a minute. On a busy machine it sends its first request
# without the tools of a server that is still starting, unless the server is required.
_CODEX = "[mcp_servers.retinue]\n{lines}\nrequired = true\ntool_timeout_sec = 3600"


def stdio_config(client: str, arguments: Sequence[str]) -> str:
    """The configuration that makes a client start `retinue mcp` with these arguments."""
    command = [*_own_command(), "mcp", *arguments]
    program, rest = command[0], command[1:]
    if client == "opencode":
        return _config(client, {"type": "local", "command": [program, *rest]})
    kind = {"type": "stdio"} if client == "vscode" else {}
    return _config(client, {**kind, "command": program, "args": rest})


def http_config(client: str, url: str, token: str) -> str:
    """The configuration that makes a client connect to `retinue mcp --http`."""
    headers = {"Authorization": f"Bearer {token}"}
    if client == "codex":
        return _config(client, {"url": url, "http_headers": headers})
    kinds = {"claude": "http", "vscode": "http", "opencode": "remote"}
    kind = {"type": kinds[client]} if client in kinds else {}
    return _config(client, {**kind, "url": url, "headers": headers})


def _config(client: str, server: dict[str, Any]) -> str:
    head = f"# {_FILES[client]}\n"
    if client == "codex":
        lines = "\n".join(f"{name} = {_toml(value)}" for name, value in server.items())
        return head + _CODEX.format(lines=lines)
    config = {_KEYS.get(client, "mcpServers"): {"retinue": server}}
    return head + msgspec.json.format(msgspec.json.encode(config), indent=2).decode()


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_toml(item)}' for name, item in value.items())} }}"
    return msgspec.json.encode(value).decode()  # Texts and lists are the same in JSON.


def _own_command() -> list[str]:
    """How this program was started, with absolute paths: clients have another PATH."""
    program = os.path.abspath(sys.argv[0])
    if os.path.basename(program) == "retinue" and os.access(program, os.X_OK):
        return [program]
    return [sys.executable, "-m", "retinue"]
