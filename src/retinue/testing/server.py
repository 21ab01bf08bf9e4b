"""A model server on loopback with scripted answers, down to single bytes if needed.

    async with ModelServer([call("read_file", path="a"), say("done")]) as server:
        model = OpenAIModel(Endpoint(base_url=server.base_url, model="any"))

Scripted replies are streamed as chat completions; for requests to `/v1/messages` in Anthropic's
format, and for those to `/v1/responses` as responses. In both, thoughts must come back unchanged.
A `Response` is sent as it is, so that a test can produce answers that a real server should never
give.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Self

import msgspec

from retinue.domain.messages import Finish
from retinue.models.scripted.model import ScriptedReply, Waitable
from retinue.testing import anthropic_format, responses_format
from retinue.testing.anthropic_format import split


class Framing(StrEnum):
    """How the client recognises the end of the body."""

    CHUNKED = "chunked"
    LENGTH = "length"
    CLOSE = "close"


class ResponseEnding(StrEnum):
    """What the server does after the last byte of the response."""

    PROPER = "proper"
    DROP = "drop"
    HANG = "hang"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP response. `cuts` are offsets into `body` where a new write begins, after `pause_s`.

    `raw` replaces everything else. The server sends nothing until `gate` opens and `work_s` more
    have passed.
    """

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b""
    cuts: tuple[int, ...] = ()
    pause_s: float = 0.0
    framing: Framing = Framing.CHUNKED
    ending: ResponseEnding = ResponseEnding.PROPER
    raw: bytes | None = None
    gate: Waitable | None = None
    work_s: float = 0.0

    def pieces(self) -> list[bytes]:
        edges = sorted({0, *(cut for cut in self.cuts if 0 < cut < len(self.body))})
        return [
            self.body[start:end]
            for start, end in zip(edges, [*edges[1:], len(self.body)], strict=True)
            if end > start
        ]


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A request. The names of its headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


Answering = Response | ScriptedReply


class ModelServer:
    """Serves on a free port of 127.0.0.1 inside its context.

    `answers` is a sequence with one answer per request, or a function of the request. After the
    last answer the server responds with 500. `pages` maps paths to JSON values or functions of the
    request; GET requests go there, are listed in `visits` and use up no answer. With `slots`, the
    server works on that many requests at a time and gives the others `refusal`, a 429 by default.
    """

    def __init__(
        self,
        answers: Iterable[Answering] | Callable[[Received], Answering] = (),
        *,
        pages: Mapping[str, Any] | None = None,
        slots: int | None = None,
        refusal: Response | None = None,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._answer = answers if callable(answers) else _in_order(answers)
        self._pages = pages or {}
        self._slots = slots
        self._refusal = refusal or failing(429, "All slots are taken.")
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self.port = port
        """The port. 0 chooses a free port, which is known inside the context."""
        self.requests: list[Received] = []
        self.visits: list[Received] = []
        self.connections = 0
        """How many connections were opened."""
        self.hang_ups = 0
        """How many connections the client closed."""
        self.busy = self.busiest = 0
        """How many requests are in progress; and the highest number so far."""
        self.refused = 0
        """How many requests came while all slots were in use."""

    @property
    def base_url(self) -> str:
        scheme, host = ("http", "127.0.0.1") if self._tls is None else ("https", "localhost")
        return f"{scheme}://{host}:{self.port}/v1"

    async def received(self, count: int = 1) -> Received:
        """Wait for request number `count` and return it."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def hung_up(self, count: int = 1) -> None:
        """Wait until that many clients have closed their connection."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.hang_ups >= count)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, ssl=self._tls, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
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
        self.connections += 1
        try:
            while await self._serve(reader, writer):
                pass
        except ValueError:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            # asyncio would log the cancellation of a connection's task as an error.
            writer.transport.abort()
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False at the end of the connection."""
        request = await read_request(reader)
        if request is None:
            await self._hang_up()
            return False
        page = self._page(request)
        async with self._changed:
            (self.requests if page is None else self.visits).append(request)
            self._changed.notify_all()
        if page is not None:
            return await self._respond(page, request, reader, writer)
        if self._slots is not None and self.busy >= self._slots:
            self.refused += 1
            return await self._respond(self._refusal, request, reader, writer)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            return await self._respond(self._answer(request), request, reader, writer)
        finally:
            self.busy -= 1

    async def _respond(
        self,
        answer: Answering,
        request: Received,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        response = _formatted(answer, request) if isinstance(answer, ScriptedReply) else answer
        if response.gate is not None and not await self._opened(response.gate, reader):
            return False
        if response.work_s:
            await asyncio.sleep(response.work_s)
        await self._send(response, writer)
        match response.ending:
            case ResponseEnding.HANG:
                await reader.read()
                await self._hang_up()
                return False
            case ResponseEnding.DROP:
                writer.transport.abort()
                return False
            case ResponseEnding.PROPER:
                return response.raw is None and response.framing is not Framing.CLOSE

    def _page(self, request: Received) -> Answering | None:
        """The page that a request asks for; None if it asks the model."""
        page = self._pages.get(request.target.partition("?")[0])
        if page is None:
            return failing(404, "Not found") if request.method == "GET" else None
        page = page(request) if callable(page) else page
        return page if isinstance(page, Answering) else as_json(page)

    async def _opened(self, gate: Waitable, reader: asyncio.StreamReader) -> bool:
        """Wait for the gate; False if the client disconnects first."""
        opened = asyncio.ensure_future(gate.wait())
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({opened, gone}, return_when=asyncio.FIRST_COMPLETED)
            if opened.done():
                return True
            await self._hang_up()
            return False
        finally:
            opened.cancel()
            gone.cancel()
            await asyncio.gather(opened, gone, return_exceptions=True)

    async def _hang_up(self) -> None:
        async with self._changed:
            self.hang_ups += 1
            self._changed.notify_all()

    @staticmethod
    async def _send(response: Response, writer: asyncio.StreamWriter) -> None:
        if response.raw is not None:
            writer.write(response.raw)
            await writer.drain()
            return
        writer.write(_head(response))
        for number, piece in enumerate(response.pieces()):
            if number:
                await asyncio.sleep(response.pause_s)
            if response.framing is Framing.CHUNKED:
                piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            writer.write(piece)
            await writer.drain()
            # A client on the same loop gets the chance to read this piece by itself.
            await asyncio.sleep(0)
        if response.framing is Framing.CHUNKED and response.ending is ResponseEnding.PROPER:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


async def read_request(reader: asyncio.StreamReader) -> Received | None:
    """The next request of a connection; None at its end. ValueError if it is not HTTP."""
    first_byte = await reader.read(1)
    if not first_byte:
        return None
    if not first_byte.isalpha():
        # A TLS handshake, for example, never contains the end of a request's head.
        raise ValueError
    head = (first_byte + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    body = await _read_body(reader, headers)
    return Received(method=method, target=target, headers=headers, body=body)


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body


def _head(response: Response) -> bytes:
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = "Unknown"
    headers = {name.lower(): value for name, value in response.headers.items()}
    headers.setdefault("content-type", "text/event-stream")
    match response.framing:
        case Framing.CHUNKED:
            headers["transfer-encoding"] = "chunked"
        case Framing.LENGTH:
            headers.setdefault("content-length", str(len(response.body)))
        case Framing.CLOSE:
            headers["connection"] = "close"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {response.status} {phrase}\r\n{lines}\r\n".encode("latin-1")


def _in_order(answers: Iterable[Answering]) -> Callable[[Received], Answering]:
    waiting = iter(answers)
    return lambda _: next(waiting, None) or failing(500, "The test server has no more answers.")


def failing(
    status: int,
    message: str,
    *,
    kind: str | None = None,
    code: str | int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An error in OpenAI's format."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    return as_json({"error": error}, status=status, headers=headers)


def _formatted(answer: ScriptedReply, request: Received) -> Response:
    """A scripted reply in the format of the requested API. A delay is a pause in its middle."""
    path = request.target.partition("?")[0]
    if path.endswith("/messages"):
        if (place := anthropic_format.forged(request.json)) is not None:
            told = f"{place}: Invalid `signature` in `thinking` block"
            return as_json(anthropic_format.error(told, kind="invalid_request_error"), status=400)
        response = Response(body=anthropic_format.streamed(answer))
    elif path.endswith("/responses"):
        if (why := responses_format.refusal(request.json)) is not None:
            return failing(400, why, kind="invalid_request_error")
        response = Response(body=responses_format.streamed(answer))
    else:
        response = streamed(answer)
    if not answer.delay_s:
        return response
    ends = [mark.end() for mark in re.finditer(b"\n\n", response.body)]
    middle = ends[(len(ends) - 1) // 2]
    return msgspec.structs.replace(response, cuts=(middle,), pause_s=answer.delay_s)


def as_json(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(
        status=status,
        headers={"content-type": "application/json", **(headers or {})},
        body=msgspec.json.encode(value),
        framing=Framing.LENGTH,
    )


def whole(answer: ScriptedReply) -> Response:
    """A scripted reply as one JSON body, as from a server that does not stream."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.thought:
        message["reasoning_content"] = answer.thought
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": plan.name, "arguments": plan.arguments},
            }
            for number, plan in enumerate(answer.calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(answer)}
    reply: dict[str, Any] = {"object": "chat.completion", "choices": [choice]}
    if answer.usage is not None:
        reply["usage"] = _usage(answer)
    return as_json(reply)


def streamed(answer: ScriptedReply) -> Response:
    """A scripted reply as a stream in OpenAI's format, a few characters per chunk."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in split(answer.thought)]
    deltas += [{"content": piece} for piece in split(answer.text)]
    for number, plan in enumerate(answer.calls):
        function = {"name": plan.name, "arguments": ""}
        opening = {"index": number, "id": f"call_{number}", "type": "function"}
        deltas.append({"tool_calls": [{**opening, "function": function}]})
        deltas += [
            {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}
            for piece in split(plan.arguments)
        ]
    chunks = [chunk(delta) for delta in deltas]
    chunks.append(chunk({}, finish_reason=_finish_reason(answer)))
    if answer.usage is not None:
        chunks.append({"object": "chat.completion.chunk", "choices": [], "usage": _usage(answer)})
    return Response(body=events(*chunks, b"[DONE]"))


def chunk(delta: Mapping[str, Any], *, finish_reason: str | None = None) -> dict[str, Any]:
    """One chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def events(*payloads: Mapping[str, Any] | bytes) -> bytes:
    """Server-sent events; bytes are taken as they are, anything else as JSON."""
    return b"".join(
        b"data: %b\n\n" % (data if isinstance(data, bytes) else msgspec.json.encode(data))
        for data in payloads
    )


def _finish_reason(answer: ScriptedReply) -> str:
    if answer.finish is Finish.LENGTH:
        return "length"
    return "tool_calls" if answer.calls else "stop"


def _usage(answer: ScriptedReply) -> dict[str, Any]:
    usage = answer.usage
    assert usage is not None
    return {
        "prompt_tokens": usage.tokens_in,
        "completion_tokens": usage.tokens_out,
        "total_tokens": usage.tokens,
        "prompt_tokens_details": {"cached_tokens": usage.tokens_cached},
    }
