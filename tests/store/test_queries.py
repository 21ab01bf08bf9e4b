from __future__ import annotations

import sqlite3
from importlib.resources import files

from retinue.store.database import statements
from retinue.store.queries import migrations, queries, rows_of


def test_every_query_is_one_statement_without_its_comment() -> None:
    assert len(queries()) == 8
    for name, text in queries().items():
        assert "--" not in text
        assert statements(text + ";") == [text + ";"], name


def test_every_query_says_what_it_is_for() -> None:
    lines = files("retinue.store").joinpath("sql", "queries.sql").read_text("utf-8").splitlines()
    for line, below in zip(lines, lines[1:], strict=False):
        if line.startswith("-- name: "):
            assert below.startswith("-- "), line


def test_rows_are_repeated_by_their_number() -> None:
    text = rows_of("insert_agents", 2, 3)
    assert text.endswith("VALUES (?, ?), (?, ?), (?, ?)")


def test_migrations_run_statement_by_statement_and_every_query_fits_them() -> None:
    connection = sqlite3.connect(":memory:")
    for script in migrations():
        for statement in statements(script):
            connection.execute(statement)
    for name, text in queries().items():
        columns = {"insert_agents": 7, "insert_events": 12}
        filled = rows_of(name, columns[name], 2) if name in columns else text
        arguments = 1 if "?1" in filled else filled.count("?")
        connection.execute(f"EXPLAIN {filled}", [None] * arguments)
    connection.close()


def test_a_trigger_is_one_statement() -> None:
    script = "CREATE TABLE a (b);\n-- why;\nCREATE TRIGGER c AFTER INSERT ON a\nBEGIN\n  SELECT 1;\n"
    script += "  SELECT 2;\nEND;\nCREATE TABLE d (e);\n"
    assert [statement.splitlines()[-1] for statement in statements(script)] == [
        "CREATE TABLE a (b);",
        "END;",
        "CREATE TABLE d (e);",
    ]
