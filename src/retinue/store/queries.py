"""The SQL of the store, read from the folder `sql`."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def queries(folder: str = "") -> dict[str, str]:
    """Every named query of `queries.sql`, for SQLite or in the folder of another database."""
    found: dict[str, str] = {}
    for block in re.split(r"^-- name: ", script("queries.sql", folder), flags=re.MULTILINE)[1:]:
        name, _, body = block.partition("\n")
        lines = (line for line in body.splitlines() if not line.startswith("--"))
        found[name.strip()] = "\n".join(lines).strip().replace("{runs}", found.get("runs", ""))
    return found


@cache
def migrations(folder: str = "") -> tuple[str, ...]:
    """The scripts that bring a database from version n to n + 1, in order."""
    scripts = files(__package__).joinpath("sql", folder, "migrations")
    names = sorted(item.name for item in scripts.iterdir() if item.name.endswith(".sql"))
    return tuple(scripts.joinpath(name).read_text("utf-8") for name in names)


@cache
def script(name: str, folder: str = "") -> str:
    """The text of a file in the folder; its first comment says what it is for."""
    return files(__package__).joinpath("sql", folder, name).read_text("utf-8")


@cache
def with_rows(query: str, columns: int, count: int) -> str:
    """`query` with placeholders for `count` rows."""
    row = "(" + ", ".join("?" * columns) + ")"
    return queries()[query].format(rows=", ".join([row] * count))
