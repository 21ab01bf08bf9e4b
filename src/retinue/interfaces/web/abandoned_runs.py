"""Resumes runs whose process is gone, for `retinue serve --resume`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from retinue.errors import RecoveryError, RetinueError, StoreError
from retinue.interfaces.view.run_status import ABANDONED, row_status
from retinue.interfaces.web.hosted_runs import HostedRuns
from retinue.interfaces.web.run_reader import RunReader
from retinue.ports.clock import Clock
from retinue.ports.store import RunRow
from retinue.project import has_journal
from retinue.runtime.history.recovery import MIN_EVENTS, recorded_options
from retinue.runtime.history.session import user_runs
from retinue.runtime.runtime import Runtime

LOOK_EVERY_S = 5.0
_ALL = 1_000_000


class AbandonedRuns:
    """Looks for runs of this user without an outcome on which no process works, and resumes them.

    A run that a person has stopped stays as it is. `report` gets a sentence about each.
    """

    def __init__(
        self, reader: RunReader, hosted: HostedRuns, clock: Clock, report: Callable[[str], None]
    ) -> None:
        self._reader = reader
        self._hosted = hosted
        self._clock = clock
        self._report = report
        self._tried: set[tuple[str, int]] = set()
        """Runs, with their last events, that could not be resumed."""
        self._problem = ""

    async def keep_resuming(self) -> None:
        while True:
            try:
                await self._resume_all()
                self._problem = ""
            except StoreError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    self._report(self._problem)
            await self._clock.sleep(LOOK_EVERY_S)

    async def _resume_all(self) -> None:
        if not await has_journal(self._reader.directory, self._reader.environment):
            return
        async with self._reader.open() as store:
            rows = await user_runs(store, limit=_ALL)
            left = [
                row
                for row in reversed(rows)
                if row.status is None
                and row.sealed
                and row.head_seq >= MIN_EVENTS
                and (row.id, row.head_seq) not in self._tried
                and not await asyncio.to_thread(self._reader.is_live, row.id)
                and await row_status(store, row, active=False) == ABANDONED
            ]
            found = []
            for row in left:
                try:
                    found.append((row, await recorded_options(store, row)))
                except RecoveryError as error:
                    self._cannot_resume(row, error)
        for row, options in found:
            await self._resume(row, options)

    def _cannot_resume(self, row: RunRow, error: RetinueError) -> None:
        self._tried.add((row.id, row.head_seq))
        self._report(f"Run {row.id} cannot be resumed: {error}")

    async def _resume(self, row: RunRow, options: dict[str, object]) -> None:
        async def work(runtime: Runtime) -> object:
            return await runtime.resume(row.id)

        try:
            await self._hosted.start(options, work)
        except RetinueError as error:
            # Another server may have been faster.
            if not await asyncio.to_thread(self._reader.is_live, row.id):
                self._cannot_resume(row, error)
        else:
            self._report(f"Run {row.id} continues here: its process was gone.")
