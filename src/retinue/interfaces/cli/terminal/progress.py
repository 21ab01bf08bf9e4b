"""Shows a run while it works: the interface, and JSON lines."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)

import msgspec

from retinue.domain.events import Event
from retinue.domain.server_info import EndpointLoad


class Progress:
    """Shows nothing. Subclasses show a run while it works."""

    loads: Callable[[], Sequence[EndpointLoad]] = staticmethod(tuple)
    """How busy the model servers are, once the runtime is open."""

    def on_event(self, event: Event) -> None: ...

    def on_past_event(self, event: Event) -> None:
        """Take in an event from before a resume, without showing it."""

    def on_text(self, agent_id: str, text: str) -> None:
        """Take a piece of the reply that an agent's model is streaming; "" says that it thinks."""

    def on_progress(self, run_id: str, agent_id: str, tool: str, text: str) -> None:
        """Show how far a tool, or the runtime's own work for an agent, is."""

    def on_wait(self, reason: str) -> None:
        """Show what the command waits for before its run starts."""

    def live(self) -> AbstractAsyncContextManager[None]:
        """While inside, the display is updated."""
        return nullcontext()

    def paused(self) -> AbstractContextManager[None]:
        """While inside, the caller may write to the terminal."""
        return nullcontext()

    def finish(self) -> None:
        """End the display: the caller prints the result next."""


@asynccontextmanager
async def waiting_line() -> AsyncIterator[Callable[[str], None]]:
    """While inside, a terminal shows on standard error what the yielded function was told last."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from retinue.interfaces.cli.terminal.console import make_progress  # Loads rich.

    progress = make_progress(sys.stderr, as_json=False, hint="")
    async with progress.live():
        yield progress.on_wait


class JsonLines(Progress):
    """Prints each event as a line of JSON on standard output."""

    def on_event(self, event: Event) -> None:
        sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
        sys.stdout.flush()
