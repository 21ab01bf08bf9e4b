"""A client of `retinue mcp`."""

from __future__ import annotations

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
