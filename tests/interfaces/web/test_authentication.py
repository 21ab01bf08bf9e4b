"""Requests without the token, through another name or from another page are refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import HTTPForbidden, HTTPUnauthorized

from retinue.interfaces.web.authentication import COOKIE_S, FIRST_TOKEN_S, Authentication
from tests.tools.web.web_server import web_server

if TYPE_CHECKING:
    from tests.interfaces.web.conftest import Site

HOST = "127.0.0.1:80"


class Time:
    now = 1_000.0


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def access(time: Time) -> Authentication:
    return Authentication("key", frozenset({HOST}), tls=False, now=lambda: time.now)


def request(method: str = "GET", path: str = "/", **headers: str) -> Any:
    return make_mocked_request(method, path, headers={"Host": HOST, **headers})


def cookie_of(access: Authentication, token: str) -> str:
    entered = access.exchange(request(path=f"/?token={token}"))
    assert entered is not None
    assert (entered.status, entered.headers["Location"]) == (303, f"{access.path}/")
    (cookie,) = entered.cookies.values()
    assert cookie["path"] == f"{access.path}/"
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    return f"{cookie.key}={cookie.value}"


def test_token_becomes_a_cookie(access: Authentication) -> None:
    access.check(request(Cookie=cookie_of(access, access.token)))
    access.check(request(Authorization=f"Bearer {access.token}"))


def test_token_of_the_opened_browser_works_once_and_soon(
    access: Authentication, time: Time
) -> None:
    token = access.make_first_token()
    assert access.exchange(request(path="/?token=wrong")) is None
    cookie_of(access, token)
    assert access.exchange(request(path=f"/?token={token}")) is None
    late = access.make_first_token()
    time.now += FIRST_TOKEN_S + 1
    assert access.exchange(request(path=f"/?token={late}")) is None


def test_cookie_outlives_the_server_and_not_its_time(access: Authentication, time: Time) -> None:
    cookie = cookie_of(access, access.token)
    restarted = Authentication("key", frozenset({HOST}), tls=False, now=lambda: time.now)
    assert restarted.token != access.token
    restarted.check(request(Cookie=cookie))
    time.now += COOKIE_S + 1
    with pytest.raises(HTTPUnauthorized, match=r"."):
        restarted.check(request(Cookie=cookie))


@pytest.mark.parametrize("forged", ["", "9999999999.", "9999999999.00", "x.y", "é.é", "9999999999"])
def test_cookie_cannot_be_forged(access: Authentication, forged: str) -> None:
    with pytest.raises(HTTPUnauthorized):
        access.check(request(Cookie=f"retinue-80={forged}"))


@pytest.mark.parametrize("given", ["", "Bearer ", "Bearer wrong", "Basic eA==", "Bearer é"])
def test_wrong_tokens_are_refused(access: Authentication, given: str) -> None:
    with pytest.raises(HTTPUnauthorized) as refused:
        access.check(request(Authorization=given))
    assert refused.value.text == (
        "The address needs its token, and this one has none, or an old one. Open the address that"
        " `retinue web` printed when it started."
    )


@pytest.mark.parametrize("host", ["evil.example:80", "127.0.0.1:81", "127.0.0.1", ""])
def test_rebound_names_are_refused_with_the_token_too(access: Authentication, host: str) -> None:
    bearer = f"Bearer {access.token}"
    with pytest.raises(HTTPForbidden):
        access.check(request(Host=host, Authorization=bearer))
    assert access.exchange(request(path=f"/?token={access.token}", Host=host)) is None


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:81", "null", "https://127.0.0.1:80"]
)
def test_other_origins_are_refused_with_the_cookie_too(
    access: Authentication, method: str, origin: str
) -> None:
    cookie = cookie_of(access, access.token)
    with pytest.raises(HTTPForbidden):
        access.check(request(method, Cookie=cookie, Origin=origin))


def test_post_with_the_cookie_needs_an_origin(access: Authentication) -> None:
    cookie = cookie_of(access, access.token)
    access.check(request("POST", Cookie=cookie, Origin=f"http://{HOST}"))
    access.check(request("POST", Authorization=f"Bearer {access.token}"))
    with pytest.raises(HTTPForbidden):
        access.check(request("POST", Cookie=cookie))


@pytest.mark.parametrize("path", ["/", "/page.js", "/api/runs", "/api/openapi.json", "/nothing"])
async def test_server_gives_nothing_away_without_the_token(site: Site, path: str) -> None:
    async with (
        aiohttp.ClientSession() as stranger,
        stranger.get(site.service.origin + path) as response,
    ):
        assert response.status == 401
        assert "needs its token" in await response.text()


async def test_every_answer_has_a_strict_policy(site: Site) -> None:
    for path in ("/", "/page.js", "/api/runs", "/api/runs/none", "/nothing"):
        async with site.client.get(site.service.origin + path) as response:
            policy = response.headers["Content-Security-Policy"]
            assert "script-src 'self';" in policy
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_browser_enters_with_the_address_and_loses_the_token(site: Site) -> None:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        async with browser.get(site.service.url) as response:
            assert response.status == 200
            page = str(response.url)
            assert "token" not in page
            assert "<title>retinue</title>" in await response.text()
        async with browser.get(f"{page}api/runs") as response:
            assert response.status == 200
        async with browser.post(f"{page}api/runs", json={}) as response:
            assert response.status == 403


async def test_browser_sends_the_cookie_to_no_other_port(site: Site) -> None:
    """Another user of this machine may listen there, and lead the browser to it."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        async with browser.get(site.service.url) as response:
            assert response.status == 200
        async with web_server() as theirs:
            for path in ("/", "/api/runs", "/page.js"):
                async with browser.get(theirs.url(path, "127.0.0.1")):
                    pass
    assert theirs.requests
    assert not any("Cookie" in request.headers for request in theirs.requests)


async def test_a_header_that_is_no_text_is_refused(site: Site) -> None:
    host, _, port = site.service.origin.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    start = f"GET /api/runs HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
    writer.write(start.encode() + b"Authorization: Bearer \xff\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
    writer.close()


async def test_numbers_that_no_event_can_have(site: Site, run_id: str) -> None:
    long = "9" * 5_000
    told = await site.get(f"/api/runs?limit={long}", status=400)
    assert told["error"].startswith("limit must be a number, not '999")
    told = await site.get(f"/api/runs/{run_id}/agents/root?after={'9' * 30}", status=400)
    assert told["error"].startswith("after must be a number")
    async with site.stream(f"/api/runs/{run_id}/events", **{"Last-Event-ID": long}) as stream:
        assert await anext(stream)
