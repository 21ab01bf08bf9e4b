"""Names of tools, and patterns for them.

A tool of an MCP server is called `mcp__SERVER__TOOL`, as in other agents.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from retinue.domain.tool_aliases import tools_meant

MCP_PREFIX = "mcp__"
# In a list of tools: all tools of all servers, and all tools of servers that only read.
ALL_MCP_TOOLS = f"{MCP_PREFIX}*"
READING_MCP_TOOLS = "mcp:read"
MAX_NAME_CHARS = 64  # Limit of model servers for the name of a function.
_DIGEST_CHARS = 8
_INVALID = re.compile(r"[^A-Za-z0-9_-]")


def is_mcp_tool(name: str) -> bool:
    return name.startswith(MCP_PREFIX)


def server_of(name: str) -> str:
    """The SERVER part of `mcp__SERVER__TOOL`, `mcp__SERVER__*` or `mcp__SERVER`."""
    return name.removeprefix(MCP_PREFIX).partition("__")[0]


def server_slug(name: str) -> str:
    """A server's name as part of a tool's name, without the separator `__`."""
    return re.sub("__+", "_", _INVALID.sub("_", name)).strip("_") or "server"


def mcp_tool_names(tools: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
    """A name for each (server, tool): valid, unique, and the same whatever their order."""
    plain = {
        pair: f"{MCP_PREFIX}{server_slug(pair[0])}__{_INVALID.sub('_', pair[1])}" for pair in tools
    }
    times = Counter(plain.values())
    return {
        # Tools with the same plain name all get a digest: none may be taken for another.
        pair: name if len(name) <= MAX_NAME_CHARS and times[name] == 1 else _with_digest(name, pair)
        for pair, name in plain.items()
    }


def _with_digest(name: str, pair: tuple[str, str]) -> str:
    digest = hashlib.sha256("\0".join(pair).encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` is `name`, matches it with `*`, or is the `mcp__SERVER` of it."""
    if pattern == name:
        return True
    if "*" in pattern:
        return fnmatchcase(name, pattern)
    return is_mcp_tool(pattern) and name.startswith(f"{pattern}__")


def select_names(wanted: Iterable[str], known: Iterable[str]) -> tuple[set[str], list[str]]:
    """The known names that a list of names and patterns selects, and the entries that select none.

    A name that another agent has for a tool selects that tool. A pattern for all MCP tools is never
    reported: there may be no servers.
    """
    known = known if isinstance(known, (set, frozenset, Mapping)) else frozenset(known)
    found: set[str] = set()
    unknown: list[str] = []
    for pattern in wanted:
        # Nearly all entries are plain names, and a fan-out calls this ten thousand times.
        if pattern in known:
            found.add(pattern)
        elif pattern == ALL_MCP_TOOLS:
            found.update(filter(is_mcp_tool, known))
        elif pattern != READING_MCP_TOOLS:
            these = [name for name in known if matches(pattern, name)]
            these = these or [*tools_meant(pattern, known)]
            found.update(these)
            if not these:
                unknown.append(pattern)
    return found, unknown
