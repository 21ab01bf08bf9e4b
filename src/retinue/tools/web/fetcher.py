"""Fetches pages for agents, in our own process: the sandbox stays offline.

A request has no cookies and no credentials. Hosts, addresses, size, time and redirects are limited.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from retinue.domain.web_hosts import allows_host, web_host
from retinue.errors import ToolFailure
from retinue.tools.web.addresses import PublicResolver, check_public
from retinue.version import VERSION

MAX_BYTES = 5_000_000
MAX_REDIRECTS = 5
TIMEOUT_S = 30.0
_CHUNK_BYTES = 65_536
_MAX_URL_CHARS = 4_000
_HEADERS = {
    "User-Agent": f"retinue/{VERSION}",
    "Accept": "text/html,text/markdown,text/plain,application/json,application/pdf,*/*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_REDIRECTS = (301, 302, 303, 307, 308)
ProxyFor = Callable[[str], str | None]


class Fetched(NamedTuple):
    """A server's answer. `redirects` are all addresses that it redirected to; `url` is the last."""

    url: str
    redirects: tuple[str, ...]
    media_type: str
    charset: str | None
    body: bytes
    cut: bool
    """Whether the body is longer than MAX_BYTES."""


class WebClient:
    """Makes requests for web tools.

    `private_hosts` may have addresses that are not public. `proxy_for` gives the user's proxy for
    an address. Through a proxy, which resolves names itself, only addresses in URLs can be checked.
    """

    def __init__(
        self,
        *,
        private_hosts: tuple[str, ...] = (),
        proxy_for: ProxyFor = lambda url: None,
        resolver: AbstractResolver | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._private_hosts = private_hosts
        self._proxy_for = proxy_for
        self._resolver = resolver
        self._timeout_s = timeout_s

    async def fetch(self, address: str, hosts: tuple[str, ...]) -> Fetched:
        """Fetch a page from one of `hosts`. Raises ToolFailure, with one clear sentence."""
        url = self.check(address, hosts)
        redirects: list[str] = []
        try:
            async with asyncio.timeout(self._timeout_s), self._session() as session:
                while True:
                    async with session.get(
                        url, allow_redirects=False, proxy=self._proxy_for(str(url))
                    ) as response:
                        if response.status not in _REDIRECTS:
                            return await self._read(response, url, tuple(redirects))
                        url = self.check(_next_address(response, url, redirects), hosts)
                        redirects.append(str(url))
        except TimeoutError:
            raise ToolFailure(
                f"{url.host} took longer than {self._timeout_s:g} s; what it sent is thrown away"
            ) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise ToolFailure(f"{url.host} has no valid certificate: {error.args[-1]}") from None
        except (aiohttp.ClientError, OSError, zlib.error, ValueError) as error:
            if isinstance(error.__cause__, ToolFailure):
                raise error.__cause__ from None
            raise ToolFailure(f"{url.host} could not be fetched: {_reason(error)}") from None

    async def get_json(
        self,
        url: str,
        *,
        headers: dict[str, str],
        params: dict[str, str] | None = None,
        body: object = None,
    ) -> bytes:
        """Ask a search provider of the user, at any address. Raises ToolFailure."""
        method = "GET" if body is None else "POST"
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                aiohttp.ClientSession(
                    cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
                ) as session,
                session.request(
                    method,
                    url,
                    headers=_HEADERS | headers,
                    params=params,
                    json=body,
                    allow_redirects=False,
                    proxy=self._proxy_for(url),
                ) as response,
            ):
                data, _ = await _limited(response)
                if response.status != 200:
                    raise ToolFailure(
                        f"the search provider answered {response.status}",
                        quoted=" ".join(data[:200].decode("utf-8", "replace").split()),
                        source="search provider",
                    )
                return data
        except TimeoutError:
            raise ToolFailure(
                f"the search provider took longer than {self._timeout_s:g} s"
            ) from None
        except (aiohttp.ClientError, OSError, zlib.error, ValueError) as error:
            raise ToolFailure(f"the search provider cannot be asked: {_reason(error)}") from None

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[aiohttp.ClientSession]:
        resolver = PublicResolver(self._private_hosts, self._resolver)
        connector = aiohttp.TCPConnector(
            resolver=resolver, use_dns_cache=False, force_close=True, limit=1
        )
        async with aiohttp.ClientSession(
            connector=connector,
            headers=_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            # We decompress ourselves: a bomb must not be unpacked before it is measured.
            auto_decompress=False,
        ) as session:
            yield session

    def check(self, address: str, hosts: tuple[str, ...]) -> URL:
        """The URL of an address that may be fetched from one of `hosts`. Raises ToolFailure."""
        url = parse_url(address)
        host, port = _host_and_port(url)
        if not allows_host(hosts, host, port):
            named = host if port in (80, 443) else f"{host}:{port}"
            raise ToolFailure(f"you may not fetch from {named}; you may from: {', '.join(hosts)}")
        if not _is_address(url) and _NUMBER.fullmatch(host.rpartition(".")[2]):
            # A proxy may resolve such a number, for example to 127.0.0.1.
            raise ToolFailure(f"{host} is no public address; write all four numbers of an address")
        # Names are checked when they are resolved; an address in a URL is not resolved.
        if _is_address(url) and not allows_host(self._private_hosts, host, port):
            check_public(url.raw_host or "", url.raw_host or "")
        if web_host(address.strip()) != web_host(str(url)):
            # The user's rules and questions name the host as it is written.
            raise ToolFailure(f"{address[:200]!r} names its host in an unusual way; write {url}")
        return url

    async def _read(
        self, response: aiohttp.ClientResponse, url: URL, redirects: tuple[str, ...]
    ) -> Fetched:
        body, cut = await _limited(response)
        media_type = response.content_type.lower()
        if response.status >= 400:
            # Not `response.reason`, whose words the server chooses.
            known = response.status in HTTPStatus.__members__.values()
            words = f" {HTTPStatus(response.status).phrase}" if known else ""
            raise ToolFailure(f"{url} answered {response.status}{words}")
        return Fetched(str(url), redirects, media_type, response.charset, body, cut)


def parse_url(address: str) -> URL:
    """Read an address that a model wrote. Raises ToolFailure."""
    text = address.strip()
    try:
        url = URL(text if "://" in text else f"https://{text}")
        host = url.raw_host
        port = url.port
    except ValueError as error:
        raise ToolFailure(f"{text[:200]!r} is no address: {error}") from None
    if url.scheme not in ("http", "https") or not host or " " in host or port is None:
        raise ToolFailure(f"{text[:200]!r} is no address of a web page; write https://HOST/PATH")
    if url.user is not None or url.password is not None:
        raise ToolFailure("an address with a user name or a password is not fetched")
    if len(text) > _MAX_URL_CHARS:
        raise ToolFailure(f"the address has more than {_MAX_URL_CHARS:,} characters")
    return url.with_fragment(None)


def _host_and_port(url: URL) -> tuple[str, int]:
    host = (url.raw_host or "").rstrip(".").lower()
    return (f"[{host}]" if ":" in host else host), url.port or 0


def _is_address(url: URL) -> bool:
    from aiohttp.helpers import is_ip_address

    return is_ip_address(url.raw_host)


def _next_address(response: aiohttp.ClientResponse, url: URL, redirects: list[str]) -> str:
    """The address that a redirect leads to. Raises ToolFailure if it is on another host."""
    location = response.headers.get("Location", "")
    if not location:
        raise ToolFailure(f"{url} answered {response.status} without a Location")
    try:
        target = str(url.join(URL(location)))
    except ValueError:
        raise ToolFailure(f"{url} redirects to something that is no address") from None
    if len(redirects) == MAX_REDIRECTS:
        raise ToolFailure(f"{url} redirects more than {MAX_REDIRECTS} times")
    if web_host(target) != web_host(str(url)):
        raise ToolFailure(
            f"{url} redirects to another host; fetch that if it is what you need",
            quoted=target,
            source=str(url),
        )
    return target


async def _limited(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """At most MAX_BYTES of the body, decompressed; and whether there are more."""
    unpack = _unpacker(response.headers.get("Content-Encoding", "identity"))
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        part = unpack(chunk, MAX_BYTES + 1 - size)
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            return b"".join(parts)[:MAX_BYTES], True
    return b"".join(parts), False


def _unpacker(encoding: str) -> Callable[[bytes, int], bytes]:
    match encoding.strip().lower():
        case "" | "identity":
            return lambda chunk, most: chunk[:most]
        case "gzip" | "x-gzip":
            return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress
        case "deflate":
            return zlib.decompressobj().decompress
        case other:
            raise ToolFailure(f"the page has the encoding {other[:40]!r}, which was not asked for")


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return "its answer is not valid HTTP"  # The error quotes it.
    return " ".join(str(error).split())[:200] or type(error).__name__
