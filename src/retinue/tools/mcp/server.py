"""One MCP server of a runtime: started at the first use, shared by all agents, restarted when it
dies, and ended with the runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.domain.mcp_server import McpServerSpec
from retinue.errors import ToolFailure
from retinue.ports.clock import Clock
from retinue.tools.mcp.content import CallResult
from retinue.tools.mcp.errors import CallRefused, ServerLost, ServerUnavailable
from retinue.tools.mcp.listing import ListedTool, ListingCache
from retinue.tools.mcp.process import ServerLog, ServerStarter

if TYPE_CHECKING:
    from retinue.tools.mcp.session import Session

MAX_FAILURES = 4
"""Consecutive failures before the server is not started again."""
BACKOFF_S = 0.5
_SHOWN_CHARS = 300
HEALTHY_S = 60.0
"""A connection that lasted this long resets the count of failures."""


class McpServer:
    """One MCP server. `McpServers` makes it and runs its task."""

    def __init__(
        self,
        spec: McpServerSpec,
        *,
        listings: ListingCache,
        log: Path,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        starter: ServerStarter,
    ) -> None:
        self.spec = spec
        self._listings = listings
        self._log = log
        self._clock = clock
        self._tasks = tasks
        self._starter = starter
        self._connection: _Connection | None = None
        self._failures = 0
        self._failure = ""
        self._tools_listed: tuple[ListedTool, ...] = ()

    @property
    def has_cached_listing(self) -> bool:
        """Whether the tools are known without starting the server."""
        return self._listings.get(self.spec) is not None

    async def tools(self, *, refresh: bool = False) -> Sequence[ListedTool]:
        """The tools: from the cache, or from the server if none are cached or with `refresh`.

        Raises ServerUnavailable.
        """
        known = None if refresh else self._listings.get(self.spec)
        if known is None:
            await self._session()
            known = self._tools_listed
        return [tool for tool in known if self.spec.offers(tool.name)]

    async def call(
        self, tool: ListedTool, arguments: Mapping[str, Any], *, traceparent: str = ""
    ) -> CallResult:
        """Call one of its tools. Raises ToolFailure with a message for the model."""
        name = self.spec.name
        try:
            try:
                return await self._call_once(tool, arguments, traceparent)
            except ServerLost:
                if not tool.repeatable:
                    raise
            return await self._call_once(tool, arguments, traceparent)
        except ServerLost:
            text, quoted = f"was lost during this call. {_CHECK_FIRST}", f"It {self._failure}."
        except CallRefused as error:
            text, quoted = "refused the call", str(error)
        except ServerUnavailable as error:
            text, quoted = "is not available. Continue without it", f"It {error}."
        except TimeoutError:
            text, quoted = f"did not answer within {self.spec.timeout_s:g} s. {_CHECK_FIRST}", ""
        # Of the reasons, much is what the server said.
        raise ToolFailure(
            f"The MCP server {name} {text}.", quoted=quoted, source=f"MCP server {name}"
        )

    def close(self) -> None:
        """Cancel its task. The task ends when all processes of the server have ended."""
        if self._connection is not None:
            self._connection.task.cancel()

    async def _call_once(
        self, tool: ListedTool, arguments: Mapping[str, Any], traceparent: str
    ) -> CallResult:
        session = await self._session()
        deadline = self._clock.timeout(self.spec.timeout_s)

        def extend_deadline() -> None:
            # Progress extends the deadline; the time limit of the agent still applies.
            if not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time() + self.spec.timeout_s)

        try:
            async with deadline:
                return await session.call(
                    tool.name, arguments, extend_deadline, traceparent=traceparent
                )
        except ServerLost:
            self._failure = await session.loss_reason()
            raise

    async def _session(self) -> Session:
        """The shared connection, opened if there is none. Raises ServerUnavailable."""
        if self._connection is not None and self._connection.is_closed:
            healthy = self._connection.age_s(self._clock) >= HEALTHY_S
            self._failures = 1 if healthy else self._failures + 1
            self._connection = None
        if self._failures >= MAX_FAILURES:
            raise ServerUnavailable(
                f"failed {self._failures} times and is not started again; the last time it"
                f" {self._failure}"
            )
        if self._connection is None:
            connection = self._connection = _Connection()
            connection.task = self._tasks.create_task(self._run(connection))
        # Shielded: cancelling one caller must not cancel the connection for all.
        session = await asyncio.shield(self._connection.opening)
        if session is None:
            raise ServerUnavailable(self._failure)
        return session

    async def _run(self, connection: _Connection) -> None:
        """Start the server, serve calls until the connection is lost, and clean up."""
        try:
            if self._failures:
                await self._clock.sleep(BACKOFF_S * 2 ** (self._failures - 1))
            # In a thread: importing the SDK takes a second and would block the event loop.
            module = await asyncio.to_thread(import_module, _SESSION)
            with ServerLog(self._log) as log:
                async with AsyncExitStack() as stack:
                    async with self._clock.timeout(self.spec.start_timeout_s):
                        opening = module.connect(self.spec, log, self._starter)
                        session: Session = await stack.enter_async_context(opening)
                        await self._list(session)
                    connection.connected_at = self._clock.monotonic()
                    connection.opening.set_result(session)
                    await session.watch(self._list)
        except TimeoutError:
            limit = f"{self.spec.start_timeout_s:g} s"
            self._failure = f"was not ready within {limit}{_confinement_note(self.spec)}"
        except ServerUnavailable as error:
            self._failure = f"{error}{_confinement_note(self.spec)}"
        except Exception as error:
            # A bug of ours or of the SDK makes the server unusable, and does not end the run.
            self._failure = f"broke: {type(error).__name__}: {str(error)[:_SHOWN_CHARS]}"
        finally:
            if not connection.opening.done():
                connection.opening.set_result(None)

    async def _list(self, session: Session) -> None:
        self._tools_listed = tuple(await session.tools())
        self._listings.keep(self.spec, self._tools_listed)


def _confinement_note(spec: McpServerSpec) -> str:
    """Where a server runs that has failed, and how to allow more: it may need network."""
    if not spec.confined:
        return ""
    allowing = "`sandbox = false`" if spec.network else "`network = true` or `sandbox = false`"
    where = "in the sandbox" if spec.network else "in the sandbox, without network"
    return f" (it runs {where}; {allowing} under [mcp.{spec.name}] in your settings allows more)"


class _Connection:
    """One start of the server. `opening` resolves to the session, or None if it failed."""

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.opening: asyncio.Future[Session | None]
        self.opening = asyncio.get_running_loop().create_future()
        self.connected_at: float | None = None

    @property
    def is_closed(self) -> bool:
        if not self.opening.done():
            return False
        session = self.opening.result()
        return session is None or session.is_lost

    def age_s(self, clock: Clock) -> float:
        return 0.0 if self.connected_at is None else clock.monotonic() - self.connected_at


_SESSION = "retinue.tools.mcp.session"
_CHECK_FIRST = "The call may have taken effect; check before you call it again"
