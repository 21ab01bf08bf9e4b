"""What a project keeps: its journal, its reports, its history of files; and where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from retinue.config.environment import Environment
from retinue.config.seal import Seal
from retinue.config.settings import load
from retinue.domain.chore import Chore
from retinue.errors import ChainBroken, RunError, StoreError, UnknownRun, UsageError
from retinue.ports import Clock, RunRow
from retinue.runtime.clock import SystemClock
from retinue.runtime.pruning import prune
from retinue.runtime.undo import Past, Revision, past, revision
from retinue.store.export import export_run
from retinue.store.housekeeping import shares, shrink, size_of, sweep_blobs
from retinue.store.posts import FilePosts
from retinue.store.sqlite import SqliteStore
from retinue.store.vault import SqliteVault
from retinue.workspace.ground import UsersGround

STATE_DIR = ".retinue"
DATABASE = "retinue.db"
POSTS_DIR = "live"
EVERY_RUN = 1_000_000
DAY_S = 24 * 3600.0


def project(directory: str | Path) -> Path:
    path = Path(directory).expanduser()
    if not path.exists():
        raise UsageError(f"There is no directory {str(directory)!r}.")
    if not path.is_dir():
        raise UsageError(f"{str(directory)!r} is a file, not a directory.")
    found = path.resolve()
    try:
        str(found).encode()
    except UnicodeEncodeError:
        raise UsageError(f"The name of the directory {str(found)!r} is not valid UTF-8.") from None
    return found


def state_directory(root: Path) -> Path:
    """`.retinue/`, which ignores itself: the user's repository is never touched."""
    path = root / STATE_DIR
    if path.is_symlink() or (path / DATABASE).is_symlink():
        # A project that somebody cloned could have our files written anywhere.
        raise StoreError(f"{path} is, or holds, a link to somewhere else; remove it.")
    try:
        path.mkdir(exist_ok=True)
        ignore = path / ".gitignore"
        if not ignore.exists():
            # All but the agents, which people write, and may want to share.
            ignore.write_text("*\n!/agents/\n!/agents/**\n", "utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}).") from error
    return path


def posts(directory: str | Path = ".") -> FilePosts:
    """Who works on the runs of a project, in whichever process."""
    return FilePosts(project(directory) / STATE_DIR / POSTS_DIR)


@asynccontextmanager
async def open_journal(directory: str | Path = ".") -> AsyncIterator[SqliteStore]:
    """The journal of a project, for reading only."""
    store = SqliteStore(project(directory) / STATE_DIR / DATABASE, write=False)
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def open_run(directory: str | Path, run: str) -> AsyncIterator[tuple[SqliteStore, str]]:
    """A journal for reading, and the name of a run in it: of a project, or what was exported.

    `run` is an id, or the file that `export` has written.
    """
    exported = _file(run)
    if exported is None:
        async with open_journal(directory) as store:
            yield store, run
        return
    store = SqliteStore(exported, write=False)
    try:
        rows = await store.runs(limit=1)
        if not rows:
            raise UnknownRun(f"There is no run in {run}.")
        yield store, rows[0].id
    finally:
        await store.aclose()


def _file(name: str) -> Path | None:
    path = Path(name)
    return path if path.is_file() else None


async def export_journal(directory: str | Path, run: str, target: Path | None) -> Path:
    """Write a run to a file of its own; answers which. The file must not be there yet."""
    database = project(directory) / STATE_DIR / DATABASE
    async with open_journal(directory) as store:
        row = await store.run(run)
    target = target or Path(f"{row.id}.retinue")
    # A journal of an earlier version is brought up to date first.
    async with open_store(project(directory)):
        await asyncio.to_thread(export_run, database, row.id, target)
    return target


@asynccontextmanager
async def open_past(
    directory: str | Path, run_id: str, *, environment: Environment | None = None
) -> AsyncIterator[Past]:
    """What a run has done to the files of a project."""
    root = project(directory)
    ground = ground_of(root, environment or Environment.current())
    async with open_journal(root) as store:
        yield await past(store, ground, run_id)


@asynccontextmanager
async def open_revision(
    directory: str | Path,
    run_id: str,
    *,
    agent: str | None = None,
    environment: Environment | None = None,
) -> AsyncIterator[Revision]:
    """What a run, or one agent of it, has done to the files, to be undone or redone."""
    root = project(directory)
    ground = ground_of(root, environment or Environment.current())
    async with open_journal(root):
        pass  # Writing would make one where there is none.
    async with (
        open_store(root) as store,
        revision(store, ground, posts(root), SystemClock(), run_id, agent=agent) as found,
    ):
        yield found


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
    if older_s is not None and not look and (held := [*filter(posts(root).held, at_work)]):
        raise RunError(
            f"Run {held[0]} is at work, and needs what looks old to others; wait for it, or leave"
            " the age away."
        )
    keep_days = load(environment.user_settings, root).merged.keep_journals_days
    journals_s = keep_days * DAY_S if older_s is None else older_s
    journals = await _clean_journals(root, journals_s, unfinished=unfinished, look=look)
    return [journals, *await ground_of(root, environment).clean(older_s, look=look)]


async def _clean_journals(root: Path, older_s: float, *, unfinished: bool, look: bool) -> Chore:
    """Leave only the outcome of runs that are older; a session is as old as its last run."""
    database, working = root / STATE_DIR / DATABASE, posts(root)
    async with open_journal(root) as store:
        rows = [row for row in await store.runs(limit=EVERY_RUN) if not row.pruned]
        ended = [await _ended(store, row) for row in rows]
    latest: dict[str, float] = {}
    for row, time in zip(rows, ended, strict=True):
        latest[_session(row)] = max(time, latest.get(_session(row), time))
    before = SystemClock().now() - older_s
    held = {row.id for row in rows if row.status is None and working.held(row.id)}
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
    working, broken = posts(root), list[str]()
    async with open_store(root) as store:
        for run_id in run_ids:
            post = working.take(run_id)
            try:
                await prune(store, SystemClock(), run_id)
            except ChainBroken:
                broken.append(run_id)
            finally:
                post.leave()
    return broken


def ground_of(root: Path, environment: Environment) -> UsersGround:
    return UsersGround(
        str(root),
        state=str(root / STATE_DIR),
        worktrees=str(environment.cache / "worktrees"),
        home=str(environment.home),
        config_home=str(environment.config_home),
        seal=Seal(environment.state / "key").of,
    )


@asynccontextmanager
async def open_store(root: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(state_directory(root) / DATABASE)
    try:
        yield store
    except BaseException:
        # What happened inside tells more than what it does to the closing.
        with suppress(StoreError):
            await store.aclose()
        raise
    else:
        await store.aclose()


@asynccontextmanager
async def open_vault(root: Path, clock: Clock) -> AsyncIterator[SqliteVault]:
    vault = SqliteVault(root / STATE_DIR / DATABASE, clock)
    try:
        yield vault
    finally:
        await vault.aclose()
