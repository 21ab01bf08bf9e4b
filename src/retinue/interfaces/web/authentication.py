"""Access to the page and its API: by the token, and by the cookie that replaces it."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable

from aiohttp import hdrs, web

from retinue.interfaces.http_access import HttpAccess, equal

COOKIE_S = 12 * 3600.0
FIRST_TOKEN_S = 60.0

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
    " data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types svelte-trusted-html"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

NO_TOKEN = (
    "The address needs its token, and this one has none, or an old one. Open the address that"
    " `retinue web` printed when it started."
)


class Authentication:
    """Decides about requests to a server that answers to `hosts`.

    `key` is secret and the same after a restart, so that an open page keeps working. The token is
    new each time. It is reusable, because people open the printed address again; the copy for the
    browser that `retinue web` starts is not, because other users can see the arguments of programs.
    """

    def __init__(self, key: str, hosts: frozenset[str], *, tls: bool, now: Callable[[], float]):
        self.token = secrets.token_urlsafe(24)
        self._first_token: tuple[str, float] | None = None
        self._key = key.encode()
        # Browsers send a cookie to every port of a host, where another user may listen. They send
        # this one only below a path that nobody else knows.
        self.path = f"/{self._sign('path')[:32]}"
        self._access = HttpAccess(hosts, self.token, NO_TOKEN, "https" if tls else "http")
        self._now = now

    def make_first_token(self) -> str:
        """A token that works once, within FIRST_TOKEN_S."""
        self._first_token = (secrets.token_urlsafe(24), self._now() + FIRST_TOKEN_S)
        return self._first_token[0]

    def check(self, request: web.Request) -> None:
        """Raise HTTPForbidden or HTTPUnauthorized, unless the request may be answered."""
        has_cookie = self._has_cookie(request)
        refused = self._access.refusal(request.method, request.headers, has_cookie=has_cookie)
        if refused is not None:
            kind = web.HTTPForbidden if refused.status == 403 else web.HTTPUnauthorized
            raise kind(text=refused.text)

    def exchange(self, request: web.Request) -> web.Response | None:
        """The answer to an address with the token: the cookie, and the address of the page.

        None if the token is wrong.
        """
        if request.headers.get(hdrs.HOST, "") not in self._access.hosts:
            return None
        if not self._is_token(request.query.get("token", "")):
            return None
        response = web.Response(status=303, headers={hdrs.LOCATION: f"{self.path}/"})
        expires = str(int(self._now() + COOKIE_S))
        response.set_cookie(
            self._cookie_name(request),
            f"{expires}.{self._sign(f'cookie {expires}')}",
            path=f"{self.path}/",
            max_age=int(COOKIE_S),
            httponly=True,
            samesite="Strict",
            secure=self._access.scheme == "https",
        )
        return response

    def _is_token(self, given: str) -> bool:
        if equal(given, self.token):
            return True
        if self._first_token is None:
            return False
        token, expires = self._first_token
        if not equal(given, token):
            return False
        self._first_token = None
        return self._now() < expires

    def _has_cookie(self, request: web.Request) -> bool:
        expires, _, signature = request.cookies.get(self._cookie_name(request), "").partition(".")
        if not expires.isdecimal() or not equal(signature, self._sign(f"cookie {expires}")):
            return False
        return self._now() < int(expires)

    def _cookie_name(self, request: web.Request) -> str:
        # Cookies of one host are shared by all its ports.
        return f"retinue-{request.headers.get(hdrs.HOST, '').rpartition(':')[2]}"

    def _sign(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(), "sha256").hex()
