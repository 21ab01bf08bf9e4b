"""The model server as the benchmark sees it: a process to start, an address, and a tally."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

_STOP_TIMEOUT_S = 5


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What the server has been asked since it started."""

    requests: int
    finished: int
    """Conversations whose last request carried what the three tools really returned."""
    body_bytes: int

    def since(self, earlier: Tally) -> Tally:
        return Tally(
            requests=self.requests - earlier.requests,
            finished=self.finished - earlier.finished,
            body_bytes=self.body_bytes - earlier.body_bytes,
        )


class Endpoint:
    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self._tally_url = f"http://127.0.0.1:{port}/tally"
        # Loopback must not go through a proxy that the environment names.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def tally(self) -> Tally:
        with self._opener.open(self._tally_url, timeout=10) as response:
            return msgspec.json.decode(response.read(), type=Tally)


@contextmanager
def endpoint(root: Path) -> Iterator[Endpoint]:
    """A server of its own for the length of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.server"],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            line = process.stdout.readline()
            if not line.strip().isdigit():
                raise RuntimeError(f"the model server printed {line!r} where a port was expected")
            yield Endpoint(int(line))
        finally:
            process.stdin.close()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
