"""Requests without the token, through another name or from another page are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import HTTPForbidden, HTTPUnauthorized

from retinue.interfaces.web.access import COOKIE_S, FIRST_TOKEN_S, Access

if TYPE_CHECKING:
    from tests.interfaces.web.conftest import Site

HOST = "127.0.0.1:80"


class Time:
    now = 1_000.0


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def access(time: Time) -> Access:
    return Access("key", frozenset({HOST}), tls=False, now=lambda: time.now)


def request(method: str = "GET", path: str = "/", **headers: str) -> Any:
    return make_mocked_request(method, path, headers={"Host": HOST, **headers})


def cookie_of(access: Access, token: str) -> str:
    entered = access.exchange(request(path=f"/?token={token}"))
    assert entered is not None
    assert (entered.status, entered.headers["Location"]) == (303, "/")
    (cookie,) = entered.cookies.values()
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    return f"{cookie.key}={cookie.value}"


def test_token_becomes_a_cookie(access: Access) -> None:
    access.check(request(Cookie=cookie_of(access, access.token)))
    access.check(request(Authorization=f"Bearer {access.token}"))


def test_token_of_the_opened_browser_works_once_and_soon(access: Access, time: Time) -> None:
    token = access.make_first_token()
    assert access.exchange(request(path="/?token=wrong")) is None
    cookie_of(access, token)
    assert access.exchange(request(path=f"/?token={token}")) is None
    late = access.make_first_token()
    time.now += FIRST_TOKEN_S + 1
    assert access.exchange(request(path=f"/?token={late}")) is None


def test_cookie_outlives_the_server_and_not_its_time(access: Access, time: Time) -> None:
    cookie = cookie_of(access, access.token)
    restarted = Access("key", frozenset({HOST}), tls=False, now=lambda: time.now)
    assert restarted.token != access.token
    restarted.check(request(Cookie=cookie))
    time.now += COOKIE_S + 1
    with pytest.raises(HTTPUnauthorized, match=r"."):
        restarted.check(request(Cookie=cookie))


@pytest.mark.parametrize("forged", ["", "9999999999.", "9999999999.00", "x.y", "é.é", "9999999999"])
def test_cookie_cannot_be_forged(access: Access, forged: str) -> None:
    with pytest.raises(HTTPUnauthorized):
        access.check(request(Cookie=f"retinue-80={forged}"))


@pytest.mark.parametrize("given", ["", "Bearer ", "Bearer wrong", "Basic eA==", "Bearer é"])
def test_wrong_tokens_are_refused(access: Access, given: str) -> None:
    with pytest.raises(HTTPUnauthorized) as refused:
        access.check(request(Authorization=given))
    assert refused.value.text == (
        "The address needs its token, and this one has none, or an old one. Open the address that"
        " `retinue web` printed when it started."
    )


@pytest.mark.parametrize("host", ["evil.example:80", "127.0.0.1:81", "127.0.0.1", ""])
def test_rebound_names_are_refused_with_the_token_too(access: Access, host: str) -> None:
    bearer = f"Bearer {access.token}"
    with pytest.raises(HTTPForbidden):
        access.check(request(Host=host, Authorization=bearer))
    assert access.exchange(request(path=f"/?token={access.token}", Host=host)) is None


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:81", "null", "https://127.0.0.1:80"]
)
def test_other_origins_are_refused_with_the_cookie_too(
    access: Access, method: str, origin: str
) -> None:
    cookie = cookie_of(access, access.token)
    with pytest.raises(HTTPForbidden):
        access.check(request(method, Cookie=cookie, Origin=origin))


def test_post_with_the_cookie_needs_an_origin(access: Access) -> None:
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
            assert str(response.url) == f"{site.service.origin}/"
            assert "<title>retinue</title>" in await response.text()
        async with browser.get(f"{site.service.origin}/api/runs") as response:
            assert response.status == 200
        async with browser.post(f"{site.service.origin}/api/runs", json={}) as response:
            assert response.status == 403
