"""Follows a run's journal while this process or another writes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from retinue.domain.events import Event
from retinue.ports.clock import Clock
from retinue.ports.store import Store

POLL_S = 0.05


async def follow(
    store: Store,
    clock: Clock,
    run_id: str,
    *,
    is_active: Callable[[str], bool] | None = None,
    after: int = 0,
) -> AsyncGenerator[Event, None]:
    """The events of a run in order, and new ones as long as `is_active` says that a process works.

    Without `is_active`, the events end with the journal.
    """
    row = await store.run(run_id)
    last_look = False
    while True:
        page = await store.events(row.id, after=after)
        for event in page:
            yield event
            after = event.seq
            if event.type == "run.finished":
                return
        if page:
            continue
        if last_look:
            return
        if is_active is not None and is_active(row.id):
            await clock.sleep(POLL_S)
        else:
            # Events may have been written since the last page.
            last_look = True
