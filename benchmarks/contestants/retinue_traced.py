"""retinue with telemetry on: traces and metrics go to a collector in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from benchmarks.contest import FanOut, Job, main
from benchmarks.contestants import retinue

# Takes everything, and keeps nothing.
_COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def _collector() -> Iterator[str]:
    """The address of a collector."""
    with subprocess.Popen(
        [sys.executable, "-c", _COLLECTOR], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


@asynccontextmanager
async def contestant(job: Job) -> AsyncIterator[FanOut]:
    with _collector() as url:
        os.environ["OTEL_SDK_DISABLED"] = "false"
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
        async with retinue.contestant(job) as fan_out:
            yield fan_out


if __name__ == "__main__":
    main(contestant)
