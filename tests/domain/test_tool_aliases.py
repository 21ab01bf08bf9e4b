from __future__ import annotations

import pytest

from retinue.domain.approval import Rules, Verdict, parse_rule
from retinue.domain.tool_aliases import TOOL_ALIASES, tools_meant
from retinue.domain.tool_names import select_names

KNOWN = frozenset(TOOL_ALIASES)


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("read", "read_file"), ("Read", "read_file"), ("ReadFile", "read_file"), ("ls", "list_dir"),
        ("grep", "search_files"), ("Grep", "search_files"), ("code_search", "search_files"),
        ("search", "search_files"), ("plan_files", "find_files"), ("shell", "run_command"),
        ("test", "run_tests"), ("git", "git_read"), ("git_diff", "git_read"),
        ("git_commit", "run_command"), ("write", "write_file"), ("edit", "edit_file"),
    ],
)  # fmt: skip
def test_names_of_other_agents(name: str, tool: str) -> None:
    assert tools_meant(name, KNOWN) == (tool,)
    assert select_names([name], KNOWN) == ({tool}, [])


def test_own_tool_wins_over_an_alias() -> None:
    assert select_names(["search"], {"search", "search_files"}) == ({"search"}, [])


def test_alias_of_a_missing_tool_is_unknown() -> None:
    assert select_names(["test", "nonsense"], {"read_file"}) == (set(), ["test", "nonsense"])


def test_rules_understand_other_names() -> None:
    rules = Rules(deny=(parse_rule("Bash(git push:*)"), parse_rule("Read(keys/*)")))
    verdict, _ = rules.judge("run_command", "git push origin", is_command=True, asked=False)
    assert verdict is Verdict.DENY
    assert rules.judge("read_file", "keys/a", is_command=False, asked=False)[0] is Verdict.DENY
    assert rules.unreadable_paths == ("keys/*",)
    assert Rules(deny=(parse_rule("Edit(a.py)"),)).denied_paths == ("a.py",)
    # In the pattern of one of our own tools, a colon is a colon.
    assert parse_rule("run_command(echo a:*)").pattern == "echo a:*"


def test_rule_for_a_tool_that_is_called_like_an_alias() -> None:
    rule = parse_rule("search")
    assert rule.covers_tool("search")
    assert rule.covers_tool("search_files")
    assert not rule.covers_tool("find_files")
