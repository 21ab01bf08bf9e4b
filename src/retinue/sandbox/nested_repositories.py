"""Finds repositories inside writable paths: their `.git` must stay read-only.

The user's git runs hooks and settings that it finds in there.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterable

from retinue.sandbox.writable_paths import MAX_FOLDERS

_NAME = ".git"
# Tools keep checkouts of their own in these folders, and have to write them.
_TOOL_FOLDERS = frozenset({"_deps", "node_modules"})
_found: dict[str, tuple[str, ...]] = {}


async def find_nested_git_dirs(folders: Iterable[str]) -> list[str]:
    """The paths of every `.git` in and below `folders`, as of the first call for each folder.

    Later repositories were made by commands, which may go on writing them. In a tree of more than
    `MAX_FOLDERS` folders, only repositories near its top are found.
    """
    found: list[str] = []
    for folder in folders:
        if folder not in _found:
            # In a thread: walking a large tree takes long.
            _found[folder] = await asyncio.to_thread(_find_git_dirs, folder)
        found += _found[folder]
    return found


def _find_git_dirs(top: str) -> tuple[str, ...]:
    found: list[str] = []
    pending, seen = deque([top]), 0
    while pending and seen < MAX_FOLDERS:
        seen += 1
        try:
            with os.scandir(pending.popleft()) as listing:
                entries = list(listing)
        except OSError:
            continue
        for entry in entries:
            if entry.name.casefold() == _NAME:
                found.append(entry.path)
            elif entry.is_dir(follow_symlinks=False) and entry.name not in _TOOL_FOLDERS:
                pending.append(entry.path)
    return tuple(found)
