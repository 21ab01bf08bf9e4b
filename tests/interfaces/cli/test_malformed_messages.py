"""Malformed messages to `retinue mcp` and `retinue acp`: no crash, no hang, no leak."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.interfaces.cli.rpc_client import RpcClient

METHODS = {
    "mcp": [
        "initialize", "ping", "tools/list", "tools/call", "resources/list", "resources/read",
        "prompts/get", "server/discover", "notifications/cancelled", "notifications/initialized",
    ],
    "acp": [
        "initialize", "authenticate", "session/new", "session/load", "session/list",
        "session/resume", "session/prompt", "session/cancel", "session/set_mode",
        "session/set_config_option", "session/close",
    ],
}  # fmt: skip
FIELDS = [
    "protocolVersion", "capabilities", "clientCapabilities", "name", "arguments", "_meta", "uri",
    "requestId", "cwd", "sessionId", "prompt", "modeId", "configId", "value", "cursor",
    "mcpServers", "fs", "progressToken",
]  # fmt: skip
TEXTS = ["", "x", "/", "/nowhere", "\0", "é\ud800", "retinue://runs/x", "delegate", "a" * 5_000]


def any_value(random: random.Random, depth: int = 3) -> Any:
    kind = random.randrange(9 if depth else 6)
    match kind:
        case 0:
            return None
        case 1:
            return random.choice([True, False])
        case 2:
            return random.choice([0, -1, 2**63, 2**70, 1.5, -0.0, 1e308])
        case 3 | 4 | 5:
            return random.choice(TEXTS)
        case 6:
            return [any_value(random, depth - 1) for _ in range(random.randrange(4))]
    return {
        random.choice([*FIELDS, *TEXTS]): any_value(random, depth - 1)
        for _ in range(random.randrange(5))
    }


def any_line(random: random.Random, methods: list[str]) -> bytes:
    """A line that is nearly a message: the wrong type somewhere, cut off, or with odd bytes."""
    message: Any = {
        "jsonrpc": "2.0",
        "id": random.randrange(10**9),
        "method": random.choice(methods),
    }
    message["params"] = {name: any_value(random) for name in random.sample(FIELDS, 4)}
    match random.randrange(8):
        case 0:
            message[random.choice(["id", "method", "params", "jsonrpc"])] = any_value(random)
        case 1:
            del message[random.choice(["id", "method", "params"])]
        case 2:
            message = any_value(random)
        case 3:  # The answer to a request that was never made.
            message = {
                "id": random.randrange(3),
                random.choice(["result", "error"]): any_value(random),
            }
    line = json.dumps(message).encode()
    match random.randrange(10):
        case 0:
            line = line[: random.randrange(len(line) + 1)]
        case 1:
            place = random.randrange(len(line) + 1)
            line = line[:place] + random.randbytes(3).replace(b"\n", b"") + line[place:]
    return line + b"\n"


def fuzz(command: str, count: int, seed: int) -> None:
    rng = random.Random(seed)
    client = RpcClient(command, "-m", "scripted:nope.yaml")
    try:
        descriptors = memory = 0
        for number in range(count // 50):
            for _ in range(50):
                client.write(any_line(rng, METHODS[command]))
            # Whatever came before, a right request is answered; and answers are read.
            client.answer(client.start("no/such/method"))
            client.notifications.clear()
            if number == count // 100:  # Half of them.
                descriptors, memory = _descriptors(client), _memory_kib(client)
        assert _descriptors(client) <= descriptors + 5
        assert _memory_kib(client) <= memory + 20 * 1024
        assert client.close() == 0
        assert client.process.stderr is not None
        assert b"Traceback" not in client.process.stderr.read()
    finally:
        client.kill()


def _descriptors(client: RpcClient) -> int:
    return len(list(Path(f"/proc/{client.process.pid}/fd").iterdir()))


def _memory_kib(client: RpcClient) -> int:
    status = Path(f"/proc/{client.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.parametrize("command", ["mcp", "acp"])
def test_malformed_messages(command: str) -> None:
    fuzz(command, 500, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["mcp", "acp"])
def test_ten_thousand_malformed_messages(command: str) -> None:
    fuzz(command, 10_000, seed=2)
