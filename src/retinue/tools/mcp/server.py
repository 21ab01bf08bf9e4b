"""One server in the life of a runtime: started when it is first needed, shared by all agents,
started again when it dies, and gone when the runtime is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.domain.mcp_server import ToolServer
from retinue.errors import ToolFailure
from retinue.ports.clock import Clock
from retinue.tools.mcp.content import Said
from retinue.tools.mcp.errors import Lost, Refused, Unusable
from retinue.tools.mcp.listing import Listed, Listings
from retinue.tools.mcp.process import Log

if TYPE_CHECKING:
    from retinue.tools.mcp.session import Session

MAX_FAILURES = 4
"""Lives that ended soon, one after the other, before it is given up."""
BACKOFF_S = 0.5
HEALTHY_S = 60.0
"""Who lives this long has recovered from what came before."""


class Server:
    """Made by `Servers`, in whose task group it lives."""

    def __init__(
        self,
        spec: ToolServer,
        *,
        listings: Listings,
        log: Path,
        clock: Clock,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.spec = spec
        self._listings = listings
        self._log = log
        self._clock = clock
        self._tasks = tasks
        self._life: _Life | None = None
        self._failures = 0
        self._why = ""
        self._listed: tuple[Listed, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether it can be told what it offers without asking it."""
        return self._listings.get(self.spec) is not None

    async def tools(self, *, anew: bool = False) -> Sequence[Listed]:
        """What it offers: by what is known of it, or else, and `anew`, by asking it.

        Raises Unusable.
        """
        known = None if anew else self._listings.get(self.spec)
        if known is None:
            await self._session()
            known = self._listed
        return [tool for tool in known if self.spec.offers(tool.name)]

    async def call(self, tool: Listed, arguments: Mapping[str, Any]) -> Said:
        """Call one of its tools. Raises ToolFailure, in words for a model."""
        name = self.spec.name
        try:
            try:
                return await self._answer(tool, arguments)
            except Lost:
                if not tool.repeatable:
                    raise
            return await self._answer(tool, arguments)
        except Lost:
            text = f"was lost in the middle of this call: it {self._why}. {_LOOK}"
        except Refused as error:
            text = f"refused: {error}"
        except Unusable as error:
            text = f"{error}. Go on without it"
        except TimeoutError:
            text = f"did not answer within {self.spec.timeout_s:g} s. {_LOOK}"
        raise ToolFailure(f"The MCP server {name} {text}.")

    def close(self) -> None:
        """Let it go; its task ends when nothing is left of it."""
        if self._life is not None:
            self._life.task.cancel()

    async def _answer(self, tool: Listed, arguments: Mapping[str, Any]) -> Said:
        session = await self._session()
        deadline = self._clock.timeout(self.spec.timeout_s)

        def heard() -> None:
            # Who reports progress is at work; the agent's own time is the last limit.
            if not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time() + self.spec.timeout_s)

        try:
            async with deadline:
                return await session.call(tool.name, arguments, heard)
        except Lost:
            self._why = await session.why()
            raise

    async def _session(self) -> Session:
        """The connection that everybody shares, opened if there is none. Raises Unusable."""
        if self._life is not None and self._life.is_over:
            healthy = self._life.age_s(self._clock) >= HEALTHY_S
            self._failures = 1 if healthy else self._failures + 1
            self._life = None
        if self._failures >= MAX_FAILURES:
            raise Unusable(
                f"failed {self._failures} times and is not started again; the last time it"
                f" {self._why}"
            )
        if self._life is None:
            life = self._life = _Life()
            life.task = self._tasks.create_task(self._live(life))
        # Shielded: who is cancelled while waiting must not cancel it for all.
        session = await asyncio.shield(self._life.opening)
        if session is None:
            raise Unusable(self._why)
        return session

    async def _live(self, life: _Life) -> None:
        """One life of the server, from its start to its end."""
        try:
            if self._failures:
                await self._clock.sleep(BACKOFF_S * 2 ** (self._failures - 1))
            # In a thread: a second of importing must not hold up everybody else.
            module = await asyncio.to_thread(import_module, _SESSION)
            with Log(self._log) as log:
                async with AsyncExitStack() as stack:
                    async with self._clock.timeout(self.spec.start_timeout_s):
                        opening = module.connected(self.spec, log)
                        session: Session = await stack.enter_async_context(opening)
                        await self._list(session)
                    life.began = self._clock.monotonic()
                    life.opening.set_result(session)
                    await session.watched(self._list)
        except TimeoutError:
            self._why = f"was not ready within {self.spec.start_timeout_s:g} s"
        except Unusable as error:
            self._why = str(error)
        except Exception as error:
            # A bug, ours or the SDK's, costs the server and not the run.
            self._why = f"broke: {type(error).__name__}: {error}"
        finally:
            if not life.opening.done():
                life.opening.set_result(None)

    async def _list(self, session: Session) -> None:
        self._listed = tuple(await session.tools())
        self._listings.keep(self.spec, self._listed)


class _Life:
    """From a start to an end. `opening` becomes the connection, or None if there will be none."""

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.opening: asyncio.Future[Session | None]
        self.opening = asyncio.get_running_loop().create_future()
        self.began: float | None = None

    @property
    def is_over(self) -> bool:
        if not self.opening.done():
            return False
        session = self.opening.result()
        return session is None or session.is_lost

    def age_s(self, clock: Clock) -> float:
        return 0.0 if self.began is None else clock.monotonic() - self.began


_SESSION = "retinue.tools.mcp.session"
_LOOK = "It may have been done; look before you call it again"
