"""One question and its answer over HTTP, whichever API is spoken.

Who speaks an API gives a body to send and an `Intake` to read the answer into; connections, their
reuse, silence and broken answers are seen to here.
"""

from __future__ import annotations

import asyncio
import base64
import io
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from retinue.domain.messages import Reply, Request
from retinue.errors import ConfigError, ModelError
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.faults import Faults
from retinue.models.http.idle_timeout import Silence, Watch
from retinue.models.http.sse import MAX_LINE_BYTES, EventSplitter, LineTooLong
from retinue.version import VERSION

MAX_STREAM_BYTES = 512 * 1024 * 1024

_ERROR_BODY_BYTES = 64 * 1024
_ERROR_BODY_TIMEOUT_S = 5.0
# Long enough for the end of the HTTP body to follow the last event, which lets the connection be
# used again; short enough that a server which never ends it delays nobody.
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


class Draft(Protocol):
    """A reply in the making."""

    first_token_at: float | None

    @property
    def empty(self) -> bool: ...

    def reply(self, request: Request, body: bytes, started_at: float) -> Reply:
        """The finished reply. `body` is what was sent, for servers that do not count tokens."""
        ...


OnHead = Callable[[int, Mapping[str, str]], None]

D_co = TypeVar("D_co", bound=Draft, covariant=True)


class Intake(Protocol[D_co]):
    """Reads an answer into a draft, in the dialect of an API. What it finds wrong is returned."""

    done: bool
    """Whether the server has said its last word: what follows is not read."""

    @property
    def draft(self) -> D_co: ...

    @property
    def ended(self) -> bool:
        """Whether the reply is whole, even if the connection breaks now."""
        ...

    def take(self, events: list[bytes]) -> ModelError | None:
        """The data of some events of a stream."""
        ...

    def take_whole(self, body: bytes) -> ModelError | None:
        """An answer that came in one piece of JSON."""
        ...

    def objection(self) -> ModelError | None:
        """Why a reply that has come to its end is none."""
        ...


def bearer(key: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key}"}


class Exchange:
    """The way to one path of one endpoint. Any number of exchanges may be under way at once.

    What went wrong is returned and not raised, so that an error is raised outside of `except`
    blocks and carries no aiohttp exception, which would hold the request's headers and with them
    the key.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        faults: Faults,
        *,
        path: str,
        headers: Mapping[str, str] | None = None,
        credentials: Callable[[str], Mapping[str, str]] = bearer,
        on_head: OnHead | None = None,
    ) -> None:
        """`path` comes after the base URL, unless that ends in it or in a beginning of it.

        `credentials` are the headers that show a key. `on_head` is told the status and the headers
        of every answer as soon as they come.
        """
        self._endpoint = endpoint
        self._faults = faults
        self._url, userinfo = _url(endpoint, path)
        self._headers = _headers(endpoint, userinfo, credentials)
        self._headers.update(headers or {})
        # aiohttp shows the headers of a session to the proxy as well, with the key in them.
        # Those of each request only go through it; giving them each time costs a little more.
        self._each_time = None if endpoint.proxy is None else self._headers
        self._tls = _tls(endpoint)
        self._on_head = on_head
        self._watch = Watch()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        # Whether a connection may be left over from an earlier answer.
        self._reuses = False

    @property
    def host(self) -> str | None:
        return self._url.host

    async def aclose(self) -> None:
        self._closed = True
        self._watch.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def run(self, body: bytes, intake: Intake[Draft], *, tries: int = 0) -> ModelError | None:
        """Send, and read the answer; None if it is whole. `tries` were given up before."""
        if self._closed:
            return self._faults.closed()
        first_byte_s = self._endpoint.first_byte_timeout_s * 2**tries
        silence = self._watch.begin(first_byte_s)
        try:
            response = await self._send(body)
            if isinstance(response, ModelError):
                return response
            self._reuses = True
            try:
                if self._on_head is not None:
                    self._on_head(response.status, response.headers)
                if not 200 <= response.status < 300:
                    refusal = await _beginning(response.content)
                    return self._faults.refused(response.status, response.headers, refusal)
                reading = _Reading(response, intake, self._faults, self._endpoint.idle_timeout_s)
                return await reading.run(silence)
            finally:
                # At once, also while being cancelled. A body that was read to its end has given
                # its connection back already.
                if not response.content.at_eof():
                    response.close()
        except RecursionError:
            return self._faults.garbled(b"(nested too deeply)")
        except asyncio.CancelledError:
            if not silence.was_it():
                raise
            return self._faults.stalled() if silence.heard_of else self._faults.late(first_byte_s)
        finally:
            silence.end()

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
                    headers=self._each_time,
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
            headers=self._headers if self._each_time is None else None,
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=endpoint.proxy,
            # Only connecting is limited here: a queue for a connection may be long, and what may
            # take how long after that is decided by who reads.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=endpoint.connect_timeout_s),
        )


class _Reading:
    """Reads one answer, and says when something was heard."""

    def __init__(
        self, response: aiohttp.ClientResponse, intake: Intake[Draft], faults: Faults, idle_s: float
    ) -> None:
        self._response = response
        self._intake = intake
        self._faults = faults
        self._idle_s = idle_s
        self._events = EventSplitter()

    async def run(self, silence: Silence) -> ModelError | None:
        content, intake = self._response.content, self._intake
        try:
            piece = await content.readany()
            while piece and not piece.strip(_WHITE):
                piece = await content.readany()
            if piece.lstrip(_WHITE)[:1] in (b"{", b"[", b"<"):
                return await self._read_whole(piece, silence)
            received = 0
            while piece:
                fault = self._take(self._events.feed(piece))
                if fault is not None:
                    return fault
                if intake.done:
                    break
                received += len(piece)
                if received > MAX_STREAM_BYTES:
                    return self._faults.too_large()
                if intake.draft.first_token_at is not None:
                    silence.heard(self._idle_s)
                piece = await content.readany()
            if not intake.done:
                fault = self._take(self._events.end())
                if fault is not None:
                    return fault
            if intake.done and not content.at_eof():
                silence.end()
                await self._skip_tail()
            return self._verdict()
        except aiohttp.ClientError as error:
            # The reply is whole if the server said so before the connection broke.
            return None if intake.ended else self._faults.unreachable(error)
        except LineTooLong:
            return self._faults.too_large()

    def _take(self, events: list[bytes]) -> ModelError | None:
        fault = self._intake.take(events)
        if fault is None and self._events.errors:
            return self._faults.complained(decoded(self._events.errors[0]))
        return fault

    def _verdict(self) -> ModelError | None:
        intake = self._intake
        objection = intake.objection()
        if objection is not None:
            return objection
        if intake.ended:
            return None
        if not intake.draft.empty:
            return self._faults.broken_off()
        if self._events.strays:
            return self._faults.not_an_api(b"\n".join(self._events.strays))
        return self._faults.empty()

    async def _read_whole(self, piece: bytes, silence: Silence) -> ModelError | None:
        """A server that does not stream, or a page that is not an API's."""
        pieces = [piece]
        size = len(piece)
        content = self._response.content
        while not content.at_eof():
            silence.heard(self._idle_s)
            piece = await content.readany()
            pieces.append(piece)
            size += len(piece)
            if size > MAX_LINE_BYTES:
                return self._faults.too_large()
        body = b"".join(pieces).lstrip(_WHITE)
        if body[:1] == b"<":
            return self._faults.not_an_api(body)
        return self._intake.take_whole(body) or self._verdict()

    async def _skip_tail(self) -> None:
        try:
            async with asyncio.timeout(_TAIL_TIMEOUT_S):
                while await self._response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError):
            self._response.close()


def decoded(data: bytes) -> object:
    """What `data` says: a value if it is JSON, else its text."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data.decode("utf-8", "replace").strip()


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


def _url(endpoint: Endpoint, path: str) -> tuple[URL, str | None]:
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
    base = url.path.rstrip("/")
    begun = path
    while begun:
        if base.endswith(begun):
            base = base.removesuffix(begun)
            break
        begun = begun.rpartition("/")[0]
    userinfo = f"{url.user}:{url.password or ''}" if url.user else None
    return url.with_user(None).with_path(base + path, keep_query=True), userinfo


def _headers(
    endpoint: Endpoint, userinfo: str | None, credentials: Callable[[str], Mapping[str, str]]
) -> CIMultiDict[str]:
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
        headers.update(credentials(key))
    elif userinfo is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(userinfo.encode()).decode()}"
    return headers


def _tls(endpoint: Endpoint) -> ssl.SSLContext | bool:
    hops = (endpoint.base_url, endpoint.proxy or "")
    encrypted = any(hop.strip().lower().startswith("https:") for hop in hops)
    # Reading certificates takes 50 ms, which a server on this machine has no use for.
    if endpoint.ca_file is None or not encrypted:
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
