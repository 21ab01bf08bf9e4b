"""Clients of `retinue mcp`, on its standard streams and over HTTP."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from typing import Any

from tests.interfaces.cli.rpc_client import RpcClient

READS = """
rules:
  - match: task bad
    steps: [{fail: refused, message: No.}]
  - match: ""
    steps: [{call: list_dir}, {say: There is one file.}]
"""
WRITES = """
rules:
  - match: ""
    steps: [{call: write_file, args: {path: a.txt, content: "hi\\n"}}, {say: Wrote it.}]
"""


class Client(RpcClient):
    def __init__(self, *argv: str) -> None:
        super().__init__("mcp", *argv)

    def initialize(self, **capabilities: Any) -> dict[str, Any]:
        result = self.ask(
            "initialize", protocolVersion="2025-11-25", capabilities=capabilities, clientInfo={}
        )
        self.send({"method": "notifications/initialized"})
        return result

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = self.ask("tools/call", name=name, arguments=arguments)["result"]
        return result


def stateless(**capabilities: Any) -> dict[str, Any]:
    """The `_meta` of a stateless client's request."""
    return {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    }


WITH_TASKS = stateless(elicitation={}, extensions={"io.modelcontextprotocol/tasks": {}})


class HttpServer:
    """A `retinue mcp --http` that was started, and a stateless client of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        self.url = process.stdout.readline().decode().removeprefix("Serving ").strip()
        self.token = process.stdout.readline().decode().removeprefix("Token: ").strip()
        self.headers = {
            "Authorization": f"Bearer {self.token}",
            "Accept": "application/json, text/event-stream",
        }

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request, on a connection of its own."""
        headers = self.headers | {"Mcp-Method": method, "MCP-Protocol-Version": "2026-07-28"}
        headers["Content-Type"] = "application/json"
        if name := params.get("name") or params.get("taskId"):
            headers["Mcp-Name"] = name
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        request = urllib.request.Request(self.url, json.dumps(message).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            result: dict[str, Any] = json.load(response)["result"]
        return result

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", name=name, arguments=arguments, _meta=stateless())
