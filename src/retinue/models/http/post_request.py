"""POST requests over aiohttp's connections, without aiohttp's session.

A session prepares each request anew, starts a task that sends the body, and provides for cookies,
redirects and middlewares. The calls of a model need none of that: they differ only in their bodies.
aiohttp still opens, checks and reuses the connections, does TLS and parses the responses.
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage
from multidict import CIMultiDict
from yarl import URL

_LINE_ENDS = frozenset("\r\n\0")
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


class _Protocol(ResponseHandler):
    """Reads a connection with less work for each HTTP chunk: a stream has one for each token.

    aiohttp parses a body chunk by chunk and calls four methods for each. Chunks that arrive
    together, and whole, are taken apart here, and given to the body as if they were one. Everything
    else stays with aiohttp: the head, the last chunk, a chunk that arrived in part, and all that
    follows one.
    """

    is_paused = False
    _chunked_body: aiohttp.StreamReader | None = None
    """The body, while aiohttp's parser waits for the beginning of a chunk."""

    def pause_reading(self) -> None:
        self.is_paused = True
        super().pause_reading()

    def resume_reading(self, *args: Any, **options: Any) -> None:
        # aiohttp resumes whenever something is taken from a body, and parses nothing each time.
        if self.is_paused:
            self.is_paused = False
            super().resume_reading(*args, **options)

    def feed_data(self, data: tuple[RawResponseMessage, aiohttp.StreamReader], *size: int) -> None:
        """Called by aiohttp with the head of a response and its body."""
        self._chunked_body = _chunked_body(*data)
        super().feed_data(data, *size)

    def data_received(self, data: bytes) -> None:
        if self._chunked_body is None and data.startswith(b"HTTP/"):
            end = data.find(_HEAD_END) + len(_HEAD_END)
            if end >= len(_HEAD_END):
                super().data_received(data[:end])
                data = data[end:]
                if not data:
                    return
        body = self._chunked_body
        contents = None if body is None else _contents_of_chunks(data)
        if body is None or contents is None:
            super().data_received(data)
            if data:  # Without any, aiohttp resumes its parser.
                self._chunked_body = None
            return
        body.begin_http_chunk_receiving()
        body.feed_data(b"".join(contents))
        body.end_http_chunk_receiving()
        if not contents[-1]:
            self._chunked_body = None
            super().data_received(_LAST_CHUNK)


def _chunked_body(
    message: RawResponseMessage, body: aiohttp.StreamReader
) -> aiohttp.StreamReader | None:
    """The body of a response, if it comes in chunks that are not compressed."""
    in_chunks = message.chunked and not message.compression and body is not aiohttp.EMPTY_PAYLOAD
    return body if in_chunks else None


def _contents_of_chunks(data: bytes) -> list[bytes] | None:
    """The contents of the chunks, if `data` is nothing but whole chunks in the plainest form."""
    lines = data.split(b"\r\n")
    if lines.pop():
        return None
    sizes, contents = lines[::2], lines[1::2]
    if b" ".join(sizes) != b" ".join([b"%x"] * len(contents)) % (*map(len, contents),):
        return None
    # An empty chunk is the last one.
    return contents if contents and b"" not in contents[:-1] else None


class Connector(aiohttp.TCPConnector):
    """Opens the connections to one server, and keeps them for further requests."""

    def __init__(self, *, limit: int, ssl: ssl.SSLContext | bool) -> None:
        super().__init__(limit=limit, ssl=ssl)
        protocol: type[ResponseHandler] = _Protocol
        self._factory = partial(protocol, loop=self._loop)


class Response:
    """The head of a response, and its body as it arrives; like aiohttp's `ClientResponse`."""

    def __init__(
        self, connection: Connection, message: RawResponseMessage, content: aiohttp.StreamReader
    ) -> None:
        self.status = message.code
        self.headers = message.headers
        self.content = content
        self._connection = connection
        content.on_eof(self._release)

    def close(self) -> None:
        """End the connection, unless the body was read to its end."""
        self._connection.close()

    def _release(self) -> None:
        """Let another request use the connection."""
        transport = self._connection.transport
        if transport is not None and transport.get_write_buffer_size():
            # The server has answered before it received the whole request.
            self._connection.close()
        else:
            self._connection.release()


class PostRequest:
    """A request that is sent any number of times, each time with another body."""

    def __init__(
        self,
        connector: aiohttp.BaseConnector,
        url: URL,
        headers: CIMultiDict[str],
        timeout: aiohttp.ClientTimeout,
    ) -> None:
        self._connector = connector
        self._timeout = timeout
        self._request = aiohttp.ClientRequest("POST", url, headers=headers)
        lines = [f"POST {url.raw_path_qs} HTTP/1.1"]
        lines += [
            f"{name}: {value}"
            for name, value in self._request.headers.items()
            if name.lower() != "content-length"
        ]
        if not _LINE_ENDS.isdisjoint("".join(lines)):
            raise ValueError("A header has a line break or a null byte in it.")
        self._head = "\r\n".join((*lines, "Content-Length: ")).encode()

    async def send(self, body: bytes) -> Response:
        """Send `body` and wait for the head of the response. Raises aiohttp.ClientError."""
        try:
            connection = await self._connector.connect(self._request, [], self._timeout)
        except TimeoutError as error:
            address = self._request.url
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to {address}") from error
        try:
            protocol, transport = connection.protocol, connection.transport
            if protocol is None or transport is None:
                raise aiohttp.ServerDisconnectedError
            protocol.set_response_params(read_until_eof=True)
            transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
            message, content = await protocol.read()
            while 100 <= message.code < 200 and message.code != 101:
                message, content = await protocol.read()
            return Response(connection, message, content)
        except HttpProcessingError as error:
            connection.close()
            raise aiohttp.ClientResponseError(
                self._request.request_info, (), status=error.code, message=error.message
            ) from error
        except BaseException:
            connection.close()
            raise
