"""Repositories inside of what a command may write: what is in their `.git` runs on the host."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterable

from retinue.sandbox.writable_paths import MAX_FOLDERS

_NAME = ".git"
# Where tools keep checkouts of their own, and have to write.
_TOOL_FOLDERS = frozenset({"_deps", "node_modules"})
_found: dict[str, tuple[str, ...]] = {}


async def find_nested_git_dirs(folders: Iterable[str]) -> list[str]:
    """The paths of the `.git` in and below `folders` when this was asked of them first.

    What came later was made by commands, which may go on with it. In a tree of more than
    `MAX_FOLDERS` only those near its top are found.
    """
    found: list[str] = []
    for folder in folders:
        if folder not in _found:
            # In a thread: a large tree takes its time.
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
