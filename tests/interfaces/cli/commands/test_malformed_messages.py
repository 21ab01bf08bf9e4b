"""Malformed messages for `retinue mcp`, also over HTTP, and `retinue acp`: no crash, no leak."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.interfaces.cli.mcp_client import WITH_TASKS, HttpServer
from tests.interfaces.cli.rpc_client import RpcClient

COUNTS = [400, pytest.param(10_000, marks=pytest.mark.slow)]
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

HEADERS = (
    "Authorization", "Accept", "Content-Type", "Origin", "Host", "Mcp-Session-Id",
    "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Last-Event-ID", "Content-Encoding",
    "Content-Length", "Transfer-Encoding", "Expect", "Upgrade",
)  # fmt: skip
FRAMING = HEADERS.index("Content-Length")
"""From here on, headers that decide where a request ends."""
HEADER_VALUES = (
    "", "x", "-1", "0", "99999999999", "chunked", "100-continue", "websocket", "gzip", "*/*",
    "text/event-stream", "Bearer ", "Bearer \xff", "2025-11-25", "2026-07-28", "1999-01-01",
    "delegate", "y" * 70_000,
)  # fmt: skip


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

    def http_request(self, server: HttpServer) -> tuple[bytes, bool]:
        """A request that is nearly right: odd method, path, headers or length, and a message.

        Also says whether its end can be told, so that an answer must come.
        """
        pick, body = self._random, self.message()
        host = server.url.split("/")[2]
        headers: dict[str, Any] = {
            "Host": host,
            "Authorization": f"Bearer {server.token}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "Content-Length": len(body),
            "Connection": "close",
        }
        is_whole = pick.random() < 0.5
        names = HEADERS[:FRAMING] if is_whole else HEADERS
        for name in pick.sample(names, pick.randrange(4)):
            headers[name] = pick.choice((*HEADER_VALUES, *METHODS["mcp"], f"http://{host}"))
        if not is_whole:
            del headers[pick.choice(list(headers))]
        method = pick.choice(("POST",) * 12 + ("GET", "DELETE", "OPTIONS", "PUT", "\0"))
        path = pick.choice(("/mcp",) * 9 + ("/", "/mcp/../x", "/%00", "mcp"))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers)]
        head = bytearray("\r\n".join(lines).encode("latin-1"))
        if not is_whole and pick.random() < 0.5:
            head[pick.randrange(len(head))] = pick.randrange(256)
        return bytes(head) + b"\r\n\r\n" + body, is_whole


def process_size(process: subprocess.Popen[bytes]) -> tuple[int, int, int]:
    """Memory in KiB, open files and threads of a process."""
    proc = Path(f"/proc/{process.pid}")
    memory = int((proc / "status").read_text().partition("VmRSS:")[2].split()[0])
    return memory, len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))


def assert_no_leak(before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
    assert after[0] - before[0] < MAX_GROWTH_KIB
    assert after[1] <= before[1] + 3
    assert after[2] <= before[2] + 3


def send_all(client: RpcClient, fuzzer: Fuzzer, count: int) -> None:
    """Send messages, and see that the next request is answered."""
    method = "ping" if client.process.args[3] == "mcp" else "authenticate"  # type: ignore[index]
    for start in range(0, count, 100):
        for _ in range(min(100, count - start)):
            client.write(fuzzer.message())
        assert client.ask(method)["id"]
        client.notifications.clear()


def post_all(server: HttpServer, fuzzer: Fuzzer, count: int) -> None:
    """Send requests, each on its own connection, and see that the next one is answered."""
    host, port = server.url.split("/")[2].split(":")
    for number in range(count):
        request, is_whole = fuzzer.http_request(server)
        with (
            socket.create_connection((host, int(port)), timeout=60) as connection,
            suppress(ConnectionError),  # The server may refuse before it has read all.
        ):
            connection.sendall(request)
            if not is_whole:
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            while chunk := connection.recv(65_536):
                answer += chunk
            assert answer or not is_whole
        if number % 100 == 99:
            assert server.ask("tools/list", _meta=WITH_TASKS)["tools"]


@pytest.mark.parametrize("command", METHODS)
@pytest.mark.parametrize("count", COUNTS)
def test_server_survives_malformed_messages(command: str, count: int) -> None:
    client = RpcClient(command, "-m", "scripted:nope.yaml")
    try:
        fuzzer = Fuzzer(1, command)
        send_all(client, fuzzer, WARM)
        before = process_size(client.process)
        send_all(client, fuzzer, count - WARM)
        assert_no_leak(before, process_size(client.process))
        assert client.close() == 0
        assert client.process.stderr is not None
        assert b"Traceback" not in client.process.stderr.read()
    finally:
        client.kill()


@pytest.mark.parametrize("count", COUNTS)
def test_http_server_survives_malformed_messages(
    serve_http: Callable[..., HttpServer], count: int
) -> None:
    server = serve_http("-m", "scripted:nope.yaml")
    fuzzer = Fuzzer(1, "mcp")
    post_all(server, fuzzer, WARM)
    before = process_size(server.process)
    post_all(server, fuzzer, count - WARM)
    assert_no_leak(before, process_size(server.process))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert server.process.stderr is not None
    assert b"Traceback" not in server.process.stderr.read()
