"""Cleaning away what a project keeps of old runs: journals, copies of files, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from retinue.config.environment import Environment
from retinue.config.settings import load_settings
from retinue.domain.cleanup_report import Chore
from retinue.errors import ChainBroken, RunError, UsageError
from retinue.ports.store import RunRow
from retinue.project import (
    DATABASE,
    STATE_DIR,
    open_journal,
    open_run_locks,
    open_store,
    project,
    user_file_tree,
)
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.pruning import prune
from retinue.store.cleanup import shares, shrink, size_of, sweep_blobs
from retinue.store.sqlite import SqliteStore

EVERY_RUN = 1_000_000
DAY_S = 24 * 3600.0


async def clean_up(
    directory: str | Path = ".",
    *,
    older_s: float | None = None,
    unfinished: bool = False,
    look: bool = False,
    environment: Environment | None = None,
) -> list[Chore]:
    """Remove what is kept of runs and is older, and tell what there was; `look` only tells.

    Without `older_s` each kind of thing has an age of its own. The journals of runs that could be
    resumed go only if `unfinished`.
    """
    root, environment = project(directory), environment or Environment.current()
    if not (root / STATE_DIR / DATABASE).exists():
        raise UsageError(f"Nothing is kept in {root}: no run has begun there.")
    async with open_journal(root) as store:
        at_work = [row.id for row in await store.runs(limit=1000) if row.status is None]
    if (
        older_s is not None
        and not look
        and (held := [*filter(open_run_locks(root).is_held, at_work)])
    ):
        raise RunError(
            f"Run {held[0]} is at work, and needs what looks old to others; wait for it, or leave"
            " the age away."
        )
    keep_days = load_settings(environment.user_settings_file, root).merged.keep_journals_days
    journals_s = keep_days * DAY_S if older_s is None else older_s
    journals = await _clean_journals(root, journals_s, unfinished=unfinished, look=look)
    return [journals, *await user_file_tree(root, environment).clean(older_s, dry_run=look)]


async def _clean_journals(root: Path, older_s: float, *, unfinished: bool, look: bool) -> Chore:
    """Leave only the outcome of runs that are older; a session is as old as its last run."""
    database, run_locks = root / STATE_DIR / DATABASE, open_run_locks(root)
    async with open_journal(root) as store:
        rows = [row for row in await store.runs(limit=EVERY_RUN) if not row.pruned]
        ended = [await _ended(store, row) for row in rows]
    latest: dict[str, float] = {}
    for row, time in zip(rows, ended, strict=True):
        latest[_session(row)] = max(time, latest.get(_session(row), time))
    before = SystemClock().now() - older_s
    held = {row.id for row in rows if row.status is None and run_locks.is_held(row.id)}
    busy = {_session(row) for row in rows if row.id in held}
    old = [r for r in rows if latest[_session(r)] <= before and _session(r) not in busy]
    # A run that can be resumed needs the rest of its session.
    needed = set() if unfinished else {_session(row) for row in rows if row.status is None}
    going = [row.id for row in old if _session(row) not in needed]
    notes: list[str] = []
    if left := len(old) - len(going):
        notes.append(f"kept, since they can be resumed: {left} (--unfinished)")
    size_bytes, old_bytes = size_of(database), 0
    if look:
        parts = await asyncio.to_thread(shares, database)
        old_bytes = int(size_bytes * sum(parts.get(run_id, 0.0) for run_id in going))
    elif going:
        broken = await _prune(root, going)
        going = [run_id for run_id in going if run_id not in broken]
        if broken:
            notes.append(f"kept, since they are not what was written: {', '.join(broken)}")
        await asyncio.to_thread(sweep_blobs, database)
        if held:
            notes.append(f"the file shrinks when run {min(held)} is over")
        else:
            await asyncio.to_thread(shrink, database)
        old_bytes = max(0, size_bytes - size_of(database))
    return Chore(
        name="journals of runs",
        items=len(rows),
        size_bytes=size_bytes,
        old_items=len(going),
        old_bytes=old_bytes,
        note="; ".join(notes),
    )


def _session(row: RunRow) -> str:
    return row.session or row.id


async def _ended(store: SqliteStore, row: RunRow) -> float:
    """When something happened last in a run."""
    if row.finished_at is not None:
        return row.finished_at
    last = await store.events(row.id, after=row.head_seq - 1, limit=1)
    return last[0].time if last else row.started_at


async def _prune(root: Path, run_ids: Sequence[str]) -> list[str]:
    """Clean journals away; answers those that are not what was written, and so were left."""
    run_locks, broken = open_run_locks(root), list[str]()
    async with open_store(root) as store:
        for run_id in run_ids:
            run_lock = run_locks.acquire(run_id)
            try:
                await prune(store, SystemClock(), run_id)
            except ChainBroken:
                broken.append(run_id)
            finally:
                run_lock.release()
    return broken
