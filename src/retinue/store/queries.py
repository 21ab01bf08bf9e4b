"""The SQL of the store, read from the folder `sql`."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def queries() -> dict[str, str]:
    """Every named query of `queries.sql`."""
    text = files(__package__).joinpath("sql", "queries.sql").read_text("utf-8")
    found: dict[str, str] = {}
    for block in re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]:
        name, _, body = block.partition("\n")
        lines = (line for line in body.splitlines() if not line.startswith("--"))
        found[name.strip()] = "\n".join(lines).strip()
    return found


@cache
def migrations() -> tuple[str, ...]:
    """The scripts that bring a database from version n to n + 1, in order."""
    folder = files(__package__).joinpath("sql", "migrations")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return tuple(folder.joinpath(name).read_text("utf-8") for name in names)


@cache
def full_text_script() -> str:
    """Creates the full-text index over memories, where SQLite has FTS5."""
    return files(__package__).joinpath("sql", "full_text.sql").read_text("utf-8")


@cache
def old_schema_script() -> str:
    """Temporary tables for reading a file of an older schema, which has no blobs."""
    return files(__package__).joinpath("sql", "old_schema.sql").read_text("utf-8")


@cache
def agent_moves_script() -> str:
    """The temporary view and trigger that the query `move_agents` inserts into."""
    return files(__package__).joinpath("sql", "agent_moves.sql").read_text("utf-8")


@cache
def with_rows(query: str, columns: int, count: int) -> str:
    """`query` with placeholders for `count` rows."""
    row = "(" + ", ".join("?" * columns) + ")"
    return queries()[query].format(rows=", ".join([row] * count))
