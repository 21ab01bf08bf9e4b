"""The rule about token, `Host` and `Origin`, for all HTTP servers.

Any web page can make a browser send requests to this machine, so listening on loopback alone
protects nothing. A request needs the token or a cookie, a `Host` that names this server (a name
that an attacker has rebound to 127.0.0.1 does not), and no `Origin` but this server's.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import NamedTuple

BEARER = "Bearer "
WRONG_HOST = (
    "This server does not answer to the name {host!r}; use the address that it printed when it"
    " started."
)
WRONG_ORIGIN = "A page of {origin} has sent this request; only pages of this server may."


class Refusal(NamedTuple):
    status: int
    text: str


class HttpAccess(NamedTuple):
    """Decides about requests to a server that answers to `hosts`."""

    hosts: frozenset[str]
    token: str
    no_token: str
    """The sentence for those who have neither token nor cookie."""
    scheme: str = "http"

    def refusal(
        self, method: str, headers: Mapping[str, str], *, has_cookie: bool = False
    ) -> Refusal | None:
        """Why a request is not answered; None if it may be. Names in `headers` have no case."""
        host, origin = headers.get("Host", ""), headers.get("Origin")
        if host not in self.hosts:
            return Refusal(403, WRONG_HOST.format(host=host))
        if origin is not None and origin != f"{self.scheme}://{host}":
            return Refusal(403, WRONG_ORIGIN.format(origin=origin))
        given = headers.get("Authorization", "")
        if given.startswith(BEARER) and equal(given.removeprefix(BEARER), self.token):
            return None
        if not has_cookie:
            return Refusal(401, self.no_token)
        # Browsers add the cookie to requests of any page, and Origin to every POST.
        if origin is None and method not in ("GET", "HEAD"):
            return Refusal(403, WRONG_ORIGIN.format(origin="an unknown origin"))
        return None


def equal(given: str, expected: str) -> bool:
    """Compare in constant time."""
    # Headers may contain bytes that are not text.
    return hmac.compare_digest(given.encode(errors="surrogatepass"), expected.encode())
