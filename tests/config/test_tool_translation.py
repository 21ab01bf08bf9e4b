from __future__ import annotations

import pytest

from retinue.config.tool_translation import (
    BUILTIN_TOOLS,
    COMMON_NAMES,
    DIALECT_NAMES,
    PERMISSION_NAMES,
    SPAWN,
    Dialect,
    remove_denied,
    split_pattern,
    translate_allowed,
    translate_denied,
)
from retinue.domain.tool_names import MCP_PREFIX
from retinue.tools.builtin import builtin_tools
from retinue.tools.web.fetcher import WebClient
from retinue.tools.web.search import SearxngSearch
from retinue.tools.web.tools import web_tools

WITH_SERVERS = (*BUILTIN_TOOLS, f"{MCP_PREFIX}github__*", f"{MCP_PREFIX}my_db__*")


def test_builtin_tools_match_the_registry() -> None:
    web = web_tools(WebClient(), fetch=True, provider=SearxngSearch("http://127.0.0.1:1"))
    assert set(BUILTIN_TOOLS) == {tool.spec.name for tool in (*builtin_tools(), *web)}


def test_every_name_maps_to_existing_tools() -> None:
    for table in (COMMON_NAMES, PERMISSION_NAMES, *DIALECT_NAMES.values()):
        assert all(word == word.casefold() for word in table)
        assert {name for ours in table.values() for name in ours} <= {*BUILTIN_TOOLS, SPAWN}


@pytest.mark.parametrize(
    ("dialect", "names", "tools"),
    [
        (Dialect.CLAUDE, ["Read", "LS", "GLOB"], {"read_file", "list_dir", "find_files"}),
        (Dialect.CLAUDE, ["Edit"], {"edit_file"}),
        (Dialect.CLAUDE, ["WebFetch", "WebSearch"], {"web_fetch", "web_search"}),
        (Dialect.COPILOT, ["edit"], {"edit_file", "write_file"}),
        (Dialect.COPILOT, ["search/codebase"], {"find_files", "search_files"}),
        (Dialect.COPILOT, ["execute/*"], {"run_command"}),
        (Dialect.GEMINI, ["replace", "run_shell_command"], {"edit_file", "run_command"}),
        (Dialect.RETINUE, ["read_file", "Bash(*)"], {"read_file", "run_command"}),
    ],
)
def test_translate_allowed(dialect: Dialect, names: list[str], tools: set[str]) -> None:
    found = translate_allowed(names, dialect)
    assert found.tools == frozenset(tools)
    assert found.problems == ()


def test_unknown_server_prefix_is_not_our_tool() -> None:
    found = translate_allowed(
        ["some-server/read", "mcp__files__read", "TodoWrite"], Dialect.COPILOT
    )
    assert found.tools == frozenset()
    assert found.problems == ("unknown tools: some-server/read, mcp__files__read, TodoWrite",)


def test_wildcards_allow_everything() -> None:
    assert translate_allowed(["*"], Dialect.GEMINI).tools is None
    assert translate_denied(["*"], Dialect.OPENCODE) == {*BUILTIN_TOOLS, SPAWN}


def test_split_pattern() -> None:
    assert split_pattern("Bash(git log:*)") == ("Bash", "git log:*")
    assert split_pattern("Bash(git log") == ("Bash", "git log")
    assert split_pattern("Bash(*)") == ("Bash", None)
    assert split_pattern("Read") == ("Read", None)


# Tools of MCP servers


@pytest.mark.parametrize(
    ("dialect", "names", "tools", "problems"),
    [
        (Dialect.CLAUDE, ["mcp__github__get_issue"], {"mcp__github__get_issue"}, ()),
        (Dialect.CLAUDE, ["Read", "mcp__github"], {"read_file", "mcp__github"}, ()),
        (Dialect.CLAUDE, ["mcp__github__*"], {"mcp__github__*"}, ()),
        (Dialect.RETINUE, ["mcp__*", "mcp:read"], {"mcp__*", "mcp:read"}, ()),
        (Dialect.COPILOT, ["github/*"], {"mcp__github__*"}, ()),
        (Dialect.COPILOT, ["my-db/query"], set(), ("unknown tools: my-db/query",)),
        (Dialect.COPILOT, ["my_db/query"], {"mcp__my_db__query"}, ()),
        (Dialect.COPILOT, ["edit/x"], set(), ("unknown tools: edit/x",)),
        (Dialect.CLAUDE, ["mcp__linear__x"], set(), ("unknown tools: mcp__linear__x",)),
    ],
)  # fmt: skip
def test_mcp_tools_of_known_servers(
    dialect: Dialect, names: list[str], tools: set[str], problems: tuple[str, ...]
) -> None:
    found = translate_allowed(names, dialect, known=WITH_SERVERS)
    assert found.tools == frozenset(tools)
    assert found.problems == problems


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ([], {"github", "my_db"}),
        (["Write"], {"github", "my_db"}),
        (["mcp__github"], {"my_db"}),
        (["mcp__github__*"], {"my_db"}),
        # Which tools there are is not known here, so that one of them means all.
        (["mcp__github__delete_repo"], {"my_db"}),
        (["mcp__*"], set()),
        (["github_*"], {"my_db"}),
        (["github*"], {"my_db"}),
        (["GitHub_delete_repo"], {"my_db"}),
        (["*"], set()),
    ],
)
def test_denied_mcp_tools_are_never_allowed(names: list[str], left: set[str]) -> None:
    gone = translate_denied(names, Dialect.OPENCODE, known=WITH_SERVERS)
    kept = remove_denied(WITH_SERVERS, gone)
    assert {name for name in kept if name.startswith(MCP_PREFIX)} == {f"mcp__{n}__*" for n in left}


def test_deny_wins_over_allow() -> None:
    allowed = {"mcp__github__a", "mcp__github__b", "read_file"}
    assert remove_denied(allowed, {"mcp__github__b"}) == {"mcp__github__a", "read_file"}
    assert remove_denied(allowed, {"mcp__github__*"}) == {"read_file"}
    assert remove_denied(["mcp__github__*"], {"mcp__github__b"}) == set()
