"""Nothing is fetched that was not granted, and each refusal is one clear sentence."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from retinue.errors import ToolFailure
from retinue.tools.web.fetcher import MAX_BYTES, WebClient
from tests.tools.web.web_server import METADATA, Names, WebServer, web_server


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        yield running


def client(server: WebServer, names: Names | None = None, timeout_s: float = 30.0) -> WebClient:
    """A client that may reach site.test, which is on this machine."""
    names = names or Names({"site.test": ["127.0.0.1"]})
    hosts = server.hosts("site.test")
    return WebClient(private_hosts=hosts, resolver=names, timeout_s=timeout_s)


async def refusal(
    server: WebServer, url: str, names: Names | None = None, *hosts: str, timeout_s: float = 30.0
) -> str:
    with pytest.raises(ToolFailure) as refused:
        await client(server, names, timeout_s).fetch(url, hosts or server.hosts())
    assert "bey" not in str(refused.value), "the words of the server are not ours"
    return f"{refused.value}\n{refused.value.quoted}".strip()


async def test_a_page_is_fetched_without_cookies_and_credentials(server: WebServer) -> None:
    fetcher = client(server)
    await fetcher.fetch(server.url("/cookie"), server.hosts())
    fetched = await fetcher.fetch(server.url("/page#part"), server.hosts())
    assert fetched.body.startswith(b"<!doctype html>")
    assert (fetched.url, fetched.media_type) == (server.url("/page"), "text/html")
    for request in server.requests:
        assert not {"Cookie", "Authorization", "Referer"} & request.headers.keys()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://evil.test/", "you may not fetch from evil.test; you may from: site.test:"),
        ("http://site.test/", "you may not fetch from site.test;"),
        ("file:///etc/passwd", "is no address of a web page; write https://HOST/PATH"),
        ("gopher://site.test/", "is no address of a web page"),
        ("http://", "is no address of a web page"),
        ("the first result", "'the first result' is no address of a web page; write https://HOST"),
        ("http://user:pw@site.test/", "with a user name or a password is not fetched"),
        ("http://site.test:99999/", "is no address: "),
        ("http://[::1/", "is no address: "),
    ],
)
async def test_addresses_that_are_refused(server: WebServer, url: str, words: str) -> None:
    assert words in await refusal(server, url)
    assert not server.requests


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("evil\u3002test", "evil.test"),
        ("\uff45vil.test", "evil.test"),
        ("\u00e9vil.test", "xn--vil-9la.test"),
    ],
)
async def test_a_host_has_one_spelling(server: WebServer, host: str, plain: str) -> None:
    """A rule that denies evil.test would not match the others."""
    told = await refusal(server, f"https://{host}/", None, "*")
    assert f"names its host in an unusual way; write https://{plain}/" in told


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "10.0.0.1", "192.168.1.1", "172.16.0.1", "0.0.0.0", METADATA,
        "100.64.0.1", "[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "2130706433", "127.1", "0x7f.1",
    ],
)  # fmt: skip
async def test_addresses_that_are_not_public_are_refused(server: WebServer, host: str) -> None:
    fetcher = WebClient()
    granted = (f"{host}:{server.port}", "*")
    with pytest.raises(ToolFailure, match=r"no public address|you may not|could not be fetched"):
        await fetcher.fetch(f"http://{host}:{server.port}/page", granted)
    assert not server.requests


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", METADATA, "10.1.2.3", "::1", "::ffff:10.0.0.1", "::7f00:1", "::ffff:0:7f00:1",
        "64:ff9b:1::7f00:1", "fec0::1", "5f00::1", "3fff::1", "168.63.129.16",
    ],
)  # fmt: skip
async def test_a_name_that_leads_to_a_private_address_is_refused(
    server: WebServer, address: str
) -> None:
    names = Names({"site.test": [address]})
    with pytest.raises(ToolFailure, match=f"leads to {address}, which is no public address"):
        await WebClient(resolver=names).fetch(server.url("/page"), server.hosts())
    assert not server.requests


async def test_an_answer_that_changes_is_checked_each_time(server: WebServer) -> None:
    """DNS rebinding: the first answer is harmless, the second is this machine."""
    names = Names({"site.test": ["203.0.114.1", "127.0.0.1"]})
    fetcher = WebClient(resolver=names, timeout_s=0.3)
    for _ in range(3):
        with pytest.raises(ToolFailure, match=r"no public address|took longer|could not be"):
            await fetcher.fetch(server.url("/page"), server.hosts())
    assert len(names.asked) == 3, "a name is resolved once for each connection"
    assert not server.requests


async def test_redirects_are_shown_and_checked(server: WebServer) -> None:
    fetched = await client(server).fetch(server.url("/to/to/page"), server.hosts())
    assert fetched.redirects == (server.url("/to/page"), server.url("/page"))
    told = await refusal(server, server.url("/metadata"))
    assert told.endswith(
        "redirects to another host; fetch that if it is what you need\n"
        f"http://{METADATA}/latest/meta-data/"
    )
    told = await refusal(server, server.url("/elsewhere"))
    assert told.endswith("\nhttps://evil.test/stolen")

    # A rule may be about a port.
    async def to_other_port(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://site.test:1/"})

    async with web_server(to_other_port) as other:
        told = await refusal(other, other.url("/"), None, *other.hosts(), "site.test:1")
    assert told.endswith("\nhttp://site.test:1/")
    assert "answered 302 without a Location" in await refusal(server, server.url("/nowhere"))
    # To a granted host, which is for the agent to fetch: the user may have to be asked.
    told = await refusal(server, server.url("/elsewhere"), None, *server.hosts(), "evil.test")
    assert "fetch that if it is what you need" in told


async def test_endless_redirects_end(server: WebServer) -> None:
    told = await refusal(server, server.url("/loop"))
    assert "redirects more than 5 times" in told
    assert len(server.requests) == 6


async def test_ten_gigabytes_are_cut(server: WebServer) -> None:
    tracemalloc.start()
    try:
        fetched = await client(server).fetch(server.url("/endless"), server.hosts())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(fetched.body), fetched.cut) == (MAX_BYTES, True)
    assert peak < 40_000_000


async def test_a_compression_bomb_is_not_unpacked(server: WebServer) -> None:
    fetched = await client(server).fetch(server.url("/bomb"), server.hosts())
    assert (len(fetched.body), fetched.cut) == (MAX_BYTES, True)


async def test_a_slow_drip_ends_at_the_time_limit(server: WebServer) -> None:
    told = await refusal(server, server.url("/drip"), timeout_s=0.2)
    assert told == "site.test took longer than 0.2 s; what it sent is thrown away"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/broken-gzip", "site.test could not be fetched: Error -3 while decompressing"),
        ("/brotli", "the page has the encoding 'br', which was not asked for"),
        ("/missing", "answered 404 Not Found"),
        ("/no-address", "redirects to something that is no address"),
    ],
)
async def test_bad_answers(server: WebServer, path: str, words: str) -> None:
    assert words in await refusal(server, server.url(path))


async def test_an_unknown_name(server: WebServer) -> None:
    told = await refusal(server, "http://gone.test/", Names({}), "gone.test")
    assert told.startswith("gone.test could not be fetched: ")


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0x7f.0x1", "0x7f000001", "a.0177"])
async def test_a_proxy_is_sent_no_short_form_of_an_address(server: WebServer, host: str) -> None:
    fetcher = WebClient(proxy_for=lambda url: f"http://127.0.0.1:{server.port}")
    with pytest.raises(ToolFailure, match="is no public address"):
        await fetcher.fetch(f"http://{host}/page", ("*",))
    assert not server.requests


async def test_through_a_proxy_the_host_list_still_applies(server: WebServer) -> None:
    """The proxy resolves names, so they cannot be checked; addresses in URLs can."""
    fetcher = WebClient(proxy_for=lambda url: f"http://127.0.0.1:{server.port}")
    # Aiohttp resolves the proxy's own address, which the user has configured, by itself.
    fetched = await fetcher.fetch("http://docs.test/page", ("docs.test",))
    assert fetched.body.startswith(b"<!doctype html>")
    assert server.requests[0].headers["Host"] == "docs.test"
    for url in ("http://evil.test/page", f"http://{METADATA}/page"):
        with pytest.raises(ToolFailure):
            await fetcher.fetch(url, ("docs.test", METADATA))
    assert len(server.requests) == 1
