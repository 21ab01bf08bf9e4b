"""Puts the server together, and listens."""

from __future__ import annotations

import logging
import secrets
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from retinue.config.environment import Environment
from retinue.config.user_key import UserKey
from retinue.errors import ConfigError, UsageError
from retinue.interfaces.web.abandoned_runs import AbandonedRuns
from retinue.interfaces.web.authentication import Authentication
from retinue.interfaces.web.commands import Commands
from retinue.interfaces.web.hosted_runs import HostedRuns
from retinue.interfaces.web.openapi import describe
from retinue.interfaces.web.run_reader import RunReader
from retinue.interfaces.web.server import Api, answer, make_app
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.core.task_group import TaskGroup

STOP_S = 2.0


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens. Port 0 is any free port."""

    host: str = "127.0.0.1"
    port: int = 0
    tls_cert: str | None = None
    tls_key: str | None = None

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


class WebService:
    """Serves the runs of one project, or of one exported file."""

    def __init__(
        self, directory: Path, environment: Environment, *, exported: str | None = None
    ) -> None:
        self._reader = RunReader(directory, environment, exported)
        self._environment = environment
        self._authentication: Authentication | None = None
        self.origin = ""

    @property
    def token(self) -> str:
        assert self._authentication is not None, "it is serving"
        return self._authentication.token

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        return f"{self.origin}/?token={self.token}"

    @property
    def one_time_url(self) -> str:
        """Like `url`, with a token that works once."""
        assert self._authentication is not None, "it is serving"
        return f"{self.origin}/?token={self._authentication.make_first_token()}"

    async def run_id(self, run: str) -> str:
        """The whole id of a run. Raises UnknownRun."""
        return (await self._reader.run(run)).id

    @asynccontextmanager
    async def serving(
        self,
        address: Address,
        *,
        page: bool,
        read_only: bool,
        on_resumed: Callable[[str], None] | None = None,
    ) -> AsyncIterator[None]:
        """Listen while the context is open. Raises UsageError if the address cannot be used.

        With `on_resumed`, runs whose process is gone are resumed here; it gets a sentence about
        each.
        """
        tls = make_tls(address)
        listener = listen(address)
        port = listener.getsockname()[1]
        shown = f"[{address.host}]" if ":" in address.host else address.host
        names = {f"{shown}:{port}"}
        if address.is_loopback:
            names |= {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self.origin = f"{'http' if tls is None else 'https'}://{shown}:{port}"
        # The same after a restart on the same port, so that an open page keeps working.
        key = UserKey(self._environment.key_file).sign(f"web {self._reader.directory} {port}")
        self._authentication = Authentication(
            key or secrets.token_hex(), frozenset(names), tls=tls is not None, now=time.time
        )
        hosted = HostedRuns(self._reader.directory, self._environment)
        routes = Api(self._reader, hosted.texts, read_only=read_only).routes()
        if not read_only:
            routes += Commands(self._reader, hosted).routes()
        description = describe(routes)

        async def openapi(request: web.Request) -> web.Response:
            return answer(description)

        app = make_app(self._authentication, routes, page=page)
        app.router.add_get("/api/openapi.json", openapi)
        log = logging.getLogger(__name__)
        log.addFilter(_is_fault)
        runner = web.AppRunner(app, access_log=None, logger=log, shutdown_timeout=STOP_S)
        await runner.setup()
        try:
            await web.SockSite(runner, listener, ssl_context=tls).start()
            async with hosted, TaskGroup() as tasks:
                looking = []
                if on_resumed is not None:
                    abandoned = AbandonedRuns(self._reader, hosted, SystemClock(), on_resumed)
                    looking.append(tasks.create_task(abandoned.keep_resuming()))
                try:
                    yield
                finally:
                    for task in looking:
                        task.cancel()
        finally:
            await runner.cleanup()


def _is_fault(record: logging.LogRecord) -> bool:
    """False for a request that is not HTTP: it is answered with 400.

    aiohttp logs each of them with a traceback. Without a handler, that is the terminal.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


def listen(address: Address, option: str = "--port") -> socket.socket:
    """Open the port of an address. Raises UsageError, which says how `option` names another."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        # Some versions of Python add the address to the error's text.
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise UsageError(
            f"{address.host}:{address.port} cannot be used ({reason}); name another port"
            f" with {option}, or 0 for any free one."
        ) from error


def make_tls(address: Address) -> ssl.SSLContext | None:
    if address.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(address.tls_cert, address.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{address.tls_cert} and {address.tls_key} are no certificate and key: {error}."
        ) from error
    return context
