"""Open a database file, migrate its schema, and turn SQLite's errors into ours."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path

from retinue.errors import (
    SchemaTooNew,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from retinue.rollback_journal import would_delete_a_file
from retinue.store.queries import migrations, queries, script

APPLICATION_ID = 0x52455449  # "RETI": identifies our databases, to us and to `file`
BUSY_TIMEOUT_S = 10.0

PAGE_BYTES = 8_192
FIRST_WITH_BLOBS = 4  # schema version
FIRST_WITH_SEALS = 6
FIRST_WITH_TITLES = 7


def connect(
    path: Path, *, write: bool, busy_timeout_s: float = BUSY_TIMEOUT_S
) -> sqlite3.Connection:
    """Open the database; with `write`, create and migrate it where needed."""
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a directory, not a database; move it away.")
        if not write and not path.exists():
            raise _no_journal(path)
        _check_rollback_journal(path)
        connection = sqlite3.connect(
            path if write else _read_only_uri(path),
            uri=not write,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _check_owner(connection, path)
            if write:
                _prepare_writing(connection, path, busy_timeout_s)
            else:
                _prepare_reading(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection
    except PermissionError as error:
        raise StoreReadOnly(f"{path} cannot be opened; check the rights of its folder.") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise store_error(error, path, busy_timeout_s) from error


def _check_rollback_journal(path: Path) -> None:
    """StoreError if SQLite's recovery of the database would delete another file."""
    if would_delete_a_file(str(path)):
        raise StoreError(
            f"{path}-journal was not made by retinue, and would delete a file; move it away."
        )


def _no_journal(path: Path) -> StoreError:
    return StoreError(f"There is no journal at {path} yet; run something first.")


def _read_only_uri(path: Path) -> str:
    # In a read-only folder, SQLite cannot create the index of the write-ahead log next to the file.
    # Without such a log it needs no index, if it is told that the file does not change.
    wal = path.with_name(f"{path.name}-wal")
    immutable = not os.access(path.parent, os.W_OK) and not wal.exists()
    return f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"


def _prepare_writing(connection: sqlite3.Connection, path: Path, busy_timeout_s: float) -> None:
    # For a new file. With SQLite's default of 4 KiB a child costs 1.5 times the writes.
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    _switch_to_wal(connection, busy_timeout_s)
    # FULL: a commit survives a power cut. With group commit that costs one fsync a batch.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    _migrate(connection)
    _check_schema(connection, path)


def _prepare_reading(connection: sqlite3.Connection, path: Path) -> None:
    if _version(connection) == 0:
        raise _no_journal(path)
    if _version(connection) < FIRST_WITH_BLOBS:
        run_script(connection, script("old_schema.sql"))
    if _version(connection) < FIRST_WITH_TITLES:
        connection.execute(queries()["no_titles"])


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    # In this order: another process may create and sign the tables between the two queries.
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if tables and application != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program; move it.")
    version = _version(connection)
    if version > len(migrations()):
        raise SchemaTooNew(
            f"{path} was written by a newer retinue (schema {version}, this one knows"
            f" {len(migrations())}); upgrade retinue."
        )


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """StoreError if the file has a trigger or view that we did not create.

    A file that came with a cloned project could have one that changes what the user's runs record.
    """
    expected = _expected_schema()
    for kind, name, sql in connection.execute(_SCHEMA):
        if sql != expected.get(name) and (name in expected or kind in ("trigger", "view")):
            raise StoreError(
                f"The {kind} {name!r} in {path} was not made by retinue; move the file away."
            )


_SCHEMA = "SELECT type, name, sql FROM sqlite_master"


@cache
def _expected_schema() -> dict[str, str | None]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for text in migrations():
            run_script(connection, text)
        with suppress(sqlite3.OperationalError):  # Without FTS5 there is no index.
            run_script(connection, script("full_text.sql"))
        return {name: sql for _, name, sql in connection.execute(_SCHEMA)}


def has_seals(connection: sqlite3.Connection) -> bool:
    return _version(connection) >= FIRST_WITH_SEALS


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _switch_to_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    # SQLite does not call the busy handler for this pragma. Without a loop, two processes that open
    # a new file at the same moment would fail.
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if (
                _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                or time.monotonic() > deadline
            ):
                raise
            time.sleep(0.02)


def _migrate(connection: sqlite3.Connection) -> None:
    if _version(connection) == len(migrations()):
        return
    with transaction(connection):
        for migration in migrations()[_version(connection) :]:
            run_script(connection, migration)
        sign(connection)


def sign(connection: sqlite3.Connection) -> None:
    """Mark a database as ours, with the current schema."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(migrations())}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end of the block; roll back if it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # With a full disk, SQLite has already rolled back.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def run_script(connection: sqlite3.Connection, text: str) -> None:
    """Run a script inside the current transaction, which `executescript` would commit."""
    for statement in statements(text):
        connection.execute(statement)


def statements(script: str) -> list[str]:
    found, pending = [], ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    return found


def store_error(
    error: sqlite3.Error | UnicodeDecodeError, path: Path, busy_timeout_s: float = BUSY_TIMEOUT_S
) -> StoreError:
    """SQLite's error as a StoreError whose message says what to do."""
    if isinstance(error, UnicodeDecodeError):
        # SQLite's message quotes a damaged name, which Python could not decode.
        return _damaged(path)
    match _code(error):
        case _ if isinstance(error, sqlite3.IntegrityError):
            return StoreError(f"The journal refused a write: {error}.")
        # SHMSIZE: no room for the index of the write-ahead log.
        case _ if _extended(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
            return StoreFull(f"No room left on the disk of {path}; free some and resume the run.")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreLocked(
                f"{path} has been locked by another process for {busy_timeout_s:g} s;"
                " end that process or try again."
            )
        case sqlite3.SQLITE_READONLY:
            return StoreReadOnly(f"{path} cannot be written; check its rights and its folder's.")
        case sqlite3.SQLITE_CANTOPEN:
            return StoreReadOnly(f"{path} cannot be opened; check that its folder can be written.")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return _damaged(path)
        case sqlite3.SQLITE_IOERR:
            return StoreError(f"The disk of {path} fails or is full ({error}).")
    return StoreError(f"{path}: {error}.")


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path} is damaged or not a database; restore it or move it away.")


def _code(error: sqlite3.Error) -> int:
    """The primary result code: the low byte of the extended one."""
    return _extended(error) & 0xFF


def _extended(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", None) or 0
