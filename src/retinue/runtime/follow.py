"""Reading a run's journal while it is being written, by this process or another."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from retinue.domain.events import Event
from retinue.ports import Clock, Store

POLL_S = 0.05


async def follow(
    store: Store, clock: Clock, run_id: str, *, live: bool
) -> AsyncGenerator[Event, None]:
    """The events of a run in order; when `live`, wait for more until the run is finished."""
    row = await store.run(run_id)
    after = 0
    while True:
        page = await store.events(row.id, after=after)
        for event in page:
            yield event
            after = event.seq
            if event.type == "run.finished":
                return
        if not page:
            if not live:
                return
            await clock.sleep(POLL_S)
