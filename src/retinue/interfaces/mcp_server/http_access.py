"""Refuses HTTP requests to the MCP server, unless they come from a program that has the token.

Any web page can make a browser send requests to this machine, so listening on loopback alone
protects nothing. A request needs the token, a `Host` that names this server (a name that an
attacker has rebound to 127.0.0.1 does not), and no `Origin` but this server's.
"""

from __future__ import annotations

import hmac

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

BEARER = "Bearer "


class HttpAccess:
    """An ASGI application that passes on only the requests that may be answered."""

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str]) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(Headers(scope=scope))):
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
            return _refused(403, f"This server does not answer to the name {host!r}.")
        if origin is not None and origin not in {f"http://{name}" for name in self._hosts}:
            return _refused(
                403, f"A page of {origin} sent this request; web pages may not use this server."
            )
        given = headers.get("authorization", "")
        if not given.startswith(BEARER) or not hmac.compare_digest(
            given.removeprefix(BEARER).encode(errors="surrogatepass"), self._token.encode()
        ):
            return _refused(
                401,
                "Send the token as `Authorization: Bearer TOKEN`; `retinue mcp --http` prints it.",
            )
        return None


def _refused(status: int, text: str) -> Response:
    # A body of JSON-RPC, which clients show to their users.
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": text}}
    # No WWW-Authenticate header: clients would take it for an invitation to OAuth.
    return Response(msgspec.json.encode(error), status, media_type="application/json")
