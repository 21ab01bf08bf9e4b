"""Cleanup of a project: old journals, working copies, changes and git objects; deleted sessions.

`clean_project` calls one function for each kind of stored thing. Each returns a `CleanupReport`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from retinue.config.environment import Environment
from retinue.config.settings_file import load_settings
from retinue.domain.cleanup_report import DAY_S, CleanupReport
from retinue.errors import ChainBroken, RunError, UsageError
from retinue.ports.store import RunRow, Store
from retinue.project import (
    has_journal,
    open_journal,
    open_maintenance,
    open_run_locks,
    open_store,
    project_root,
    user_file_tree,
)
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.pruning import prune_journal
from retinue.runtime.history.session import SessionEntry, session_entry

ALL_RUNS = 1_000_000


async def clean_project(
    directory: str | Path = ".",
    *,
    older_s: float | None = None,
    unfinished: bool = False,
    dry_run: bool = False,
) -> list[CleanupReport]:
    """Remove what is older than `older_s`, and report each kind. `dry_run` removes nothing.

    Without `older_s` each kind has its default age. `unfinished` also removes the journals of runs
    that can be resumed.
    """
    root, environment = project_root(directory), Environment.current()
    if not await has_journal(root):
        raise UsageError(f"Nothing is kept in {root}: no run has begun there.")
    journals = await _Journals.load(root)
    if older_s is not None and not dry_run and journals.running:
        raise RunError(
            f"Run {min(journals.running)} is running and may need what `clean` would remove; wait"
            " for it, or leave out the age."
        )
    keep_days = load_settings(environment, root).merged.keep_journals_days
    journals_s = keep_days * DAY_S if older_s is None else older_s
    return [
        await _clean_journals(root, journals, journals_s, unfinished=unfinished, dry_run=dry_run),
        *await user_file_tree(root, environment).clean(older_s, dry_run=dry_run),
    ]


async def delete_session(
    directory: str | Path, name: str, environment: Environment | None = None
) -> SessionEntry:
    """Delete a session: the journals of all its runs. Return what it was.

    Its changes in the files stay, and so do the memories of its agents. RunError if a process works
    on the session.
    """
    root = project_root(directory)
    async with open_journal(root, environment) as store:
        session = (await store.session(name))[0].session
        # A session that was continued twice has two chains of runs.
        rows = [row for row in await store.runs(limit=ALL_RUNS) if row.session == session]
    deleted = session_entry(rows)
    run_locks = open_run_locks(root, environment)
    with ExitStack() as stack:
        for row in rows:
            if run_locks.is_held(row.id):
                raise RunError(
                    f"The session is at work, in run {row.id}; wait for it, or stop it with"
                    f" `retinue cancel {row.id}`."
                )
            stack.callback(run_locks.acquire(row.id).release)
        maintenance = open_maintenance(root, environment)
        await maintenance.delete_runs(deleted.id, [row.id for row in rows])
        await maintenance.delete_unused_blobs()
    return deleted


class _Journals(msgspec.Struct, frozen=True, kw_only=True):
    """Runs whose journals are not pruned, and which of them a process is working on now."""

    rows: Sequence[RunRow]
    last_active: dict[str, float]
    """By session: a session is as old as its latest run."""
    running: frozenset[str]

    @classmethod
    async def load(cls, root: Path) -> _Journals:
        run_locks, last_active = open_run_locks(root), dict[str, float]()
        async with open_journal(root) as store:
            rows = [row for row in await store.runs(limit=ALL_RUNS) if not row.pruned]
            for row in rows:
                time, session = await _last_event_time(store, row), _session(row)
                last_active[session] = max(time, last_active.get(session, time))
        unfinished = (row.id for row in rows if row.status is None)
        return cls(
            rows=rows,
            last_active=last_active,
            running=frozenset(filter(run_locks.is_held, unfinished)),
        )

    def older_than(self, time: float) -> list[RunRow]:
        busy = {_session(row) for row in self.rows if row.id in self.running}
        expired = {session for session, active in self.last_active.items() if active <= time}
        return [row for row in self.rows if _session(row) in expired - busy]


async def _clean_journals(
    root: Path, journals: _Journals, older_s: float, *, unfinished: bool, dry_run: bool
) -> CleanupReport:
    """Prune the journals of older runs, which leaves only their outcomes."""
    maintenance, rows = open_maintenance(root), journals.rows
    old = journals.older_than(SystemClock().now() - older_s)
    # A run that can be resumed needs the other runs of its session.
    needed = set() if unfinished else {_session(row) for row in rows if row.status is None}
    expired = [row.id for row in old if _session(row) not in needed]
    notes: list[str] = []
    if kept := len(old) - len(expired):
        notes.append(f"kept, since they can be resumed: {kept} (--unfinished)")
    size_bytes, expired_bytes = await maintenance.size_bytes(), 0
    if dry_run:
        shares = await maintenance.run_shares()
        expired_bytes = int(size_bytes * sum(shares.get(run_id, 0.0) for run_id in expired))
    elif expired:
        altered = await _prune(root, expired)
        expired = [run_id for run_id in expired if run_id not in altered]
        if altered:
            notes.append(f"kept, since their journals were altered: {', '.join(altered)}")
        await maintenance.delete_unused_blobs()
        if journals.running:
            notes.append(f"the file shrinks when run {min(journals.running)} is over")
        else:
            await maintenance.compact()
        expired_bytes = max(0, size_bytes - await maintenance.size_bytes())
    return CleanupReport(
        kind="journals of runs",
        items=len(rows),
        size_bytes=size_bytes,
        expired_items=len(expired),
        expired_bytes=expired_bytes,
        note="; ".join(notes),
    )


def _session(row: RunRow) -> str:
    return row.session or row.id


async def _last_event_time(store: Store, row: RunRow) -> float:
    if row.finished_at is not None:
        return row.finished_at
    last = await store.events(row.id, after=row.head_seq - 1, limit=1)
    return last[0].time if last else row.started_at


async def _prune(root: Path, run_ids: Sequence[str]) -> list[str]:
    """Prune journals. Return the runs whose journals were altered and therefore kept."""
    run_locks, altered = open_run_locks(root), list[str]()
    async with open_store(root) as store:
        for run_id in run_ids:
            run_lock = run_locks.acquire(run_id)
            try:
                await prune_journal(store, SystemClock(), run_id)
            except ChainBroken:
                altered.append(run_id)
            finally:
                run_lock.release()
    return altered
