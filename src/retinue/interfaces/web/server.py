"""The HTTP server: routes, errors as one sentence each, and the files of the page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from retinue.errors import RetinueError, RunError, StoreError, UnknownRun, UsageError
from retinue.interfaces.web.authentication import HEADERS, Authentication
from retinue.interfaces.web.built_page import PAGE_FILES, page_file
from retinue.interfaces.web.run_changes import Change
from retinue.interfaces.web.run_reader import (
    MAX_RUNS,
    AgentEvents,
    Live,
    RunItem,
    RunReader,
    Runs,
    Text,
    Texts,
)
from retinue.runtime.history.undo import ChangePatch
from retinue.telemetry.prometheus import CONTENT_TYPE
from retinue.telemetry.statistics import DIMENSIONS, PROJECT, Row

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

EVENT_STREAM = "text/event-stream"
MAX_BODY_BYTES = 1024 * 1024
ERROR_STATUS: tuple[tuple[type[RetinueError], int], ...] = (
    (UnknownRun, 404),
    (UsageError, 400),
    (RunError, 409),
    (StoreError, 503),
    (RetinueError, 500),
)


class Error(msgspec.Struct, frozen=True):
    """Why a request failed, in one sentence."""

    error: str


class Parameter(NamedTuple):
    name: str
    summary: str
    type: type = str


class Route(NamedTuple):
    """A route of the API, with what its description says about it."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any
    body: Any = None
    parameters: Sequence[Parameter] = ()
    content_type: str = "application/json"


class Api:
    """The routes that read. `reader` has the runs."""

    def __init__(self, reader: RunReader, texts: Texts, *, read_only: bool) -> None:
        self._reader = reader
        self._texts = texts
        self._read_only = read_only

    def routes(self) -> list[Route]:
        run = "/api/runs/{run}"
        after = Parameter("after", "Number of the last event that you have", int)
        return [
            Route(
                "GET", "/api/runs", self.runs, "List runs, those at work first", Runs,
                parameters=[Parameter("limit", "How many runs to list", int)],
            ),
            Route("GET", run, self.run, "Show one run", RunItem),
            Route(
                "GET", f"{run}/events", self.events,
                "Follow a run: each event, and what it changes in the state of the run",
                list[Change],
                parameters=[after, Parameter("payload", "1: with the payload of every event", int)],
                content_type=EVENT_STREAM,
            ),
            Route(
                "GET", f"{run}/agents/{{agent}}", self.agent,
                "Show the contract and the events of an agent", AgentEvents, parameters=[after],
            ),
            Route(
                "GET", f"{run}/diff", self.diff, "Show the changes that a run made to the files",
                list[ChangePatch],
                parameters=[Parameter("agent", "Only changes of this agent and its children")],
            ),
            Route(
                "GET", "/api/stats", self.stats, "Statistics of the latest runs", list[Row],
                parameters=[Parameter("by", "role (the default), model, tool, kind or project")],
            ),
            Route(
                "GET", "/metrics", self.metrics, "Metrics of all runs, in Prometheus' format", str,
                content_type="text/plain",
            ),
        ]  # fmt: skip

    async def runs(self, request: web.Request) -> web.Response:
        limit = min(_number(request, "limit", 200), MAX_RUNS)
        return answer(
            Runs(
                project=str(self._reader.directory),
                read_only=self._read_only,
                runs=await self._reader.runs(limit),
            )
        )

    async def run(self, request: web.Request) -> web.Response:
        return answer(await self._reader.run(request.match_info["run"]))

    async def stats(self, request: web.Request) -> web.Response:
        by = request.query.get("by", DIMENSIONS[0])
        if by == PROJECT and self._read_only:
            raise UsageError("With --read-only, the server shows this project only.")
        if by not in DIMENSIONS:
            raise UsageError(f"by must be one of {', '.join(DIMENSIONS)}, not {by[:100]!r}.")
        return answer(await self._reader.statistics(by))

    async def metrics(self, request: web.Request) -> web.Response:
        text = await self._reader.metrics()
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def agent(self, request: web.Request) -> web.Response:
        run, agent = request.match_info["run"], request.match_info["agent"]
        return answer(await self._reader.agent(run, agent, _number(request, "after", 0)))

    async def diff(self, request: web.Request) -> web.Response:
        run = request.match_info["run"]
        return answer(await self._reader.diff(run, request.query.get("agent")))

    async def events(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID", "")
        after = int(last) if _NUMBER.fullmatch(last) else _number(request, "after", 0)
        await self._reader.run(request.match_info["run"])  # Fails before the stream begins.
        response = web.StreamResponse(
            headers={"Content-Type": EVENT_STREAM, "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        changes = self._reader.changes(
            request.match_info["run"],
            after,
            payload=bool(_number(request, "payload", 0)),
            texts=self._texts,
        )
        with suppress(ConnectionError):  # The page was closed.
            try:
                async for batch in changes:
                    await response.write(_message(batch))
            except RetinueError as error:
                await response.write(b"event: problem\ndata: %b\n\n" % _json(Error(str(error))))
        return response


def _message(batch: list[Change] | Live | Text | None) -> bytes:
    if batch is None:
        return b": alive\n\n"
    if isinstance(batch, Live | Text):
        name = b"live" if isinstance(batch, Live) else b"text"
        return b"event: %b\ndata: %b\n\n" % (name, _json(batch))
    return b"id: %d\ndata: %b\n\n" % (batch[-1].seq, _json(batch))


_json = msgspec.json.Encoder().encode


def answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=_json(value),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


_NUMBER = re.compile("[0-9]{1,18}")
"""A number that fits into SQLite's integers."""


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    if text and not _NUMBER.fullmatch(text):
        raise UsageError(f"{name} must be a number, not {text[:100]!r}.")
    return int(text) if text else default


def make_app(
    authentication: Authentication, routes: Sequence[Route], *, page: bool
) -> web.Application:
    """The application: these routes behind `authentication`, and the page if it is wanted."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if (
                "token" in request.query
                and (entered := authentication.exchange(request)) is not None
            ):
                return entered
            authentication.check(request)
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            text = error.text or error.reason
            if request.path.removeprefix(authentication.path).startswith("/api/"):
                return answer(Error(text), error.status)
            return web.Response(text=text, status=error.status)
        except RetinueError as error:
            status = next(code for kind, code in ERROR_STATUS if isinstance(error, kind))
            return answer(Error(str(error)), status)

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(HEADERS)

    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(add_headers)
    # Programs have the token, and the page in a browser its cookie.
    for prefix in ("", authentication.path):
        for route in routes:
            app.router.add_route(route.method, prefix + route.path, route.handler)
        if page:
            for name, content_type in PAGE_FILES.items():
                path = f"{prefix}/" if name == "index.html" else f"{prefix}/{name}"
                app.router.add_get(path, _file_handler(name, content_type))
    return app


def _file_handler(name: str, content_type: str) -> Handler:
    async def send(request: web.Request) -> web.Response:
        body = await asyncio.to_thread(page_file, name)
        response = web.Response(body=body, content_type=content_type, charset="utf-8")
        response.headers["Cache-Control"] = "no-cache"
        response.enable_compression()
        return response

    return send
