"""Copies runs from one store to another, with their memories, titles and reports.

A run is copied in one transaction, with the rows of its journal as they are, and audited on both
sides. So a copy that was interrupted is continued by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec

from retinue.config.environment import Environment
from retinue.config.project_seal import ProjectSeal
from retinue.config.user_key import UserKey
from retinue.domain.contract import decode_contract
from retinue.domain.run_state import fold
from retinue.errors import ChainBroken, RunError, StoreError, UsageError
from retinue.extras import require
from retinue.ports.store import RunLocks, RunRow
from retinue.project import (
    DATABASE_FILE,
    RUN_LOCKS_DIR,
    STATE_DIR,
    database_path,
    make_state_dir,
    project_root,
)
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.history.recovery import NOT_YOURS
from retinue.runtime.history.reports import recorded_reports
from retinue.store.postgres.address import Database, project_database
from retinue.store.reports import FileReports
from retinue.store.run_locks import FileRunLocks
from retinue.store.run_rows import RowStore
from retinue.store.sql_store import SqlStore
from retinue.store.sqlite import SqliteStore
from retinue.store.sqlite_rows import SqliteRows

ALL = 1_000_000


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a copy."""

    source: str
    target: str
    runs: int
    """Runs that were copied, whole or from where an earlier copy had ended."""
    events: int
    present: int
    """Runs that were there already."""
    memories: int
    titles: int
    reports: int
    skipped: tuple[str, ...]
    """Why a run was not copied, one sentence for each."""


class _Side(msgspec.Struct, frozen=True):
    """The store that runs are copied from, or to."""

    name: str
    store: SqlStore
    rows: RowStore
    run_locks: RunLocks
    directory: Path | None
    """The project, if the store is its file."""


async def copy_store(
    source: str,
    target: str,
    directory: str | Path = ".",
    environment: Environment | None = None,
) -> CopyReport:
    """Copy all runs of one store to another.

    A store is a project's directory, for the SQLite file in it, or the address of a Postgres
    server, where `directory` is the project. Raises RunError, before anything is copied, if the
    target has one of the runs with other content.
    """
    environment = environment or Environment.current()
    places = [_place(text, directory) for text in (source, target)]
    if places[0] == places[1]:
        # Not as they were given: an address may have a password.
        raise UsageError(f"FROM and TO are the same store: {places[0]}.")
    async with (
        _opened(places[0], environment, create=False) as old,
        _opened(places[1], environment, create=True) as new,
    ):
        return await _Copy(old, new).make()


class _Copy:
    def __init__(self, old: _Side, new: _Side) -> None:
        self._old, self._new = old, new
        self._skipped: list[str] = []
        self._there: Mapping[str, RunRow] = {}

    async def make(self) -> CopyReport:
        old, new = self._old, self._new
        self._there = {row.id: row for row in await new.store.runs(limit=ALL)}
        wanted, present = [], 0
        for row in reversed(await old.store.runs(limit=ALL)):
            known = self._there.get(row.id)
            if not row.sealed:
                self._skipped.append(NOT_YOURS.format(run_id=row.id))
            elif known is not None and known.head_hash == row.head_hash:
                present += 1
            elif known is None or await self._follows(row, known):
                wanted.append(row.id)
        copied = [(row, await self._copy(row)) for row in wanted]
        done = [row for row, events in copied if events]
        sessions = {row.session for row in await new.store.runs(limit=ALL)}
        titles = [row for row in await old.rows.title_rows() if row[0] in sessions]
        return CopyReport(
            source=old.name,
            target=new.name,
            runs=len(done),
            events=sum(events for _, events in copied),
            present=present,
            memories=await new.rows.add_memories(await old.rows.memory_rows()),
            titles=await new.rows.add_titles(titles),
            reports=await self._write_reports(done),
            skipped=tuple(self._skipped),
        )

    async def _follows(self, row: RunRow, known: RunRow) -> bool:
        """Whether a run has only grown since it was copied. RunError for another content."""
        old, new = self._old, self._new
        if row.pruned or known.pruned:
            where = old.name if row.pruned else new.name
            self._skipped.append(
                f"Run {row.id} was cleaned away in {where} after it was copied; both stay as they"
                " are."
            )
            return False
        is_behind = known.head_seq < row.head_seq
        longer, last = (old, known) if is_behind else (new, row)
        found = await longer.store.events(row.id, after=last.head_seq - 1, limit=1)
        if not found or found[0].hash != last.head_hash:
            raise RunError(
                f"Nothing was copied: run {row.id} is in {new.name} too, with other content. It"
                " continued in both stores, or one was changed (`retinue audit`). Copy to another"
                " store, such as a schema of its own (`?schema=NAME`)."
            )
        if not is_behind:
            self._skipped.append(
                f"Run {row.id} has continued in {new.name}; it stays as it is there."
            )
        return is_behind

    async def _copy(self, run_id: str) -> int:
        """Copy a run. Return how many events; 0 if it cannot be copied now."""
        old, new, known = self._old, self._new, self._there.get(run_id)
        if known is not None and new.run_locks.is_held(run_id):
            return self._skip(f"Run {run_id} is at work in {new.name}; copy again when it is over.")
        try:
            lock = old.run_locks.acquire(run_id)
        except RunError:
            return self._skip(f"Run {run_id} is at work; copy again when it is over.")
        try:
            await audit(old.store, run_id)
            rows = await old.rows.run_rows(run_id, after=0 if known is None else known.head_seq)
            await new.rows.add_run(rows, known)
            await audit(new.store, run_id)
        except ChainBroken as broken:
            return self._skip(f"Run {run_id} is not as it was written, so it stays: {broken}")
        finally:
            lock.release()
        return len(rows.events)

    def _skip(self, why: str) -> int:
        self._skipped.append(why)
        return 0

    async def _write_reports(self, run_ids: list[str]) -> int:
        """Write the reports that are missing in the project. By default a later run replaces those
        of an earlier one, so the latest run comes first.
        """
        root, store = self._new.directory, self._new.store
        if root is None:
            return 0
        count = 0
        for run_id in reversed(run_ids):
            if (await store.run(run_id)).pruned:
                continue
            state = fold(await read_all(store, run_id))
            agents = await store.agents(run_id)
            contracts = {row.id: decode_contract(row.context_json) for row in agents}
            async with aclosing(FileReports(root)) as files:
                for path, text in recorded_reports(state, contracts).items():
                    if not (root / path).exists():
                        files.keep(path, text)
                        count += 1
        return count


def _place(text: str, directory: str | Path) -> Path | Database:
    """The directory of a project, or a schema. Raises UsageError or ConfigError."""
    if "://" in text:
        database = project_database(text, str(project_root(directory)))
        require("postgres", "Postgres, which you have named,")
        return database
    path = Path(text)
    if path.name == DATABASE_FILE and path.absolute().parent.name == STATE_DIR:
        path = path.absolute().parent.parent
    return project_root(path)


@asynccontextmanager
async def _opened(
    place: Path | Database, environment: Environment, *, create: bool
) -> AsyncIterator[_Side]:
    store: SqlStore
    if isinstance(place, Database):
        from retinue.store.postgres.database import has_journal
        from retinue.store.postgres.rows import PostgresRows
        from retinue.store.postgres.run_locks import PostgresRunLocks
        from retinue.store.postgres.store import PostgresStore

        name = f"{place} (schema {place.schema})"
        if not create and not await has_journal(place):
            raise StoreError(f"There is no run in {name}.")
        async with aclosing(await PostgresStore.open(place)) as store:
            yield _Side(name, store, PostgresRows(place), PostgresRunLocks(place), None)
        return
    path = database_path(place)
    state_dir = path.parent
    if create:
        make_state_dir(place)
    elif not path.exists():
        raise StoreError(f"There is no run in {path}.")
    seal = ProjectSeal(state_dir, environment, register=create)
    locks = FileRunLocks(state_dir / RUN_LOCKS_DIR, UserKey(environment.key_file).sign)
    # Opening for writing migrates a journal of an earlier version.
    async with aclosing(await asyncio.to_thread(SqliteStore, path, seal=seal)) as store:
        yield _Side(str(path), store, SqliteRows(path, seal), locks, place)
