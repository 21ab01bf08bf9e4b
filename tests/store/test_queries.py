from __future__ import annotations

import sqlite3
from importlib.resources import files
from itertools import pairwise

from retinue.store.database import run_script, statements
from retinue.store.queries import migrations, queries, script, with_rows
from retinue.store.seals import define_own_runs


def test_every_query_is_one_statement_without_its_comment() -> None:
    assert {"insert_run", "events_after", "agents_of"} <= queries().keys()
    for name, text in queries().items():
        assert "--" not in text
        assert statements(text + ";") == [text + ";"], name


def test_every_query_says_what_it_is_for() -> None:
    lines = files("retinue.store").joinpath("sql", "queries.sql").read_text("utf-8").splitlines()
    for line, below in pairwise(lines):
        if line.startswith("-- name: "):
            assert below.startswith("-- "), line


def test_rows_are_repeated_by_their_number() -> None:
    text = with_rows("insert_agents", 2, 3)
    assert text.endswith("VALUES (?, ?), (?, ?), (?, ?)")


def test_migrations_run_statement_by_statement_and_the_journal_fits_them() -> None:
    connection = sqlite3.connect(":memory:")
    for text in (*migrations(), script("agent_moves.sql")):
        run_script(connection, text)
    connection.execute("PRAGMA user_version = 6")
    define_own_runs(connection, str)
    for name, text in queries().items():
        # Memories have an index that only some builds of SQLite can make.
        if "memories_index" in text:
            continue
        if "{rows}" in text:
            columns = text[: text.index("VALUES")].count(",") + 1
            text = with_rows(name, columns, 2)
        if name in ("own_runs", "no_own_runs"):
            continue  # Executed above.
        arguments = 1 if "?1" in text else text.count("?")
        connection.execute(f"EXPLAIN {text}", [None] * arguments)
    connection.close()


def test_a_trigger_is_one_statement() -> None:
    script = """\
CREATE TABLE a (b);
-- why;
CREATE TRIGGER c AFTER INSERT ON a
BEGIN
    SELECT 1;
    SELECT 2;
END;
CREATE TABLE d (e);
"""
    assert [statement.splitlines()[-1] for statement in statements(script)] == [
        "CREATE TABLE a (b);",
        "END;",
        "CREATE TABLE d (e);",
    ]
