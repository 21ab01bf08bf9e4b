"""What MCP costs a child: `delegate` of `retinue mcp` beside `rt.spawn`, by turns.

Both run the same child with the same scripted model and journal. CPU counts, of all threads: the
time on the clock is mostly that of the disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import msgspec

import retinue
from retinue.config.environment import Environment

LAPS = 10
CALLS = 50
SCRIPT = 'rules:\n  - match: ""\n    steps: [{say: Done.}]\n'
MODEL = "scripted:script.yaml"


class McpCost(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of CPU per child in microseconds; of the start, in milliseconds."""

    spawn_us: float
    delegate_us: float
    start_ms: float

    @property
    def line(self) -> str:
        over = self.delegate_us - self.spawn_us
        return (
            f"A child takes {self.delegate_us:,.0f} µs of CPU through `retinue mcp`, and"
            f" {self.spawn_us:,.0f} µs through `rt.spawn`: {over:+,.0f} µs for the protocol, the"
            f" report and progress. `retinue mcp` has listed its tools after {self.start_ms:.0f} ms"
            f" of CPU. Medians of {LAPS} alternating laps of {CALLS} children."
        )


def measure_mcp() -> McpCost:
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        project, home = Path(scratch, "project"), Path(scratch, "home")
        project.mkdir()
        home.mkdir()
        (project / "script.yaml").write_text(SCRIPT)
        return asyncio.run(_measured(project, home))


async def _measured(project: Path, home: Path) -> McpCost:
    variables = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "retinue", "mcp", "-m", MODEL]
    environment = Environment(variables=variables)
    spawned: list[float] = []
    delegated: list[float] = []
    with subprocess.Popen(  # noqa: ASYNC220
        command, cwd=project, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        client = _Client(process)
        client.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={})
        client.ask("tools/list")
        start_us = _cpu_us(process.pid)
        async with retinue.open(project, model=MODEL, environment=environment) as rt:
            for lap in range(LAPS + 1):
                before = _cpu_us(os.getpid())
                for number in range(CALLS):
                    result = await rt.spawn("researcher", f"spawned {lap} {number}")
                    assert result.ok, result.error
                spawn_us = (_cpu_us(os.getpid()) - before) / CALLS
                before = _cpu_us(process.pid)
                for number in range(CALLS):
                    client.delegate(f"delegated {lap} {number}")
                delegate_us = (_cpu_us(process.pid) - before) / CALLS
                if lap:  # The first one fills caches.
                    spawned.append(spawn_us)
                    delegated.append(delegate_us)
        client.close()
    return McpCost(
        spawn_us=statistics.median(spawned),
        delegate_us=statistics.median(delegated),
        start_ms=start_us / 1000,
    )


class _Client:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[bytes] = process.stdin
        self._output: IO[bytes] = process.stdout
        self._last_id = 0

    def ask(self, method: str, **params: Any) -> Any:
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        self._input.write(json.dumps(message).encode() + b"\n")
        self._input.flush()
        while (answer := json.loads(self._output.readline())).get("id") != self._last_id:
            pass
        return answer["result"]

    def delegate(self, task: str) -> None:
        arguments = {"task": task, "role": "researcher"}
        meta = {"progressToken": task}
        result = self.ask("tools/call", name="delegate", arguments=arguments, _meta=meta)
        assert not result.get("isError"), result

    def close(self) -> None:
        self._input.close()


def _cpu_us(pid: int) -> float:
    """CPU of all threads so far. Threads that have ended are left out: these have long lives."""
    time.sleep(0.02)  # The journal's writer is behind by a moment.
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000
