"""JSON-RPC 2.0 with the program that started this one: a message per line on standard streams."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import msgspec

from retinue.errors import RetinueError
from retinue.runtime.core.task_group import TaskGroup

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
MAX_LINE_BYTES = 10 * 2**20
MAX_BACKLOG_BYTES = 2**20
"""Above this amount of unread output, messages with `may_drop` are left out."""
FLUSH_S = 2.0
_CHUNK_BYTES = 2**16
_END = b"end of input"
"""Compared by identity: no line that was read is this object."""

RequestId = str | int
Params = Mapping[str, Any]
OnRequest = Callable[[RequestId, str, Params], Awaitable[Any]]
"""Answers a request: (id, method, parameters) -> result. Raises RpcError."""
OnNotification = Callable[[str, Params], None]


class RpcError(RetinueError):
    """A refusal, as the other side receives it."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class LineReader:
    """Lines of a file descriptor. A line that is too long is read to its end, and is None.

    A thread reads, because an event loop can wait for pipes only, and standard input may be a file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=64)
        threading.Thread(target=self._read, name="json-rpc-reader", daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[bytes | None]:
        while (line := await self._lines.get()) is not _END:
            yield line

    def _read(self) -> None:
        kept, too_long = bytearray(), False
        while chunk := self._chunk():
            *ended, rest = chunk.split(b"\n")
            for line in ended:
                kept += line
                self._put(None if too_long or len(kept) > MAX_LINE_BYTES else bytes(kept))
                kept.clear()
                too_long = False
            kept += rest
            if len(kept) > MAX_LINE_BYTES:
                kept.clear()
                too_long = True
        self._put(bytes(kept))
        self._put(_END)

    def _chunk(self) -> bytes:
        try:
            return os.read(self._descriptor, _CHUNK_BYTES)
        except OSError:  # The other side is gone.
            return b""

    def _put(self, line: bytes | None) -> None:
        # Waits while the queue is full, so that no flood of messages fills the memory.
        with suppress(RuntimeError, CancelledError):  # The event loop has ended.
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()


class LineWriter:
    """Writes lines to a file descriptor, in a thread: a reader that stops blocks nothing else."""

    def __init__(self, descriptor: int, on_closed: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._backlog = 0
        self._thread = threading.Thread(target=self._write, name="json-rpc-writer", daemon=True)
        self._thread.start()

    def put(self, line: bytes, *, may_drop: bool = False) -> None:
        """Write a line. One that `may_drop` is left out while the other side does not read."""
        if may_drop and self.is_congested:
            return
        self._backlog += len(line)
        self._queue.put(line)

    @property
    def is_congested(self) -> bool:
        """Whether the other side leaves much unread."""
        return self._backlog > MAX_BACKLOG_BYTES

    async def close(self, timeout_s: float) -> None:
        """Wait until everything is written, at most `timeout_s`."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            left = memoryview(line)
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                self._call(self._on_closed)
                return
            self._call(self._count_written, len(line))

    def _count_written(self, size: int) -> None:
        self._backlog -= size

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # The event loop has ended.
            self._loop.call_soon_threadsafe(function, *arguments)


class Connection:
    """One side of a JSON-RPC connection. Requests are answered at the same time, each by a task."""

    def __init__(
        self, lines: LineReader, output: int, on_request: OnRequest, on_notification: OnNotification
    ) -> None:
        self.closed = asyncio.Event()
        """Set when the other side has closed its output or its input."""
        self._lines = lines
        self._writer = LineWriter(output, self.closed.set)
        self._on_request = on_request
        self._on_notification = on_notification
        self._answering: dict[RequestId, asyncio.Task[None]] = {}
        self._waiting: dict[RequestId, asyncio.Future[Any]] = {}
        self._last_id = 0

    async def serve(self) -> None:
        """Answer requests until cancelled, or until the other side closes and all are answered."""
        async with TaskGroup() as tasks:
            async for line in self._lines:
                self._receive(line, tasks)
            self.closed.set()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return bool(self._answering)

    async def stop_answering(self) -> None:
        """Cancel all requests that are being answered, and wait until they have ended."""
        if tasks := list(self._answering.values()):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def flush(self) -> None:
        await self._writer.close(FLUSH_S)

    def notify(self, method: str, params: Params, *, may_drop: bool = False) -> None:
        """Send a notification; one that `may_drop` only if the other side keeps reading."""
        self._send({"method": method, "params": params}, may_drop=may_drop)

    @property
    def is_congested(self) -> bool:
        """Whether the other side leaves much unread."""
        return self._writer.is_congested

    async def request(self, method: str, params: Params) -> Any:
        """Ask the other side, and return its result. Raises RpcError for an error.

        If the other side is gone, this waits to be cancelled. A missing answer must not count as a
        refusal in a run that is being suspended.
        """
        self._last_id = request_id = self._last_id + 1
        answer = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self._send({"id": request_id, "method": method, "params": params})
        try:
            return await answer
        finally:
            del self._waiting[request_id]

    def cancel(self, request_id: Any) -> bool:
        """Cancel a request for the other side. The request gets no answer.

        False if there is no such request.
        """
        if not isinstance(request_id, str | int):
            return False
        task = self._answering.pop(request_id, None)
        return task is not None and task.cancel()

    def _receive(self, line: bytes | None, tasks: TaskGroup) -> None:
        if line is None:
            limit = MAX_LINE_BYTES // 2**20
            self._refuse(None, INVALID_REQUEST, f"The message is longer than {limit} MiB.")
            return
        if not line.strip():
            return
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._refuse(None, PARSE_ERROR, f"The message is not JSON: {error}")
            return
        if not isinstance(message, dict):
            self._refuse(None, INVALID_REQUEST, "A message is a JSON object, one per line.")
            return
        method, request_id = message.get("method"), message.get("id")
        if method is None:
            self._take_answer(message)
            return
        params = message.get("params")
        if params is None:
            params = {}
        if isinstance(request_id, bool) or not isinstance(request_id, str | int):
            request_id = None
        if not isinstance(method, str) or (request_id is None and "id" in message):
            text = "A request has a method and an id, which is a text or a whole number."
            self._refuse(request_id, INVALID_REQUEST, text)
        elif not isinstance(params, dict):
            self._refuse(request_id, INVALID_PARAMS, "The parameters must be a JSON object.")
        elif request_id is None:
            self._on_notification(method, params)
        elif request_id in self._answering:
            text = f"The id {request_id!r} belongs to a request that is not answered yet."
            self._refuse(request_id, INVALID_REQUEST, text)
        else:
            answer = self._answer(request_id, method, params)
            self._answering[request_id] = tasks.create_task(answer)

    async def _answer(self, request_id: RequestId, method: str, params: Params) -> None:
        try:
            result = await self._on_request(request_id, method, params)
            line = self._encode({"id": request_id, "result": result})
        except RpcError as error:
            self._refuse(request_id, error.code, str(error), error.data)
        except RetinueError as error:
            self._refuse(request_id, INTERNAL_ERROR, str(error))
        except Exception as error:  # A bug in one request must not stop the answers to others.
            traceback.print_exc(file=sys.stderr)
            self._refuse(request_id, INTERNAL_ERROR, f"retinue failed: {error!r}")
        else:
            # A request that was cancelled at the last moment gets no answer.
            if self._answering.get(request_id) is asyncio.current_task():
                self._writer.put(line)
        finally:
            if self._answering.get(request_id) is asyncio.current_task():
                del self._answering[request_id]

    def _take_answer(self, message: Mapping[str, Any]) -> None:
        request_id = message.get("id")
        if not isinstance(request_id, str | int):
            self._refuse(None, INVALID_REQUEST, "A message has a method, or the id of a request.")
            return
        answer = self._waiting.get(request_id)
        if answer is None or answer.done():
            return  # Answered twice, or no longer of interest.
        if (error := message.get("error")) is None:
            answer.set_result(message.get("result"))
        else:
            text = error.get("message") if isinstance(error, dict) else error
            answer.set_exception(RpcError(INTERNAL_ERROR, str(text)))

    def _refuse(self, request_id: Any, code: int, message: str, data: Any = None) -> None:
        error = {"code": code, "message": message} | ({} if data is None else {"data": data})
        self._send({"id": request_id, "error": error})

    def _send(self, message: Params, *, may_drop: bool = False) -> None:
        self._writer.put(self._encode(message), may_drop=may_drop)

    @staticmethod
    def _encode(message: Params) -> bytes:
        return msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n"
