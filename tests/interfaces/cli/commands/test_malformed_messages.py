"""Malformed messages for `retinue mcp` and `retinue acp`: no crash, no hang, no leak."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.interfaces.cli.mcp_client import WITH_TASKS
from tests.interfaces.cli.rpc_client import RpcClient

FEW, MANY = 400, 10_000
WARM = 200
MAX_GROWTH_KIB = 30_000
"""A leak of the messages themselves would be ten times as much."""
METHODS = {
    "mcp": (
        "initialize", "ping", "server/discover", "tools/list", "tools/call", "prompts/list",
        "prompts/get", "resources/list", "resources/read", "resources/templates/list", "tasks/get",
        "tasks/update", "tasks/cancel", "notifications/cancelled", "notifications/initialized",
    ),
    "acp": (
        "initialize", "authenticate", "session/new", "session/load", "session/resume",
        "session/list", "session/prompt", "session/set_mode", "session/set_config_option",
        "session/close", "session/cancel",
    ),
}  # fmt: skip
NAMES = (
    "protocolVersion", "capabilities", "clientCapabilities", "name", "arguments", "uri", "_meta",
    "taskId", "requestState", "inputResponses", "requestId", "sessionId", "cwd", "mcpServers",
    "prompt", "modeId", "configId", "value", "cursor",
)  # fmt: skip
TEXTS = ("", "x", "\0", "\ud800", "../../etc/passwd", "delegate", "status", "undo", "y" * 2_000)


class Fuzzer:
    def __init__(self, seed: int, command: str) -> None:
        self._random = random.Random(seed)
        self._command = command

    def value(self, depth: int = 0) -> Any:
        pick = self._random
        kind = pick.randrange(8 if depth < 3 else 6)
        if kind == 6:
            return [self.value(depth + 1) for _ in range(pick.randrange(4))]
        if kind == 7:
            return {pick.choice((*NAMES, *TEXTS)): self.value(depth + 1) for _ in range(3)}
        text = pick.choice(TEXTS)
        return (None, pick.random() < 0.5, pick.randrange(-5, 5), 2**70, -1e308, text)[kind]

    def message(self) -> bytes:
        pick = self._random
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": f"f{pick.randrange(10**9)}"}
        message["method"] = pick.choice((*METHODS[self._command], "rocket"))
        message["params"] = {pick.choice(NAMES): self.value() for _ in range(pick.randrange(5))}
        if pick.random() < 0.3:
            message["params"]["_meta"] = WITH_TASKS | {"progressToken": self.value()}
        for _ in range(pick.randrange(3)):
            message[pick.choice(("id", "method", "params", "jsonrpc", "result"))] = self.value()
        line = bytearray(json.dumps(message).encode())
        for _ in range(pick.choice((0, 0, 1, 3))):
            line[pick.randrange(len(line))] = pick.randrange(256)
        if pick.random() < 0.1:
            line = line[: pick.randrange(len(line))]
        return bytes(line).replace(b"\n", b" ") + b"\n"


def memory_kib(client: RpcClient) -> int:
    status = Path(f"/proc/{client.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def send_all(client: RpcClient, fuzzer: Fuzzer, count: int) -> None:
    """Send messages, and see that the next request is answered."""
    method = "ping" if client.process.args[3] == "mcp" else "authenticate"  # type: ignore[index]
    for start in range(0, count, 100):
        for _ in range(min(100, count - start)):
            client.write(fuzzer.message())
        assert client.ask(method)["id"]
        client.notifications.clear()


@pytest.mark.parametrize("command", METHODS)
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_server_survives_malformed_messages(command: str, count: int) -> None:
    client = RpcClient(command, "-m", "scripted:nope.yaml")
    try:
        fuzzer = Fuzzer(1, command)
        send_all(client, fuzzer, WARM)
        before = memory_kib(client)
        files = len(list(Path(f"/proc/{client.process.pid}/fd").iterdir()))
        send_all(client, fuzzer, count - WARM)
        assert memory_kib(client) - before < MAX_GROWTH_KIB
        assert len(list(Path(f"/proc/{client.process.pid}/fd").iterdir())) <= files + 3
        assert client.close() == 0
        assert client.process.stderr is not None
        assert b"Traceback" not in client.process.stderr.read()
    finally:
        client.kill()
