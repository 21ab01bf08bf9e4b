"""The SQL of the store, read from the files beside this one."""

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
    """What makes the full-text index over the memories, where SQLite has FTS5."""
    return files(__package__).joinpath("sql", "full_text.sql").read_text("utf-8")


@cache
def reading_old_script() -> str:
    """What stands in for what a file of an earlier version lacks, for reading only."""
    return files(__package__).joinpath("sql", "reading_old.sql").read_text("utf-8")


@cache
def moving_script() -> str:
    """What `move_agents` needs on a connection that writes."""
    return files(__package__).joinpath("sql", "moving.sql").read_text("utf-8")


@cache
def rows_of(query: str, columns: int, count: int) -> str:
    """`query` with place holders for `count` rows."""
    row = "(" + ", ".join("?" * columns) + ")"
    return queries()[query].format(rows=", ".join([row] * count))
