"""Tool lists of MCP servers, cached on disk.

With a cached list, the tools of a server can be offered without starting it. Most runs call none of
them, and prompts stay the same from run to run. The cache lies in the user's cache directory, never
in the project: a project could otherwise describe the tools of a server that the user trusts.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from retinue.domain.mcp_server import McpServerSpec
from retinue.ports.clock import Clock
from retinue.version import VERSION

FRESH_S = 3_600.0
"""Maximum age of a cached list: the server may have been updated."""


class ListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool of a server. `reads` and `repeatable` are claims of the server."""

    name: str
    description: str
    schema: msgspec.Raw
    reads: bool = False
    repeatable: bool = False


class _CachedListing(msgspec.Struct, frozen=True):
    time: float
    tools: tuple[ListedTool, ...]


class ListingCache:
    """Cached tool lists in a folder, one file for each server."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock

    def get(self, server: McpServerSpec) -> tuple[ListedTool, ...] | None:
        """Tools that the server listed within FRESH_S; None if unknown."""
        try:
            kept = msgspec.json.decode(self._file(server).read_bytes(), type=_CachedListing)
        except (OSError, msgspec.DecodeError):
            return None
        fresh = 0 <= self._clock.now() - kept.time < FRESH_S
        return kept.tools if fresh else None

    def keep(self, server: McpServerSpec, tools: Iterable[ListedTool]) -> None:
        """Store a list. If that fails, the server is asked again next time."""
        data = msgspec.json.encode(_CachedListing(self._clock.now(), tuple(tools)))
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self._file(server)
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_bytes(data)
            draft.replace(path)

    def _file(self, server: McpServerSpec) -> Path:
        what = (
            VERSION,
            server.name,
            server.command,
            sorted(server.environment.items()),
            server.directory,
            server.url,
            sorted(server.headers.items()),
            _file_stamps(server),
        )
        key = hashlib.sha256(msgspec.json.encode(what)).hexdigest()
        return self._directory / f"{key[:32]}.json"


def _file_stamps(server: McpServerSpec) -> list[tuple[int, int]]:
    """Size and time of the files on the command line, so that an edited server is asked again."""
    found = []
    for number, word in enumerate(server.command):
        path = os.path.join(server.directory, word)
        if number == 0 and os.sep not in word:
            path = shutil.which(word, path=server.environment.get("PATH")) or path
        with suppress(OSError, ValueError):
            about = os.stat(path)
            if os.path.isfile(path):
                found.append((about.st_size, about.st_mtime_ns))
    return found
