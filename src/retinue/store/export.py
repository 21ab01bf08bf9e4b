"""Export one run to a database file of its own."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from retinue.errors import StoreError, UsageError
from retinue.store.database import sign, statements, store_error
from retinue.store.queries import migrations
from retinue.store.run_rows import AGENT_COLUMNS, EVENT_COLUMNS, RUN_COLUMNS, Row, RunRows

_TRIGGER = re.compile(r"^(CREATE|DROP) TRIGGER ", re.MULTILINE)
_TABLES = {"runs": "id", "sub_agents": "run_id", "events": "run_id"}


def export_run(database: Path, run_id: str, target: Path) -> None:
    """Write the run to the new file `target`. Rows are copied unchanged, tampered ones included."""
    _write_file(target, lambda it: _copy_tables(it, run_id), attached=database)


def export_rows(rows: RunRows, target: Path) -> None:
    """Write the rows of a run in another database to the new file `target`."""
    tables: tuple[tuple[str, Sequence[str], Sequence[Row]], ...] = (
        ("runs", RUN_COLUMNS, (rows.run,)),
        ("sub_agents", (*AGENT_COLUMNS, "state"), rows.agents),
        ("events", (*EVENT_COLUMNS, "blobs"), rows.events),
        ("blobs", ("hash", "data"), rows.blobs),
    )

    def fill(connection: sqlite3.Connection) -> None:
        for table, names, found in tables:
            places = ", ".join("?" * len(names))
            insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})"
            connection.executemany(insert, found)

    _write_file(target, fill)


def _write_file(
    target: Path, fill: Callable[[sqlite3.Connection], None], attached: Path | None = None
) -> None:
    try:
        target.touch(exist_ok=False, mode=0o600)
    except FileExistsError:
        raise UsageError(f"{str(target)!r} exists already; name another file.") from None
    except OSError as error:
        raise StoreError(f"{target} cannot be written ({error.strerror}).") from error
    try:
        with closing(sqlite3.connect(target, isolation_level=None, uri=True)) as connection:
            if attached is not None:
                uri = f"{attached.absolute().as_uri()}?mode=ro"
                connection.execute("ATTACH ? AS journal", (uri,))
            _create(connection, fill)
    except BaseException as error:
        target.unlink()
        if isinstance(error, sqlite3.Error):
            raise store_error(error, target) from error
        raise


def _create(connection: sqlite3.Connection, fill: Callable[[sqlite3.Connection], None]) -> None:
    schema = [statement for script in migrations() for statement in statements(script)]
    # Create the triggers last: they would refuse rows that were tampered with.
    triggers = [statement for statement in schema if _TRIGGER.search(statement)]
    connection.execute("BEGIN")
    for statement in schema:
        if statement not in triggers:
            connection.execute(statement)
    fill(connection)
    for statement in triggers:
        connection.execute(statement)
    sign(connection)
    connection.execute("COMMIT")


def _copy_tables(connection: sqlite3.Connection, run_id: str) -> None:
    for table, column in _TABLES.items():
        # Both databases have the same columns in the same order.
        rows = f"SELECT * FROM journal.{table} WHERE {column} = ?"
        connection.execute(f"INSERT INTO {table} {rows}", (run_id,))
    connection.execute(
        "INSERT INTO blobs SELECT * FROM journal.blobs WHERE hash IN"
        " (SELECT json_extract(place.value, '$[1]') FROM events, json_each(events.blobs) AS place)"
    )
