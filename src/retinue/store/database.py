"""Open a database file, migrate its schema, and turn SQLite's errors into ours."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from retinue.errors import (
    SchemaTooNew,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from retinue.store.queries import migrations, old_schema_script

APPLICATION_ID = 0x52455449  # "RETI": identifies our databases, to us and to `file`
BUSY_TIMEOUT_S = 10.0

# Primary result codes of SQLite (the low byte of the extended ones).
_BUSY, _LOCKED, _READONLY, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = 5, 6, 8, 10, 11, 13, 14, 26

PAGE_BYTES = 8_192
FIRST_WITH_BLOBS = 4  # schema version


def connect(
    path: Path, *, write: bool, busy_timeout_s: float = BUSY_TIMEOUT_S
) -> sqlite3.Connection:
    """Open the database; with `write`, create and migrate it where needed."""
    opening = _connect_writing if write else _connect_reading
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a directory, not a database; move it away.")
        return opening(path, busy_timeout_s)
    except PermissionError as error:
        raise StoreReadOnly(f"{path} cannot be opened; check the rights of its folder.") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise store_error(error, path, busy_timeout_s) from error


def _connect_writing(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
    )
    try:
        _check_owner(connection, path)
        # For a new file. With SQLite's default of 4 KiB a child costs 1.5 times the writes.
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        _switch_to_wal(connection, busy_timeout_s)
        # FULL: a commit survives a power cut. With group commit that costs one fsync a batch.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_reading(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    if not path.exists():
        raise StoreError(f"There is no journal at {path} yet; run something first.")
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if _is_immutable(path) else ''}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        _check_owner(connection, path)
        if _version(connection) == 0:
            raise StoreError(f"There is no journal at {path} yet; run something first.")
        if _version(connection) < FIRST_WITH_BLOBS:
            for statement in statements(old_schema_script()):
                connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _is_immutable(path: Path) -> bool:
    """Is the folder read-only, and is there no write-ahead log?

    If not, SQLite creates the index of the write-ahead log next to the file.
    """
    return not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()


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
            if _code(error) not in (_BUSY, _LOCKED) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _migrate(connection: sqlite3.Connection) -> None:
    if _version(connection) == len(migrations()):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for script in migrations()[_version(connection) :]:
            for statement in statements(script):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations())}")
        connection.execute("COMMIT")
    except BaseException:
        # With a full disk, SQLite has already rolled back.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def statements(script: str) -> list[str]:
    """The statements of a script. `executescript` would commit before it runs them."""
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
        case code if code == _FULL or _extended(error) == sqlite3.SQLITE_IOERR_SHMSIZE:
            return StoreFull(f"No room left on the disk of {path}; free some and resume the run.")
        case code if code in (_BUSY, _LOCKED):
            return StoreLocked(
                f"{path} has been locked by another process for {busy_timeout_s:g} s;"
                " end that process or try again."
            )
        case code if code == _READONLY:
            return StoreReadOnly(f"{path} cannot be written; check its rights and its folder's.")
        case code if code == _CANTOPEN:
            return StoreReadOnly(f"{path} cannot be opened; check that its folder can be written.")
        case code if code in (_CORRUPT, _NOTADB):
            return _damaged(path)
        case code if code == _IOERR:
            return StoreError(f"The disk of {path} fails or is full ({error}).")
    return StoreError(f"{path}: {error}.")


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path} is damaged or not a database; restore it or move it away.")


def _code(error: sqlite3.Error) -> int:
    return _extended(error) & 0xFF


def _extended(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", None) or 0
