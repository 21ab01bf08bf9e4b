"""Translation of the tool names of other coding agents into ours.

Each table maps a name in lower case to our names. A name that is in no table is reported and allows
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from retinue.domain.permissions import WEB_SEARCH
from retinue.domain.tool_aliases import tools_meant
from retinue.domain.tool_names import (
    ALL_MCP_TOOLS,
    MCP_PREFIX,
    READING_MCP_TOOLS,
    is_mcp_tool,
    matches,
    server_of,
    server_slug,
)
from retinue.domain.web_hosts import WEB_FETCH

READ, LIST, FIND, SEARCH = "read_file", "list_dir", "find_files", "search_files"
TEST = "run_tests"
OVERVIEW, SYMBOL, COVERAGE, GIT = "overview", "find_symbol", "docs_coverage", "git_read"
WRITE, EDIT, RUN = "write_file", "edit_file", "run_command"
RECALL, REMEMBER = "recall", "remember"
SPAWN = "spawn_agent"
OTHER_DELEGATION = (
    "agent_cancel", "agent_message", "agent_result", "delegate_task", "race_agents", "spawn_await",
)  # fmt: skip
"""Tools of an agent that spawns. It has `agent_result`, and those that its list of tools names."""

# Tools of retinue: what an agent gets if its file only denies tools. The right to delegate is not
# among them; it is the field `spawns`.
BUILTIN_TOOLS = (
    COVERAGE, EDIT, FIND, SYMBOL, GIT, LIST, OVERVIEW, READ, RECALL, REMEMBER, RUN, SEARCH, TEST,
    WEB_FETCH, WEB_SEARCH, WRITE,
)  # fmt: skip


class Dialect(StrEnum):
    """The program that an agent file was written for. The values qualify duplicate names:
    claude:reviewer."""

    RETINUE = "retinue"
    CLAUDE = "claude"
    OPENCODE = "opencode"
    GEMINI = "gemini"
    COPILOT = "copilot"
    CODEX = "codex"


# Names in files of other agents, beside those of `domain.tool_aliases`; one may mean two tools.
_FOREIGN_NAMES = {
    READ: ("notebookread", "read_many_files"),
    SEARCH: ("codebase", "textsearch"),
    WRITE: ("new", "editfiles"),
    EDIT: (
        "multiedit", "notebookedit", "patch", "apply_patch", "editfiles", "inserteditintofile",
        "replacestringinfile",
    ),
    RUN: ("runcommands", "powershell", "run_terminal_command"),
    SPAWN: ("delegate_to_agent", "runsubagent", "custom-agent"),
}  # fmt: skip
COMMON_NAMES: Mapping[str, tuple[str, ...]] = {
    name: tuple(ours for ours, theirs in _FOREIGN_NAMES.items() if name in theirs)
    for names in _FOREIGN_NAMES.values()
    for name in names
}

# Names that mean more in one dialect than in the others.
DIALECT_NAMES: Mapping[Dialect, Mapping[str, tuple[str, ...]]] = {
    Dialect.COPILOT: {
        "edit": (EDIT, WRITE),
        "search": (FIND, LIST, SEARCH),
        "codebase": (FIND, SEARCH),
    }
}

# In opencode's `permission`, `edit` covers every way to change a file.
PERMISSION_NAMES: Mapping[str, tuple[str, ...]] = {**COMMON_NAMES, "edit": (EDIT, WRITE)}

# Sets of tools in Copilot: `edit/createFile` is `createFile`. Any other prefix is an MCP server.
TOOL_SETS = ("agent", "edit", "execute", "read", "search", "vscode", "web")

# A tool for one kind of file is a part of ours. Denying the part does not deny our tool.
PARTIAL_TOOLS = ("notebookedit", "notebookread")

EVERYTHING = ("*", "all", "all tools", "inherit")

# `Bash(git log:*)`, and the forms that restrict nothing: `Bash(*)`, `Bash(:*)`.
_PATTERN = re.compile(r"([^()]+)\((.*?)\)?", re.DOTALL)
_ANYTHING = ("", "*", "**", ":*")


class ToolTranslation(msgspec.Struct, frozen=True):
    """`tools` None allows the parent's tools. `spawns` are the roles that the list names."""

    tools: frozenset[str] | None
    delegates: bool = False
    spawns: tuple[str, ...] | None = None
    problems: tuple[str, ...] = ()


def translate_allowed(
    names: Iterable[str], dialect: Dialect, *, known: Collection[str] = BUILTIN_TOOLS
) -> ToolTranslation:
    """Translate a list of allowed tools. A name that is in `known` means itself.

    `known` has `mcp__SERVER__*` for an MCP server. The tools of the server are not known here, so
    their names are accepted unchecked.
    """
    tools: set[str] = set()
    unknown: list[str] = []
    problems: list[str] = []
    delegates, everything = False, False
    spawns: list[str] = []
    for name in names:
        if name.strip().casefold() in EVERYTHING:
            everything = True
            continue
        word, pattern = split_pattern(name)
        ours = our_names(word, dialect, known)
        if not ours:
            unknown.append(name)
        elif SPAWN in ours:
            delegates = True
            spawns += [part.strip() for part in (pattern or "").split(",") if part.strip()]
        elif pattern is not None:
            problems.append(f"{name}: left out, because its pattern is not enforced")
        else:
            tools.update(ours)
    if unknown:
        problems.append(f"unknown tools: {', '.join(unknown)}")
    return ToolTranslation(
        tools=None if everything else frozenset(tools),
        delegates=delegates,
        spawns=tuple(dict.fromkeys(spawns)) or None,
        problems=tuple(problems),
    )


def translate_denied(
    names: Iterable[str], dialect: Dialect, *, known: Collection[str] = BUILTIN_TOOLS
) -> frozenset[str]:
    """Translate a list of denied tools. A name with a pattern denies the whole tool."""
    denied: set[str] = set()
    for name in names:
        if name.strip().casefold() in EVERYTHING:
            return frozenset({*known, SPAWN})
        word, _ = split_pattern(name)
        if word.casefold() not in PARTIAL_TOOLS:
            denied.update(our_names(word, dialect, known))
            denied.update(
                n for n in known if is_mcp_tool(n) and _may_name_tool_of(word, server_of(n))
            )
    return frozenset(denied)


def remove_denied(tools: Iterable[str], denied: Collection[str]) -> frozenset[str]:
    """`tools` without the denied ones. A server that is denied in part is denied as a whole."""
    return frozenset(
        tool
        for tool in tools
        if tool not in denied
        and not (is_mcp_tool(tool) and any(matches(d, tool) or matches(tool, d) for d in denied))
    )


def _may_name_tool_of(word: str, server: str) -> bool:
    """Whether a denied name may be a tool of a server, in opencode's form `server_tool`."""
    word, server = word.casefold(), server.casefold()
    return word.startswith(f"{server}_") or any(
        fnmatchcase(name, word) for name in (server, f"{server}_")
    )


def split_pattern(name: str) -> tuple[str, str | None]:
    """Split `Bash(git log:*)` into name and pattern. A pattern that matches everything is None."""
    found = _PATTERN.fullmatch(name.strip())
    if found is None:
        return name.strip(), None
    pattern = found[2].strip()
    return found[1].strip(), None if pattern in _ANYTHING else pattern


def our_names(
    word: str,
    dialect: Dialect,
    known: Collection[str],
    table: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[str, ...]:
    """Our names for a tool of another program; empty if we have no such tool."""
    if word in known:
        return (word,)
    if pattern := mcp_pattern(word, known):
        return (pattern,)
    lower = word.casefold()
    if lower in (SPAWN, *OTHER_DELEGATION):
        return (lower,)
    prefix, slash, tail = lower.partition("/")
    if slash:
        if prefix not in TOOL_SETS:
            return ()
        lower = tail if tail != "*" else prefix
    if table is None:
        table = {**COMMON_NAMES, **DIALECT_NAMES.get(dialect, {})}
    if lower in table:
        return tuple(name for name in table[lower] if name in known or name == SPAWN)
    return tools_meant(lower, {*known, SPAWN})


def mcp_pattern(word: str, known: Collection[str]) -> str | None:
    """`word` as an MCP tool name, also from Copilot's form `github/get_issue`.

    None if no server in `known` has that name.
    """
    servers = {server_of(n).casefold(): server_of(n) for n in known if is_mcp_tool(n)}
    if word == READING_MCP_TOOLS:
        return word
    if is_mcp_tool(word):
        return word if word == ALL_MCP_TOOLS or server_of(word).casefold() in servers else None
    prefix, slash, tool = word.partition("/")
    server = servers.get(server_slug(prefix).casefold())
    return f"{MCP_PREFIX}{server}__{tool}" if slash and tool and server else None
