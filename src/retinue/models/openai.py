"""The chat-completions API, as OpenAI and nearly every local server speak it."""

from __future__ import annotations

import asyncio
import base64
import io
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Self

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from retinue.domain.messages import Reply, Request
from retinue.errors import ConfigError, ModelError
from retinue.models.body import BodyEncoder
from retinue.models.chunks import decode_chunk
from retinue.models.draft import Draft
from retinue.models.endpoint import Endpoint
from retinue.models.faults import Faults
from retinue.models.sse import MAX_LINE_BYTES, EventSplitter, LineTooLong
from retinue.version import VERSION

MAX_STREAM_BYTES = 512 * 1024 * 1024

_PATH = "/chat/completions"
_ERROR_BODY_BYTES = 64 * 1024
_ERROR_BODY_TIMEOUT_S = 5.0
# Long enough for the end of the HTTP body to follow [DONE], which lets the connection be used
# again; short enough that a server which never ends it delays nobody.
_TAIL_TIMEOUT_S = 0.25
# aiohttp warns about larger bodies, and would write them in one go.
_WHOLE_BODY_BYTES = 1024 * 1024
# llama.cpp promises to keep a connection and closes it after each stream, so the next request may
# be sent into a connection that is just being closed. That shows at once; whatever takes longer
# may have been worked on, and is not ours to repeat.
_STALE_TRIES = 3
_STALE_WITHIN_S = 1.0
_LARGER_THAN_A_READ = 1024 * 1024
_WHITE = b"\xef\xbb\xbf \t\r\n"


class OpenAIModel:
    """One model at one endpoint. Any number of replies may be under way at once.

    Errors are raised outside of `except` blocks, so that they carry no aiohttp exception, which
    would hold the request's headers and with them the key.
    """

    def __init__(self, endpoint: Endpoint, *, name: str | None = None) -> None:
        self._endpoint = endpoint
        self._name = name or f"openai:{endpoint.model}@{endpoint.address}"
        self._url, userinfo = _chat_url(endpoint)
        self._headers = _headers(endpoint, userinfo)
        self._tls = _tls(endpoint)
        self._bodies = BodyEncoder(endpoint.model)
        self._faults = Faults(endpoint)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        # Whether a connection may be left over from an earlier reply.
        self._reuses = False

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"OpenAIModel({self._name!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        started_at = time.perf_counter()
        body = self._bodies.encode(request)
        draft = Draft(on_text)
        if self._endpoint.first_byte_timeout_s is None:
            fault = await self._exchange(body, draft, None)
        else:
            fault = await self._exchange_in_time(body, draft, self._endpoint.first_byte_timeout_s)
        if fault is not None:
            raise fault
        return draft.reply(request, body, started_at)

    async def _exchange_in_time(
        self, body: bytes, draft: Draft, first_byte_s: float
    ) -> ModelError | None:
        deadline = asyncio.timeout(first_byte_s)
        try:
            async with deadline:
                return await self._exchange(body, draft, deadline)
        except TimeoutError:
            if not deadline.expired():
                raise
            return self._faults.late()

    async def _exchange(
        self, body: bytes, draft: Draft, deadline: asyncio.Timeout | None
    ) -> ModelError | None:
        """Send, and read into the draft. What went wrong is returned, not raised: see the class."""
        response = await self._send(body)
        if isinstance(response, ModelError):
            return response
        self._reuses = True
        try:
            if not 200 <= response.status < 300:
                refusal = await _beginning(response.content)
                return self._faults.refused(response.status, response.headers, refusal)
            reading = _Reading(response, draft, self._faults, self._endpoint.idle_timeout_s)
            return await reading.run(deadline)
        finally:
            # At once, also while being cancelled. A body that was read to its end has given its
            # connection back already, and this does not take it away again.
            response.close()

    async def _send(self, body: bytes) -> aiohttp.ClientResponse | ModelError:
        tries_left = _STALE_TRIES
        while True:
            if self._closed:
                return self._faults.closed()
            session = self._session
            if session is None:
                session = self._session = self._open()
            tries_left -= 1
            sent_at = time.perf_counter()
            try:
                return await session.post(
                    self._url,
                    data=body if len(body) <= _WHOLE_BODY_BYTES else io.BytesIO(body),
                    allow_redirects=False,
                )
            except aiohttp.ClientError as error:
                late = time.perf_counter() - sent_at > _STALE_WITHIN_S
                if not tries_left or late or not (self._reuses and _was_stale(error)):
                    return self._faults.unreachable(error)

    def _open(self) -> aiohttp.ClientSession:
        # asyncio reads into a new buffer of 256 KiB each time, and glibc makes a mapping for it,
        # shrinks it and takes it away again: a sixth of the CPU of a fan-out. Having freed a larger
        # one, it takes such sizes from its heap.
        bytes(_LARGER_THAN_A_READ)
        endpoint = self._endpoint
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=endpoint.max_connections, ssl=self._tls),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=endpoint.proxy,
            # Only connecting is limited here: a queue for a connection may be long, and what may
            # take how long after that is decided by who reads.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=endpoint.connect_timeout_s),
        )


class _Reading:
    """Reads one answer into a draft, and watches that it does not stall."""

    def __init__(
        self, response: aiohttp.ClientResponse, draft: Draft, faults: Faults, idle_s: float
    ) -> None:
        self._response = response
        self._draft = draft
        self._faults = faults
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._events = EventSplitter()
        self._done = False
        self._fault: ModelError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen_at = 0.0
        self._stalled = False

    async def run(self, deadline: asyncio.Timeout | None) -> ModelError | None:
        try:
            return await self._run(deadline)
        except aiohttp.ClientError as error:
            if self._stalled:
                return self._faults.stalled()
            # The reply is whole if the server said so before the connection broke.
            return None if self._ended else self._faults.unreachable(error)
        except LineTooLong:
            return self._faults.too_large()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    @property
    def _ended(self) -> bool:
        return self._done or self._draft.finish_reason is not None or self._draft.counted

    async def _run(self, deadline: asyncio.Timeout | None) -> ModelError | None:
        content = self._response.content
        piece = await content.readany()
        while piece and not piece.strip(_WHITE):
            piece = await content.readany()
        if piece.lstrip(_WHITE)[:1] in (b"{", b"[", b"<"):
            if deadline is not None:
                deadline.reschedule(None)
            self._watch()
            return await self._read_whole(piece)
        received = 0
        while piece:
            self._take(self._events.feed(piece))
            if self._done or self._fault is not None:
                break
            received += len(piece)
            if received > MAX_STREAM_BYTES:
                return self._faults.too_large()
            if self._timer is not None:
                self._seen_at = self._loop.time()
            elif self._draft.first_token_at is not None:
                if deadline is not None:
                    deadline.reschedule(None)
                self._watch()
            piece = await content.readany()
        if self._fault is None and not self._done:
            self._take(self._events.end())
        if self._fault is None and self._done and not content.at_eof():
            await self._skip_tail()
        return self._verdict()

    def _take(self, events: list[bytes]) -> None:
        for data in events:
            if self._done:
                return
            try:
                chunk = decode_chunk(data)
            except msgspec.DecodeError:
                if data.strip() == b"[DONE]":
                    self._done = True
                elif data.strip():
                    self._fault = self._faults.garbled(data)
                    return
                continue
            if chunk.error:
                self._fault = self._faults.complained(chunk.error)
                return
            self._draft.add(chunk)
        if self._events.errors:
            self._fault = self._faults.complained(_decoded(self._events.errors[0]))

    def _verdict(self) -> ModelError | None:
        draft = self._draft
        if self._fault is not None:
            return self._fault
        if draft.finish_reason == "content_filter":
            return self._faults.filtered()
        if draft.finish_reason == "error":
            return self._faults.broken_off()
        if draft.empty and draft.finish_reason is None:
            if self._events.strays and not self._ended:
                return self._faults.not_an_api(b"\n".join(self._events.strays))
            return self._faults.empty()
        return None if self._ended else self._faults.broken_off()

    async def _read_whole(self, piece: bytes) -> ModelError | None:
        """A server that does not stream, or a page that is not an API's."""
        pieces = [piece]
        size = len(piece)
        content = self._response.content
        while piece := await content.readany():
            self._seen_at = self._loop.time()
            pieces.append(piece)
            size += len(piece)
            if size > MAX_LINE_BYTES:
                return self._faults.too_large()
        body = b"".join(pieces)
        if body.lstrip(_WHITE)[:1] == b"<":
            return self._faults.not_an_api(body)
        try:
            chunk = decode_chunk(body.lstrip(_WHITE))
        except msgspec.DecodeError:
            return self._faults.garbled(body)
        if chunk.error:
            return self._faults.complained(chunk.error)
        if not chunk.choices:
            # Errors without the word "error": {"detail": …}, {"object": "error", "message": …}.
            return self._faults.complained(_decoded(body))
        self._draft.add(chunk)
        self._done = True
        return self._verdict()

    async def _skip_tail(self) -> None:
        try:
            async with asyncio.timeout(_TAIL_TIMEOUT_S):
                while await self._response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError):
            self._response.close()

    # One timer looks now and then when the last byte came, instead of one timer per byte.

    def _watch(self) -> None:
        self._seen_at = self._loop.time()
        self._timer = self._loop.call_later(self._idle_s, self._look)

    def _look(self) -> None:
        left_s = self._seen_at + self._idle_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
        else:
            self._stalled = True
            self._response.close()


def _was_stale(error: aiohttp.ClientError) -> bool:
    """Whether the connection was lost before a byte of the answer, having been open."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return False
    return isinstance(
        error, aiohttp.ServerDisconnectedError | ConnectionError | aiohttp.ClientOSError
    )


async def _beginning(content: aiohttp.StreamReader) -> bytes:
    """As much of a refusal's body as a message can use, and arrives soon."""
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_ERROR_BODY_TIMEOUT_S):
            while size < _ERROR_BODY_BYTES and (piece := await content.readany()):
                pieces.append(piece)
                size += len(piece)
    except (TimeoutError, aiohttp.ClientError):
        pass
    return b"".join(pieces)[:_ERROR_BODY_BYTES]


def _decoded(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data.decode("utf-8", "replace").strip()


def _chat_url(endpoint: Endpoint) -> tuple[URL, str | None]:
    """Where to post, and the `user:password` that the base URL had, if it had one."""
    url: URL | None
    try:
        url = URL(endpoint.base_url.strip())
    except ValueError:
        url = None
    if url is None or url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(
            f"The base URL {endpoint.address!r} is not one; write it like http://127.0.0.1:8080/v1."
        )
    path = url.path.rstrip("/").removesuffix(_PATH)
    userinfo = f"{url.user}:{url.password or ''}" if url.user else None
    return url.with_user(None).with_path(path + _PATH, keep_query=True), userinfo


def _headers(endpoint: Endpoint, userinfo: str | None) -> Mapping[str, str]:
    # All that aiohttp would add on its own is given, which is cheaper than letting it look.
    headers = CIMultiDict(
        {
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": f"retinue/{VERSION}",
        }
    )
    key = (endpoint.api_key or "").strip()
    if key:
        if not (key.isascii() and key.isprintable()):
            where = f" in {endpoint.key_source}" if endpoint.key_source else ""
            raise ConfigError(
                f"The API key{where} has characters that no key has, such as a line break. Copy "
                "it again."
            )
        headers["Authorization"] = f"Bearer {key}"
    elif userinfo is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(userinfo.encode()).decode()}"
    return headers


def _tls(endpoint: Endpoint) -> ssl.SSLContext | bool:
    if endpoint.ca_file is None:
        return True
    context = ssl.create_default_context()
    problem: str | None = None
    try:
        context.load_verify_locations(endpoint.ca_file)
    except ssl.SSLError:
        problem = "is not a certificate in PEM form"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    if problem is not None:
        raise ConfigError(f"The ca_file {endpoint.ca_file!r} {problem}.")
    return context
