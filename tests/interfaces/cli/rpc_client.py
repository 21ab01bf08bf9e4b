"""A client of a command that speaks JSON-RPC on its standard streams."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

RETINUE = "from retinue.interfaces.cli.main import main; main()"


class RpcClient:
    """Sends messages to `retinue COMMAND`, and reads those that it sends."""

    def __init__(self, command: str, *argv: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RETINUE, command, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.notifications: list[dict[str, Any]] = []
        self._last_id = 0

    def send(self, message: dict[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read().decode()
        found: dict[str, Any] = json.loads(line)
        assert found["jsonrpc"] == "2.0"
        return found

    def start(self, method: str, **params: Any) -> int:
        self._last_id += 1
        self.send({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    def answer(self, request_id: int | None) -> dict[str, Any]:
        """The answer to a request; notifications before it are kept."""
        while (message := self.read()).get("id", "none") != request_id or "method" in message:
            self.notifications.append(message)
        return message

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self.answer(self.start(method, **params))

    def close(self) -> int:
        """Close the command's input, and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        with self.process:
            self.process.kill()
