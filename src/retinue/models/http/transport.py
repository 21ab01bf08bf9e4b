"""Posts a request to a model server and reads the response, in any dialect.

The dialect gives the body to send and the reader for the response. Connections and their reuse,
timeouts and broken responses are handled here.
"""

from __future__ import annotations

import asyncio
import base64
import io
import ssl
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from retinue.errors import ConfigError, ModelError, ProviderError
from retinue.models.http.decoding import decode_or_text
from retinue.models.http.endpoint import Endpoint, ReadKey
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.http.idle_timeout import IdleTimeout, IdleTimeouts
from retinue.models.http.post_request import Connector, PostRequest, Response
from retinue.models.http.reply import ReplyReader
from retinue.models.http.sse import MAX_LINE_BYTES, EventParser, EventTooLarge
from retinue.version import VERSION

MAX_STREAM_BYTES = 512 * 1024 * 1024

_ERROR_BODY_BYTES = 64 * 1024
_ERROR_BODY_TIMEOUT_S = 5.0
# Long enough for the end of the HTTP body to follow the last event, which lets the connection be
# used again; short enough that a server which never ends it delays no request.
_TAIL_TIMEOUT_S = 0.25
# aiohttp warns about larger bodies, and would write them in one go.
_MAX_WHOLE_BODY_BYTES = 1024 * 1024
# llama.cpp promises to keep a connection and closes it after each stream, so the next request may
# be sent into a connection that is just being closed. That shows at once; whatever takes longer
# may have been worked on, and must not be repeated.
_STALE_TRIES = 3
_STALE_WITHIN_S = 1.0
_LARGER_THAN_A_READ_BYTES = 1024 * 1024
_WHITE_SPACE = b"\xef\xbb\xbf \t\r\n"


OnHeaders = Callable[[int, Mapping[str, str]], None]


def bearer_header(key: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key}"}


class Transport:
    """Posts requests to one path of one endpoint. Any number may be in flight at once.

    Errors are returned and not raised: an error that is raised inside an `except` block carries the
    aiohttp exception, which holds the request's headers and with them the key.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        errors: ErrorMapper,
        *,
        path: str,
        headers: Mapping[str, str] | None = None,
        credentials: Callable[[str], Mapping[str, str]] = bearer_header,
        on_headers: OnHeaders | None = None,
    ) -> None:
        """`path` is appended to the base URL, less what the base URL already has of it.

        `credentials` makes the headers that carry a key. `on_headers` is called with the status and
        the headers of every response as soon as they come.
        """
        self.endpoint = self._endpoint = endpoint
        self._errors = errors
        self._url, userinfo = _url(endpoint, path)
        self._headers = _headers(endpoint, userinfo, credentials)
        self._headers.update(headers or {})
        self._credentials = credentials
        # aiohttp sends the headers of a session to the proxy as well, with the key in them. The
        # headers of a request only pass through it, but giving them each time costs a little more.
        # A key that does not last changes the headers.
        session_headers = endpoint.proxy is None and endpoint.read_key is None
        self._request_headers = None if session_headers else self._headers
        self._tls = tls_context(endpoint)
        self._on_headers = on_headers
        self._idle_timeouts = IdleTimeouts()
        self._session: aiohttp.ClientSession | None = None
        self._request: PostRequest | None = None
        self._closed = False
        # Whether a connection may be left over from an earlier request.
        self._may_reuse = False

    async def aclose(self) -> None:
        self._closed = True
        self._idle_timeouts.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(
        self, body: bytes, reader: ReplyReader[Any], *, timeouts: int = 0
    ) -> ModelError | None:
        """Send `body` and read the response. None if the reply is whole.

        The time for the first token doubles with each of the earlier `timeouts` of this request.
        A server that may be silent for longer than usual counts as alive until its time is over.
        """
        if self._closed:
            return self._errors.client_closed()
        first_byte_s = self._endpoint.first_byte_timeout_s * 2**timeouts
        on_wait = reader.report_life if self._endpoint.is_patient else None
        idle_timeout = self._idle_timeouts.start(first_byte_s, on_wait)
        try:
            read_key = self._endpoint.read_key
            sending = self._send(body) if read_key is None else self._send_with_key(body, read_key)
            response = await sending
            if isinstance(response, ModelError):
                return response
            self._may_reuse = True
            try:
                if self._on_headers is not None:
                    self._on_headers(response.status, response.headers)
                if not 200 <= response.status < 300:
                    refusal = await _read_error_body(response.content)
                    return self._errors.from_response(response.status, response.headers, refusal)
                limits = (first_byte_s, self._endpoint.idle_timeout_s)
                body_reader = _BodyReader(response, reader, self._errors, limits)
                return await body_reader.read(idle_timeout)
            finally:
                # At once, also while being cancelled. A body that was read to its end has
                # returned its connection already.
                if not response.content.at_eof():
                    response.close()
        except RecursionError:
            return self._errors.invalid_json(b"(nested too deeply)")
        except asyncio.CancelledError:
            if not idle_timeout.caused_cancellation():
                raise
            if idle_timeout.was_reset:
                begun = reader.first_token_at is not None
                return _billed(self._errors.idle_timeout(idle_timeout.idle_s, begun=begun))
            return _billed(self._errors.first_token_timeout(first_byte_s))
        finally:
            idle_timeout.stop()

    async def _send_with_key(
        self, body: bytes, read_key: ReadKey
    ) -> aiohttp.ClientResponse | Response | ModelError:
        """Send `body` with a key that does not last: read it again if the server refuses it."""
        try:
            key = await read_key(None)
            self._use_key(key)
            response = await self._send(body)
            if isinstance(response, ModelError) or response.status != HTTPStatus.UNAUTHORIZED:
                return response
            new_key = await read_key(key)
        except ConfigError as error:
            return ProviderError(str(error))
        if new_key == key:
            return response
        response.close()
        self._use_key(new_key)
        return await self._send(body)

    def _use_key(self, key: str) -> None:
        self._errors.hide(key)
        self._headers.update(_key_headers(self._endpoint, key, self._credentials))

    async def _send(self, body: bytes) -> aiohttp.ClientResponse | Response | ModelError:
        tries_left, was_lost = _STALE_TRIES, False
        while True:
            if self._closed:
                return self._errors.client_closed()
            session = self._session
            if session is None:
                session = self._session = self._open()
            tries_left -= 1
            sent_at = time.perf_counter()
            try:
                if self._request is not None and len(body) <= _MAX_WHOLE_BODY_BYTES:
                    return await self._request.send(body)
                return await session.post(
                    self._url,
                    data=body if len(body) <= _MAX_WHOLE_BODY_BYTES else io.BytesIO(body),
                    headers=self._request_headers,
                    allow_redirects=False,
                )
            except aiohttp.ClientError as error:
                late = time.perf_counter() - sent_at > _STALE_WITHIN_S
                if not tries_left or late or not (self._may_reuse and _was_stale(error)):
                    failure = self._errors.from_client_error(error)
                    # A server that is gone after it took the request had begun to work on it.
                    gone = was_lost and isinstance(error, aiohttp.ClientConnectorError)
                    return _billed(failure) if gone or (late and _was_stale(error)) else failure
                was_lost = True

    def _open(self) -> aiohttp.ClientSession:
        # asyncio reads into a new buffer of 256 KiB each time, and glibc maps, shrinks and unmaps
        # memory for it: a sixth of the CPU of a fan-out. After a larger buffer was freed once,
        # glibc takes such sizes from its heap.
        bytes(_LARGER_THAN_A_READ_BYTES)
        endpoint = self._endpoint
        connector = Connector(limit=endpoint.max_connections, ssl=self._tls)
        # Only connecting is limited here: the wait for a free connection may be long, and the
        # idle timeout limits everything after it.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=endpoint.connect_timeout_s)
        if self._request_headers is None:
            self._request = PostRequest(connector, self._url, self._headers, timeout)
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers if self._request_headers is None else None,
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=endpoint.proxy,
            timeout=timeout,
        )


class _BodyReader:
    """Reads the body of one response, and resets the idle timeout when something arrives.

    `limits` are the longest silences before the first token and after it.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse | Response,
        reader: ReplyReader[Any],
        errors: ErrorMapper,
        limits: tuple[float, float],
    ) -> None:
        self._response = response
        self._reader = reader
        self._errors = errors
        self._first_byte_s, self._idle_s = limits
        self._events = EventParser()

    async def read(self, idle_timeout: IdleTimeout) -> ModelError | None:
        content, reader = self._response.content, self._reader
        try:
            piece = await content.readany()
            while piece and not piece.strip(_WHITE_SPACE):
                idle_timeout.reset(self._first_byte_s)
                reader.report_life()
                piece = await content.readany()
            if piece.lstrip(_WHITE_SPACE)[:1] in (b"{", b"[", b"<"):
                return await self._read_whole(piece, idle_timeout)
            received = 0
            while piece:
                error = self._feed(self._events.feed(piece))
                if error is not None:
                    return error
                if reader.done:
                    break
                received += len(piece)
                if received > MAX_STREAM_BYTES:
                    return self._errors.too_large()
                begun = reader.first_token_at is not None
                idle_timeout.reset(self._idle_s if begun else self._first_byte_s)
                piece = await content.readany()
            if not reader.done:
                error = self._feed(self._events.end())
                if error is not None:
                    return error
            if reader.done and not reader.was_cut and not content.at_eof():
                idle_timeout.stop()
                await self._skip_tail()
            return self._final_error()
        except aiohttp.ClientError as failure:
            # The reply is whole if the server said so before the connection broke.
            return None if reader.ended else _billed(self._errors.from_client_error(failure))
        except EventTooLarge:
            return self._errors.too_large()

    def _feed(self, events: list[bytes]) -> ModelError | None:
        error = self._reader.feed(events)
        if error is None and self._events.errors:
            return self._errors.from_error_value(decode_or_text(self._events.errors[0]))
        return error

    def _final_error(self) -> ModelError | None:
        reader = self._reader
        problem = reader.problem()
        if problem is not None:
            return problem
        if reader.ended:
            return None
        if not reader.empty:
            return self._errors.incomplete_reply()
        if self._events.unknown_lines:
            return self._errors.not_an_api(b"\n".join(self._events.unknown_lines))
        return self._errors.empty_reply()

    async def _read_whole(self, piece: bytes, idle_timeout: IdleTimeout) -> ModelError | None:
        """Read a response of a server that does not stream, or a page that is no API's."""
        pieces = [piece]
        size = len(piece)
        content = self._response.content
        while not content.at_eof():
            idle_timeout.reset(self._idle_s)
            piece = await content.readany()
            pieces.append(piece)
            size += len(piece)
            if size > MAX_LINE_BYTES:
                return self._errors.too_large()
        body = b"".join(pieces).lstrip(_WHITE_SPACE)
        if body[:1] == b"<":
            return self._errors.not_an_api(body)
        return self._reader.feed_whole(body) or self._final_error()

    async def _skip_tail(self) -> None:
        try:
            async with asyncio.timeout(_TAIL_TIMEOUT_S):
                while await self._response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError):
            self._response.close()


def _billed(error: ModelError) -> ModelError:
    """The error of a request that the server had accepted: at least its prompt may be billed."""
    error.received_tokens = 0
    return error


def _was_stale(error: aiohttp.ClientError) -> bool:
    """Whether an open connection was lost before a byte of the response came."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return False
    return isinstance(
        error, aiohttp.ServerDisconnectedError | ConnectionError | aiohttp.ClientOSError
    )


async def _read_error_body(content: aiohttp.StreamReader) -> bytes:
    """The part of the body that an error message can use and that arrives soon."""
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
    """The URL to post to, and the `user:password` of the base URL, if it has one."""
    url: URL | None
    try:
        url = URL(endpoint.base_url.strip())
    except ValueError:
        url = None
    if url is None or url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(
            f"The base URL {endpoint.address!r} is not a URL; write it like http://127.0.0.1:8080/v1."
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
    # Every header that aiohttp would add by itself is given, which is cheaper.
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
        headers.update(_key_headers(endpoint, key, credentials))
    elif userinfo is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(userinfo.encode()).decode()}"
    return headers


def _key_headers(
    endpoint: Endpoint, key: str, credentials: Callable[[str], Mapping[str, str]]
) -> dict[str, str]:
    also = {endpoint.key_header: key} if endpoint.key_header else {}
    return {**credentials(key), **also}


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | bool:
    """How to check the endpoint's certificate. Raises ConfigError for an unusable `ca_file`."""
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
