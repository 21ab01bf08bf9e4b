from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.tool_names import (
    is_mcp_tool,
    matches,
    mcp_tool_names,
    select_names,
    server_of,
    server_slug,
)

KNOWN = ("read_file", "write_file", "mcp__git__log", "mcp__git__status", "mcp__gitlab__log")

pairs = st.lists(st.tuples(st.text(max_size=30), st.text(max_size=80)), max_size=20, unique=True)


@given(pairs)
def test_names_are_valid_unique_and_independent_of_their_order(
    tools: list[tuple[str, str]],
) -> None:
    names = mcp_tool_names(tools)
    assert names.keys() == set(tools)
    assert len(set(names.values())) == len(tools)
    assert all(re.fullmatch(r"mcp__[A-Za-z0-9_-]{1,59}", name) for name in names.values())
    assert mcp_tool_names(reversed(tools)) == names


@given(st.text(max_size=40), st.text(min_size=1, max_size=40))
def test_the_server_is_part_of_the_name(server: str, tool: str) -> None:
    (name,) = mcp_tool_names([(server, tool)]).values()
    assert is_mcp_tool(name)
    if len(server_slug(server)) < 40:
        assert server_of(name) == server_slug(server)


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("github", "get_issue", "mcp__github__get_issue"),
        ("my server", "a/b.c", "mcp__my_server__a_b_c"),
        ("a__b", "x", "mcp__a_b__x"),
        ("", "x", "mcp__server__x"),
        ("s", "x" * 80, f"mcp__s__{'x' * 47}_cbf4205d"),
    ],
)
def test_names(server: str, tool: str, name: str) -> None:
    assert mcp_tool_names([(server, tool)]) == {(server, tool): name}


def test_tools_with_the_same_plain_name_get_a_digest() -> None:
    names = mcp_tool_names([("s", "a b"), ("s", "a_b"), ("s", "c")])
    assert names["s", "c"] == "mcp__s__c"
    assert {len(name) for pair, name in names.items() if pair[1] != "c"} == {len("mcp__s__a_b") + 9}


@pytest.mark.parametrize(
    ("wanted", "found", "unknown"),
    [
        (["read_file"], {"read_file"}, []),
        (["*_file"], {"read_file", "write_file"}, []),
        (["mcp__git__log"], {"mcp__git__log"}, []),
        (["mcp__git__*"], {"mcp__git__log", "mcp__git__status"}, []),
        (["mcp__git"], {"mcp__git__log", "mcp__git__status"}, []),
        (["mcp__*"], set(KNOWN[2:]), []),
        (["mcp:read"], set(), []),
        (["mcp__none__*", "read_fil", "read_file"], {"read_file"}, ["mcp__none__*", "read_fil"]),
        ([], set(), []),
    ],
)
def test_lists_with_patterns(wanted: list[str], found: set[str], unknown: list[str]) -> None:
    assert select_names(wanted, KNOWN) == (found, unknown)


def test_a_pattern_for_all_servers_may_select_nothing() -> None:
    assert select_names(["mcp__*"], ["read_file"]) == (set(), [])


def test_a_plain_name_is_no_prefix() -> None:
    assert not matches("read", "read__file")
    assert not matches("mcp__git", "mcp__gitlab__log")
