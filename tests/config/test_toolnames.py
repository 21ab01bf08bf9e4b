from __future__ import annotations

import pytest

from retinue.config.toolnames import (
    COMMON,
    PERMISSIONS,
    SPAWN,
    TOOLS,
    WIDER,
    Dialect,
    denied,
    taken_apart,
    translated,
)
from retinue.tools.builtin import builtin_tools


def test_the_tools_are_those_that_come_with_retinue() -> None:
    assert set(TOOLS) == {tool.spec.name for tool in builtin_tools()}


def test_every_name_stands_for_tools_that_exist() -> None:
    for table in (COMMON, PERMISSIONS, *WIDER.values()):
        assert all(word == word.casefold() for word in table)
        assert {name for ours in table.values() for name in ours} <= {*TOOLS, SPAWN}


@pytest.mark.parametrize(
    ("dialect", "names", "tools"),
    [
        (Dialect.CLAUDE, ["Read", "LS", "GLOB"], {"read_file", "list_dir", "find_files"}),
        (Dialect.CLAUDE, ["Edit"], {"edit_file"}),
        (Dialect.COPILOT, ["edit"], {"edit_file", "write_file"}),
        (Dialect.COPILOT, ["search/codebase"], {"find_files", "search_files"}),
        (Dialect.COPILOT, ["execute/*"], {"run_command"}),
        (Dialect.GEMINI, ["replace", "run_shell_command"], {"edit_file", "run_command"}),
        (Dialect.RETINUE, ["read_file", "Bash(*)"], {"read_file", "run_command"}),
    ],
)
def test_translated(dialect: Dialect, names: list[str], tools: set[str]) -> None:
    found = translated(names, dialect)
    assert found.tools == frozenset(tools)
    assert found.problems == ()


def test_a_server_of_somebody_elses_is_not_one_of_our_tools() -> None:
    found = translated(["some-server/read", "mcp__files__read", "WebFetch"], Dialect.COPILOT)
    assert found.tools == frozenset()
    assert found.problems == ("unknown tools: some-server/read, mcp__files__read, WebFetch",)


def test_everything() -> None:
    assert translated(["*"], Dialect.GEMINI).tools is None
    assert denied(["*"], Dialect.OPENCODE) == {*TOOLS, SPAWN}


def test_taken_apart() -> None:
    assert taken_apart("Bash(git log:*)") == ("Bash", "git log:*")
    assert taken_apart("Bash(git log") == ("Bash", "git log")
    assert taken_apart("Bash(*)") == ("Bash", None)
    assert taken_apart("Read") == ("Read", None)
