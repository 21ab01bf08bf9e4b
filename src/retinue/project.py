"""What a project keeps: its journal, its reports, its history of files; and where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from retinue.config.environment import Environment
from retinue.config.user_key import UserKey
from retinue.errors import StoreError, UnknownRun, UsageError
from retinue.ports.clock import Clock
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.undo import RunChanges, UndoRedo, load_changes, open_undo
from retinue.store.export import export_run
from retinue.store.memory import SqliteMemoryStore
from retinue.store.run_locks import FileRunLocks
from retinue.store.sqlite import SqliteStore
from retinue.workspace.file_trees import UserFileTree

STATE_DIR = ".retinue"
DATABASE = "retinue.db"
POSTS_DIR = "live"


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


def open_run_locks(directory: str | Path = ".") -> FileRunLocks:
    """Who works on the runs of a project, in whichever process."""
    return FileRunLocks(project(directory) / STATE_DIR / POSTS_DIR)


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
async def open_run_changes(
    directory: str | Path, run_id: str, *, environment: Environment | None = None
) -> AsyncIterator[RunChanges]:
    """What a run has done to the files of a project."""
    root = project(directory)
    file_tree = user_file_tree(root, environment or Environment.current())
    async with open_journal(root) as store:
        yield await load_changes(store, file_tree, run_id)


@asynccontextmanager
async def open_run_undo(
    directory: str | Path,
    run_id: str,
    *,
    agent: str | None = None,
    environment: Environment | None = None,
) -> AsyncIterator[UndoRedo]:
    """What a run, or one agent of it, has done to the files, to be undone or redone."""
    root = project(directory)
    file_tree = user_file_tree(root, environment or Environment.current())
    async with open_journal(root):
        pass  # Writing would make one where there is none.
    async with (
        open_store(root) as store,
        open_undo(
            store, file_tree, open_run_locks(root), SystemClock(), run_id, agent=agent
        ) as found,
    ):
        yield found


def user_file_tree(root: Path, environment: Environment) -> UserFileTree:
    return UserFileTree(
        str(root),
        state_folder=str(root / STATE_DIR),
        worktrees=str(environment.cache_dir / "worktrees"),
        home=str(environment.home),
        config_home=str(environment.config_home),
        seal=UserKey(environment.state_dir / "key").sign,
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
async def open_memory_store(root: Path, clock: Clock) -> AsyncIterator[SqliteMemoryStore]:
    memory_store = SqliteMemoryStore(root / STATE_DIR / DATABASE, clock)
    try:
        yield memory_store
    finally:
        await memory_store.aclose()
