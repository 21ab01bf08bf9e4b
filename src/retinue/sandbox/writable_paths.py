"""Translates a write scope into existing folders and files that the kernel can make writable.

A scope consists of globs, but a mount or a Landlock rule names an existing folder or file. A folder
is writable if the scope contains everything below it, and a file if the scope contains it. A new
file that only matches by its name (`test_*.py` beside the code) cannot be made by a command, only
by the file tools. Repositories inside writable paths are found here too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator

from retinue.domain.paths import PROTECTED_NAMES
from retinue.domain.scope import ANYWHERE, NOWHERE, Scope, contains

MAX_FOLDERS = 20_000
MAX_FILES = 200
_WILDCARDS = "*?"
_ANY_NAME = "\x01"
# Tools keep checkouts of their own in these folders, and have to write them.
_TOOL_FOLDERS = frozenset({"_deps", "node_modules"})
_nested_git_dirs: dict[str, tuple[str, ...]] = {}


def writable_paths(root: str, write_scope: Scope, *, whole_root: bool = True) -> list[str]:
    """The absolute paths to make writable; parents come before their children.

    Without `whole_root` the root itself is not among them, for sandboxes that cannot protect a path
    below a writable one. Commands then cannot make new names at the top.
    """
    if write_scope == NOWHERE:
        return []
    if write_scope == ANYWHERE:
        return [root] if whole_root else _entries_of_root(root)
    found: list[str] = []
    files = 0
    for folder, names in _walk_folders(root, write_scope):
        if names is None:
            found.append(os.path.join(root, folder))
            continue
        for name in names:
            path = os.path.join(folder, name) if folder else name
            if files < MAX_FILES and contains(write_scope, path):
                found.append(os.path.join(root, path))
                files += 1
    return found


def without_protected(path: str, closed: Iterable[str]) -> list[str]:
    """`path`, or everything in it except `closed`.

    For sandboxes that cannot protect a path below a writable one. Commands then cannot make new
    names in a folder that leads to a closed path.
    """
    within = [one for one in closed if one.startswith(f"{path}/")]
    if not within:
        return [path]
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(path) as listing:
        for entry in sorted(listing, key=lambda entry: entry.name):
            if entry.path not in within and not entry.is_symlink():
                found += without_protected(entry.path, within)
    return found


def _entries_of_root(root: str) -> list[str]:
    with os.scandir(root) as listing:
        return sorted(
            entry.path
            for entry in listing
            if entry.name.casefold() not in PROTECTED_NAMES
            and (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
        )


def _walk_folders(root: str, scope: Scope) -> Iterator[tuple[str, list[str] | None]]:
    """Folders that may be in the scope, with their files; None for a folder that is wholly in."""
    pending = _walk_roots(scope)
    seen = 0
    while pending and seen < MAX_FOLDERS:
        folder = pending.pop(0)
        seen += 1
        if folder and contains_all_below(folder, scope):
            # Not listed: it may have any number of files.
            if os.path.isdir(os.path.join(root, folder)):
                yield folder, None
            continue
        try:
            with os.scandir(os.path.join(root, folder)) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            continue
        files: list[str] = []
        for entry in entries:
            if entry.name.casefold() in PROTECTED_NAMES or entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(os.path.join(folder, entry.name) if folder else entry.name)
            elif entry.is_file(follow_symlinks=False):
                files.append(entry.name)
        yield folder, files


def contains_all_below(folder: str, scope: Scope) -> bool:
    """Whether the scope contains every possible path below `folder`."""
    below = f"{folder}/{_ANY_NAME}"
    return all(
        any(
            contains(((glob,),), below)
            and (glob.endswith("**") or not any(c in glob for c in _WILDCARDS))
            for glob in group
        )
        for group in scope
    )


def _walk_roots(scope: Scope) -> list[str]:
    """The folders to start from: those before the first wildcard, in the narrowest group."""
    groups = [sorted({_literal_folder(glob) for glob in group}) for group in scope]
    starts = min(groups, key=lambda group: ("" in group, len(group)))
    return [start for start in starts if not any(_is_above(other, start) for other in starts)]


def _literal_folder(glob: str) -> str:
    parts: list[str] = []
    for part in glob.split("/"):
        if any(c in part for c in _WILDCARDS):
            return "/".join(parts)
        parts.append(part)
    # A name without wildcards is a folder or a file: start from its parent.
    return "/".join(parts[:-1])


def _is_above(other: str, path: str) -> bool:
    return other != path and (other == "" or path.startswith(f"{other}/"))


async def find_nested_git_dirs(folders: Iterable[str]) -> list[str]:
    """The paths of every `.git` in and below `folders`, as of the first call for each folder.

    They must stay read-only: the user's git runs hooks and settings that it finds there. Later
    repositories were made by commands, which may go on writing them. In a tree of more than
    `MAX_FOLDERS` folders, only repositories near its top are found.
    """
    found: list[str] = []
    for folder in folders:
        if folder not in _nested_git_dirs:
            # In a thread: walking a large tree takes long.
            _nested_git_dirs[folder] = await asyncio.to_thread(_find_git_dirs, folder)
        found += _nested_git_dirs[folder]
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
            if entry.name.casefold() == ".git":
                found.append(entry.path)
            elif entry.is_dir(follow_symlinks=False) and entry.name not in _TOOL_FOLDERS:
                pending.append(entry.path)
    return tuple(found)
