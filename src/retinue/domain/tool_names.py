"""Names of tools: lists of them with patterns, and the names that tools of servers go by.

A tool of an MCP server is called `mcp__SERVER__TOOL`, as other agents call it too.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

MCP_PREFIX = "mcp__"
# In a list of tools: whatever the servers have, and what of that changes nothing.
ALL_MCP_TOOLS = f"{MCP_PREFIX}*"
READING_MCP_TOOLS = "mcp:read"
MAX_NAME_CHARS = 64  # What servers of models take for the name of a function.
_DIGEST_CHARS = 8
_INVALID = re.compile(r"[^A-Za-z0-9_-]")


def is_mcp_tool(name: str) -> bool:
    return name.startswith(MCP_PREFIX)


def server_of(name: str) -> str:
    """What stands for the server in `mcp__SERVER__TOOL`, in `mcp__SERVER__*` or `mcp__SERVER`."""
    return name.removeprefix(MCP_PREFIX).partition("__")[0]


def server_slug(name: str) -> str:
    """A server's name as a part of a tool's: `__` is what ends it."""
    return re.sub("__+", "_", _INVALID.sub("_", name)).strip("_") or "server"


def mcp_tool_names(tools: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
    """A name for each (server, tool): valid, unique, and the same whatever their order."""
    plain = {
        pair: f"{MCP_PREFIX}{server_slug(pair[0])}__{_INVALID.sub('_', pair[1])}" for pair in tools
    }
    times = Counter(plain.values())
    return {
        # Of two that would be called alike neither may stand for the other.
        pair: name if len(name) <= MAX_NAME_CHARS and times[name] == 1 else _with_digest(name, pair)
        for pair, name in plain.items()
    }


def _with_digest(name: str, pair: tuple[str, str]) -> str:
    digest = hashlib.sha256("\0".join(pair).encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_NAME_CHARS - _DIGEST_CHARS - 1]}_{digest}"


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` means `name`: the same, one with `*`, or `mcp__SERVER` for all of it."""
    if pattern == name:
        return True
    if "*" in pattern:
        return fnmatchcase(name, pattern)
    return is_mcp_tool(pattern) and name.startswith(f"{pattern}__")


def select_names(wanted: Iterable[str], known: Iterable[str]) -> tuple[set[str], list[str]]:
    """The names that a list with patterns means, and what of the list means none.

    There may be no servers, so what stands for all of them is never a mistake.
    """
    known = known if isinstance(known, (set, frozenset, Mapping)) else frozenset(known)
    found: set[str] = set()
    unknown: list[str] = []
    for pattern in wanted:
        # Nearly all are plain names, and a fan-out asks ten thousand times.
        if pattern in known:
            found.add(pattern)
        elif pattern == ALL_MCP_TOOLS:
            found.update(filter(is_mcp_tool, known))
        elif pattern != READING_MCP_TOOLS:
            these = [name for name in known if matches(pattern, name)]
            found.update(these)
            if not these:
                unknown.append(pattern)
    return found, unknown
