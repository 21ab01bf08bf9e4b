"""The SQL of the store, read from the folder `sql`."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def queries() -> dict[str, str]:
    """Every named query of `queries.sql`."""
    found: dict[str, str] = {}
    for block in re.split(r"^-- name: ", script("queries.sql"), flags=re.MULTILINE)[1:]:
        name, _, body = block.partition("\n")
        lines = (line for line in body.splitlines() if not line.startswith("--"))
        found[name.strip()] = "\n".join(lines).strip().replace("{runs}", found.get("runs", ""))
    return found


@cache
def migrations() -> tuple[str, ...]:
    """The scripts that bring a database from version n to n + 1, in order."""
    folder = files(__package__).joinpath("sql", "migrations")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return tuple(folder.joinpath(name).read_text("utf-8") for name in names)


@cache
def script(name: str) -> str:
    """The text of a file in the folder; its first comment says what it is for."""
    return files(__package__).joinpath("sql", name).read_text("utf-8")


@cache
def with_rows(query: str, columns: int, count: int) -> str:
    """`query` with placeholders for `count` rows."""
    row = "(" + ", ".join("?" * columns) + ")"
    return queries()[query].format(rows=", ".join([row] * count))
