"""From a write scope to the places that a kernel can open: folders, and single files.

A scope is globs, and a mount or a rule of the kernel names a folder or a file that exists. So a
folder is opened if all below it is inside the scope, and a file if it is inside. What neither says,
a new file whose name alone puts it inside (`test_*.py` beside the code), a command cannot make; the
file tools can.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from retinue.domain.paths import PROTECTED_NAMES
from retinue.domain.scope import ANYWHERE, NOWHERE, Groups, contains

MAX_FOLDERS = 20_000
MAX_FILES = 200
_WILDCARDS = "*?"
_ANY_NAME = "\x01"


def writable_paths(root: str, write_scope: Groups, *, whole_root: bool = True) -> list[str]:
    """The paths below `root` to be made writable, absolute; those above others come first.

    Without `whole_root` it is not the root itself, for those who cannot close anything below what
    is open: no new names can be made there then, but by the file tools.
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


def needs_walk(write_scope: Groups) -> bool:
    """Does it take a walk through the tree to find the openings?"""
    return write_scope not in (NOWHERE, ANYWHERE) and not all(
        folder and contains_all_below(folder, write_scope) for folder in _walk_roots(write_scope)
    )


def without_protected(path: str, closed: Iterable[str]) -> list[str]:
    """`path`, or all in it but what is `closed`: for those who cannot close what is open above.

    In a folder that leads to something closed no new names can be made then.
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


def _walk_folders(root: str, scope: Groups) -> Iterator[tuple[str, list[str] | None]]:
    """Folders that may matter, with their files; None for one that is inside with all it holds."""
    pending = _walk_roots(scope)
    seen = 0
    while pending and seen < MAX_FOLDERS:
        folder = pending.pop(0)
        seen += 1
        if folder and contains_all_below(folder, scope):
            # Not listed first: there may be any number of files in it.
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


def contains_all_below(folder: str, scope: Groups) -> bool:
    """Is whatever may ever be below `folder` inside?"""
    below = f"{folder}/{_ANY_NAME}"
    return all(
        any(
            contains(((glob,),), below)
            and (glob.endswith("**") or not any(c in glob for c in _WILDCARDS))
            for glob in group
        )
        for group in scope
    )


def _walk_roots(scope: Groups) -> list[str]:
    """Where to begin to look: the folders before the first wildcard of the narrowest group."""
    groups = [sorted({_literal_folder(glob) for glob in group}) for group in scope]
    starts = min(groups, key=lambda group: ("" in group, len(group)))
    return [start for start in starts if not any(_is_above(other, start) for other in starts)]


def _literal_folder(glob: str) -> str:
    parts: list[str] = []
    for part in glob.split("/"):
        if any(c in part for c in _WILDCARDS):
            return "/".join(parts)
        parts.append(part)
    # A name without wildcards is a folder, or a file in one: look at it from above.
    return "/".join(parts[:-1])


def _is_above(other: str, path: str) -> bool:
    return other != path and (other == "" or path.startswith(f"{other}/"))
