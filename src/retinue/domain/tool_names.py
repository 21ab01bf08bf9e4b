"""Names of tools: lists of them with patterns, and the names that tools of servers go by.

A tool of an MCP server is called `mcp__SERVER__TOOL`, as other agents call it too.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

PREFIX = "mcp__"
# In a list of tools: whatever the servers have, and what of that changes nothing.
ALL_FOREIGN = f"{PREFIX}*"
READING_FOREIGN = "mcp:read"
MAX_CHARS = 64  # What servers of models take for the name of a function.
_DIGITS = 8
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


def is_foreign(name: str) -> bool:
    return name.startswith(PREFIX)


def server_part(name: str) -> str:
    """What stands for the server in `mcp__SERVER__TOOL`, in `mcp__SERVER__*` or `mcp__SERVER`."""
    return name.removeprefix(PREFIX).partition("__")[0]


def clean_server(name: str) -> str:
    """A server's name as a part of a tool's: `__` is what ends it."""
    return re.sub("__+", "_", _UNFIT.sub("_", name)).strip("_") or "server"


def foreign_names(tools: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
    """A name for each (server, tool): valid, unique, and the same whatever their order."""
    plain = {pair: f"{PREFIX}{clean_server(pair[0])}__{_UNFIT.sub('_', pair[1])}" for pair in tools}
    times = Counter(plain.values())
    return {
        # Of two that would be called alike neither may stand for the other.
        pair: name if len(name) <= MAX_CHARS and times[name] == 1 else _marked(name, pair)
        for pair, name in plain.items()
    }


def _marked(name: str, pair: tuple[str, str]) -> str:
    digest = hashlib.sha256("\0".join(pair).encode("utf-8", "replace")).hexdigest()[:_DIGITS]
    return f"{name[: MAX_CHARS - _DIGITS - 1]}_{digest}"


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` means `name`: the same, one with `*`, or `mcp__SERVER` for all of it."""
    if pattern == name:
        return True
    if "*" in pattern:
        return fnmatchcase(name, pattern)
    return is_foreign(pattern) and name.startswith(f"{pattern}__")


def picked(wanted: Iterable[str], known: Iterable[str]) -> tuple[set[str], list[str]]:
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
        elif pattern == ALL_FOREIGN:
            found.update(filter(is_foreign, known))
        elif pattern != READING_FOREIGN:
            these = [name for name in known if matches(pattern, name)]
            found.update(these)
            if not these:
                unknown.append(pattern)
    return found, unknown
