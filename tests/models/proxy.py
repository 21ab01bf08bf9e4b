"""A forwarding HTTP proxy on loopback, for tests of clients that use a proxy."""

from __future__ import annotations

import asyncio
from typing import Self
from urllib.parse import urlsplit

from retinue.testing.server import Received, read_request


class ForwardingProxy:
    """Forwards plain requests and CONNECT tunnels; `requests` holds those it received.

    With `refusal`, every request gets that status instead.
    """

    def __init__(self, *, refusal: int | None = None) -> None:
        self._refusal = refusal
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.requests: list[Received] = []

    @property
    def url(self) -> str:
        assert self._server is not None, "enter the proxy first"
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            await self._forward(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            # asyncio would log the cancellation of a connection's task as an error.
            writer.transport.abort()
        finally:
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        if request is None:
            return
        self.requests.append(request)
        if self._refusal is not None:
            writer.write(f"HTTP/1.1 {self._refusal} No\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
            return
        tunnel = request.method == "CONNECT"
        target = urlsplit(f"//{request.target}" if tunnel else request.target)
        far_reader, far_writer = await asyncio.open_connection(target.hostname, target.port)
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                far_writer.write(_rewritten(request, target.path))
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, far_writer))
                group.create_task(_pump(far_reader, writer))
        finally:
            far_writer.close()


def _rewritten(request: Received, path: str) -> bytes:
    # One request per connection, so that the rest can be copied blindly.
    kept = {**request.headers, "connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in kept.items())
    return f"{request.method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + request.body


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
