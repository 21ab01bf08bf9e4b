"""State of a project on disk: opens its journal, memory, run locks and recorded changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from retinue.config.environment import Environment
from retinue.config.project_seal import ProjectSeal
from retinue.config.settings_file import read_settings
from retinue.config.settings_sources import STORE_VARIABLE
from retinue.config.trust import TrustStore
from retinue.config.user_key import UserKey
from retinue.domain.contract import title_of
from retinue.domain.protected_paths import ProtectedPaths
from retinue.errors import StoreError, UnknownRun, UsageError
from retinue.extras import require
from retinue.installation import protected_paths
from retinue.ports.clock import Clock
from retinue.ports.store import MemoryStore, RunLocks
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.undo import RunChanges, UndoRedo, load_changes, open_undo
from retinue.store.cleanup import SqliteMaintenance
from retinue.store.export import export_run
from retinue.store.memory import SqliteMemoryStore
from retinue.store.postgres.address import Database, project_database
from retinue.store.run_locks import FileRunLocks
from retinue.store.seals import seal_all
from retinue.store.sql_store import SqlStore
from retinue.store.sqlite import SqliteStore
from retinue.workspace.user_file_tree import UserFileTree

if TYPE_CHECKING:
    from retinue.store.postgres.maintenance import PostgresMaintenance

STATE_DIR = ".retinue"
DATABASE_FILE = "retinue.db"
RUN_LOCKS_DIR = "live"
WORKTREES = "worktrees"
"""Folder of the cache with the working copies of agents."""
SHARED_DIRS = ("agents", "skills", "commands")
"""Folders of STATE_DIR that git does not ignore: people write their files, and may share them."""


def project_root(directory: str | Path) -> Path:
    """Absolute path of a project. UsageError if it is not a directory."""
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


def current_branch(directory: Path) -> str:
    """The git branch of a directory, or the start of its commit; "" outside of a repository."""
    for folder in (directory, *directory.parents):
        marker = folder / ".git"
        with suppress(OSError, UnicodeDecodeError):
            if marker.is_file():  # A worktree: the file names its git directory.
                marker = folder / marker.read_text().removeprefix("gitdir:").strip()
            head = (marker / "HEAD").read_text().strip()
            name = head.removeprefix("ref: refs/heads/")
            return name if name != head else head[:8]
    return ""


def make_state_dir(root: Path) -> Path:
    """Create `.retinue/` if needed. Its .gitignore hides it from the user's repository."""
    path = database_path(root).parent
    try:
        path.mkdir(exist_ok=True)
        # Mode "x" never follows a link.
        with suppress(FileExistsError), (path / ".gitignore").open("x", encoding="utf-8") as file:
            file.write("*\n" + "".join(f"!/{name}/\n!/{name}/**\n" for name in SHARED_DIRS))
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}).") from error
    return path


def database_path(root: Path) -> Path:
    """The path of the journal. StoreError if something else than a file of SQLite's is there."""
    folder = root / STATE_DIR
    if folder.is_symlink() or (folder / DATABASE_FILE).is_symlink():
        # SQLite creates files beside the target of a link, even for reading.
        raise StoreError(f"{folder} is, or holds, a link to somewhere else; remove it.")
    path = folder / DATABASE_FILE
    if path.exists() and not path.is_file():
        # A pipe would block SQLite for ever.
        raise StoreError(f"{path} is not a file; remove it.")
    return path


def refuse_links(root: Path, path: Path) -> None:
    """UsageError if the project has a link on the way to a file that is about to be written.

    In a cloned project, a link could point anywhere. Links outside the project are the user's own.
    """
    for part in (path.absolute(), *path.absolute().parents):
        if part.is_symlink() and part.parent.resolve().is_relative_to(root):
            raise UsageError(f"{part} is a symbolic link; remove it, or name another file.")


def write_new_file(path: Path, content: str | bytes) -> None:
    """Create a file that only the user can read."""
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"{str(path)!r} exists already; name another file.") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}).") from error
    with open(opened, "wb") as file:
        file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)


def postgres_database(root: Path, environment: Environment | None) -> Database | None:
    """Where the user keeps the journal of a project; None for a SQLite file in the project.

    Only the user decides this: a project could send the user's work to another server.
    """
    environment = environment or Environment.current()
    url = environment.get(STORE_VARIABLE) or read_settings(environment.user_settings_file).store
    if not url:
        return None
    database = project_database(url, str(root))
    require("postgres", "Postgres, which `store` names,")
    return database


def open_run_locks(directory: str | Path = ".", environment: Environment | None = None) -> RunLocks:
    """Locks of the runs that any process is working on; `environment` says who sends messages."""
    database = postgres_database(project_root(directory), environment)
    if database is not None:
        from retinue.store.postgres.run_locks import PostgresRunLocks

        return PostgresRunLocks(database)
    key = UserKey((environment or Environment.current()).key_file)
    return FileRunLocks(project_root(directory) / STATE_DIR / RUN_LOCKS_DIR, key.sign)


@asynccontextmanager
async def open_journal(
    directory: str | Path = ".", environment: Environment | None = None
) -> AsyncIterator[SqlStore]:
    """Open the journal of a project for reading; `environment` says who reads it."""
    root = project_root(directory)
    store: SqlStore
    if (database := postgres_database(root, environment)) is not None:
        from retinue.store.postgres.store import PostgresStore

        store = await PostgresStore.open(database, write=False)
    else:
        path = database_path(root)
        seal = _seal(path.parent, environment, register=False)
        store = SqliteStore(path, write=False, seal=seal)
    async with aclosing(store):
        yield store


async def has_journal(directory: str | Path = ".", environment: Environment | None = None) -> bool:
    """Whether a run was ever started in a project."""
    root = project_root(directory)
    if (database := postgres_database(root, environment)) is not None:
        from retinue.store.postgres.database import has_journal

        return await has_journal(database)
    return database_path(root).exists()


class StoreDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Where the journal of a project is, and what is in it."""

    place: str
    schema: str = ""
    """The schema of the project in Postgres."""
    engine: str = ""
    """The database and its version; "" before anything is recorded."""
    version: int = 0
    """Version of the tables."""
    runs: int = 0
    size_bytes: int = 0


async def describe_store(
    directory: str | Path = ".", environment: Environment | None = None
) -> StoreDescription:
    """Describe the store of a project. Raises StoreError if it cannot be read."""
    root = project_root(directory)
    database = postgres_database(root, environment)
    described = StoreDescription(
        place=str(database or database_path(root)),
        schema="" if database is None else database.schema,
    )
    if not await has_journal(root, environment):
        return described
    maintenance = open_maintenance(root, environment)
    engine, version, runs = await maintenance.facts()
    return msgspec.structs.replace(
        described,
        engine=engine,
        version=version,
        runs=runs,
        size_bytes=await maintenance.size_bytes(),
    )


def open_maintenance(
    root: Path, environment: Environment | None = None
) -> SqliteMaintenance | PostgresMaintenance:
    """Titles, deletion and size of a project's journal."""
    if (database := postgres_database(root, environment)) is not None:
        from retinue.store.postgres.maintenance import PostgresMaintenance

        return PostgresMaintenance(database)
    return SqliteMaintenance(database_path(root))


@asynccontextmanager
async def open_run(directory: str | Path, run: str) -> AsyncIterator[tuple[SqlStore, str]]:
    """Open the journal that has a run, for reading. Yield it with the run's id.

    `run` is the id of a run in the project, or a file that `export` has written.
    """
    exported = existing_file(run)
    if exported is None:
        async with open_journal(directory) as store:
            yield store, run
        return
    async with aclosing(SqliteStore(exported, write=False)) as store:
        rows = await store.runs(limit=1)
        if not rows:
            raise UnknownRun(f"There is no run in {run}.")
        yield store, rows[0].id


def existing_file(name: str) -> Path | None:
    """The file of that name; None if there is none, as for the id of a run."""
    path = Path(name)
    return path if path.is_file() else None


async def export_journal(directory: str | Path, run: str, target: Path | None) -> Path:
    """Write a run to a new file, and return its path. The file must not exist yet."""
    root = project_root(directory)
    async with open_journal(root) as store:
        row = await store.run(run)
    target = target or Path(f"{row.id}.retinue")
    refuse_links(root, target)
    maintenance = open_maintenance(root)
    if not isinstance(maintenance, SqliteMaintenance):
        await maintenance.export_run(row.id, target)
        return target
    # Opening the store migrates a journal of an earlier version.
    async with open_store(root):
        await asyncio.to_thread(export_run, database_path(root), row.id, target)
    return target


async def rename_session(
    directory: str | Path,
    session: str,
    title: str,
    environment: Environment | None = None,
    *,
    replace: bool = True,
) -> str:
    """Give a session a title; return the title as it is stored. A run may be at work meanwhile.

    `session` is the id of one of its runs, or the beginning of one. Without `replace`, a title that
    somebody gave it stays, and "" is returned.
    """
    shown = title_of(" ".join(title.split()))
    if not shown:
        raise UsageError("A title needs at least one word.")
    root = project_root(directory)
    async with open_journal(root, environment) as store:
        first = (await store.session(session))[0]
    maintenance = open_maintenance(root, environment)
    is_set = await maintenance.set_title(first.id, shown, replace=replace)
    return shown if is_set else ""


@asynccontextmanager
async def open_run_changes(directory: str | Path, run_id: str) -> AsyncIterator[RunChanges]:
    """Load the recorded changes of a run."""
    root = project_root(directory)
    file_tree = user_file_tree(root, Environment.current())
    async with open_journal(root) as store:
        yield await load_changes(store, file_tree, run_id)


@asynccontextmanager
async def open_run_undo(
    directory: str | Path,
    run_id: str,
    *,
    agent: str | None = None,
    writable_install: bool = False,
    environment: Environment | None = None,
    by: str = "",
) -> AsyncIterator[UndoRedo]:
    """Load the changes of a run, or of one of its agents, for undo and redo."""
    root = project_root(directory)
    environment = environment or Environment.current()
    protected = own_files(root, environment, writable_install=writable_install)
    file_tree = user_file_tree(root, environment, protected)
    async with open_journal(root):
        pass  # Raises if there is no journal; opening for writing would create one.
    async with (
        open_store(root, environment) as store,
        open_undo(
            store,
            file_tree,
            open_run_locks(root, environment),
            SystemClock(),
            run_id,
            agent=agent,
            by=by,
        ) as found,
    ):
        yield found


def own_files(
    root: Path, environment: Environment, *, writable_install: bool = False
) -> ProtectedPaths:
    """Retinue's own files: the installation, and the user's settings, trust decisions and key.

    The settings, decisions and key are inside the workspace if the workspace is a home.
    """
    decisions = (environment.user_settings_file.parent, environment.state_dir)
    return protected_paths(map(str, decisions), writable_install=writable_install, root=str(root))


def user_file_tree(
    root: Path, environment: Environment, protected: ProtectedPaths | None = None
) -> UserFileTree:
    """The project's files. By default retinue's own files are protected."""
    trust = TrustStore(environment.trust_dir)
    return UserFileTree(
        str(root),
        state_folder=str(root / STATE_DIR),
        worktrees=str(environment.cache_dir / WORKTREES),
        home=str(environment.home),
        config_home=str(environment.config_home),
        seal=UserKey(environment.key_file).sign,
        protected=own_files(root, environment) if protected is None else protected,
        before_write=partial(trust.record_agent_write, root),
    )


@asynccontextmanager
async def open_store(root: Path, environment: Environment | None = None) -> AsyncIterator[SqlStore]:
    """Open the journal of a project for writing; `environment` says whose it is."""
    state_dir = make_state_dir(root)
    store: SqlStore
    if (database := postgres_database(root, environment)) is not None:
        from retinue.store.postgres.store import PostgresStore

        store = await PostgresStore.open(database)
    else:
        store = SqliteStore(state_dir / DATABASE_FILE, seal=_seal(state_dir, environment))
    try:
        yield store
    except BaseException:
        # The error inside says more than the error that it causes on closing.
        with suppress(StoreError):
            await store.aclose()
        raise
    else:
        await store.aclose()


def open_memory_store(
    root: Path, clock: Clock, environment: Environment
) -> AbstractAsyncContextManager[MemoryStore]:
    if (database := postgres_database(root, environment)) is not None:
        from retinue.store.postgres.memory import PostgresMemoryStore

        return aclosing(PostgresMemoryStore(database, clock))
    path = root / STATE_DIR / DATABASE_FILE
    return aclosing(SqliteMemoryStore(path, clock, seal=_seal(path.parent, environment)))


def _seal(
    state_dir: Path, environment: Environment | None = None, *, register: bool = True
) -> ProjectSeal:
    return ProjectSeal(state_dir, environment or Environment.current(), register=register)


def trust_journals(directory: str | Path = ".") -> int:
    """Accept every run in the journal of a project, with its memories, as the user's own.

    Return how many were not before. The user must decide this: a stranger's run can be resumed
    afterwards.
    """
    root = project_root(directory)
    # A run in Postgres is never a stranger's: it cannot come with a cloned project.
    if postgres_database(root, None) is not None or not database_path(root).exists():
        return 0
    state_dir = make_state_dir(root)
    return seal_all(state_dir / DATABASE_FILE, _seal(state_dir))
