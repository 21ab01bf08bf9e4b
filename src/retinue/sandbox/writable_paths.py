"""Translates a write scope into existing folders and files that the kernel can make writable.

A scope consists of globs, but a mount or a Landlock rule names an existing folder or file. A folder
is writable if the scope contains everything below it, and a file if the scope contains it. A new
file that only matches by its name (`test_*.py` beside the code) cannot be made by a command, only
by the file tools. Paths inside writable ones that must stay closed are found here too:
repositories, and hard links to retinue's own files and to those that the user's rules deny.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from retinue.domain.grant import Access
from retinue.domain.paths import PROTECTED_NAMES, is_below
from retinue.domain.protected_paths import denied_folder, rule_matches
from retinue.domain.scope import ANYWHERE, NOWHERE, Scope, contains

MAX_FOLDERS = 20_000
MAX_FILES = 200
_WILDCARDS = "*?"
_ANY_NAME = "\x01"
# Tools keep checkouts of their own in these folders, and have to write them.
_TOOL_FOLDERS = frozenset({"_deps", "node_modules"})
_MAX_HARD_LINKS = 64
_closed_paths: dict[tuple[str, tuple[str, ...], tuple[str, ...]], ClosedPaths] = {}


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


def closed_paths(access: Access) -> list[str]:
    """The absolute paths that are read-only by contract, and those that the user's rules deny."""
    found = access.closed_paths
    names: list[str] = []
    prefix = access.denied_prefix
    for rule in access.denied:
        folder = denied_folder(rule)
        if folder is None:
            names.append(rule)
        elif folder.startswith(prefix):
            found.append(os.path.join(access.root, folder.removeprefix(prefix)))
        elif prefix.startswith(f"{folder}/"):
            found.append(access.root)
    return [*found, *_matching_names(access.root, prefix, names)] if names else found


def _matching_names(root: str, prefix: str, rules: list[str]) -> Iterator[str]:
    """Existing files that the rules match, and folders in which everything matches."""
    pending, seen = deque([""]), 0
    while pending and seen < MAX_FOLDERS:
        seen += 1
        folder = pending.popleft()
        for entry in _listed(os.path.join(root, folder)):
            path = f"{folder}{entry.name}"
            is_folder = entry.is_dir(follow_symlinks=False)
            # A rule that ends with `*` and matches `folder/` matches everything in the folder.
            whole = [rule for rule in rules if rule.endswith("*") or not is_folder]
            name = f"{prefix}{path}/" if is_folder else f"{prefix}{path}"
            if any(rule_matches(rule, name) for rule in whole):
                yield entry.path
            elif is_folder and entry.name.casefold() not in PROTECTED_NAMES:
                pending.append(f"{path}/")


def missing_paths(access: Access, closed: Iterable[str]) -> tuple[list[str], list[str]]:
    """Folders and files that the write scope names and that do not exist, relative to the root.

    A name with a dot or a capital letter is a file (`notes.md`, `Makefile`), any other a folder.
    """
    folders: list[str] = []
    files: list[str] = []
    closed = list(closed)
    for glob in {glob for group in access.write_scope for glob in group}:
        path = glob.removesuffix("/**")
        at = os.path.join(access.root, path)
        if (
            any(c in path for c in _WILDCARDS)
            or os.path.lexists(at)
            or not PROTECTED_NAMES.isdisjoint(path.casefold().split("/"))
            or any(is_below(at, one) for one in closed)
        ):
            continue
        name = os.path.basename(path)
        if path == glob and ("." in name or name[:1].isupper()):
            files += [path] if contains(access.write_scope, path) else []
        elif contains_all_below(path, access.write_scope):
            folders.append(path)
    return folders, files


def without_protected(path: str, closed: Iterable[str]) -> list[str]:
    """`path`, or everything in it except `closed`; nothing if `path` is closed itself.

    For paths that a sandbox cannot protect below a writable one. Commands then cannot make new
    names in a folder that leads to a closed path, which need not exist.
    """
    closed = list(closed)
    if any(is_below(path, one) for one in closed):
        return []
    within = [one for one in closed if is_below(one, path)]
    if not within:
        return [path]
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(path) as listing:
        for entry in sorted(listing, key=lambda entry: entry.name):
            if not entry.is_symlink():
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
    """Folders that may be in the scope, with their files.

    None instead of files: the scope contains everything in the folder.
    """
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


class ClosedPaths(NamedTuple):
    """Paths below writable ones that commands must not write.

    `git_dirs`: the user's git runs hooks and settings that it finds there. `hard_links`: other
    names of retinue's own files and of denied ones, or folders with such names.
    """

    git_dirs: tuple[str, ...] = ()
    hard_links: tuple[str, ...] = ()


async def find_closed_paths(tops: Iterable[str], access: Access) -> ClosedPaths:
    """The closed paths among and below `tops`, as of the first call for each top.

    Later repositories were made by commands, which may continue to write them. Commands cannot make
    hard links to files that they cannot write. In a tree of more than `MAX_FOLDERS` folders, only
    paths near its top are found. Hard links to files that a rule about names denies (`*.pem`) are
    not found: with such rules, commands work in a copy, which has no hard links.
    """
    git_dirs: list[str] = []
    hard_links: list[str] = []
    denied = _denied_folders(access)
    keys = [(top, access.packages, denied) for top in tops]
    if new := [key for key in keys if key not in _closed_paths]:
        # In threads: walking a large tree takes long.
        linked = await asyncio.to_thread(_files_with_other_names, (*access.packages, *denied))
        for key in new:
            _closed_paths[key] = await asyncio.to_thread(_find_closed, key[0], linked, denied)
    for key in keys:
        git_dirs += _closed_paths[key].git_dirs
        hard_links += _closed_paths[key].hard_links
    return ClosedPaths(tuple(git_dirs), tuple(hard_links))


def _denied_folders(access: Access) -> tuple[str, ...]:
    """The absolute paths that rules deny with everything below them, also outside the root."""
    project = os.path.normpath(os.path.join(access.root, "../" * access.denied_prefix.count("/")))
    folders = map(denied_folder, access.denied)
    return tuple(os.path.join(project, folder) for folder in folders if folder is not None)


def _find_closed(top: str, linked: set[tuple[int, int]], denied: tuple[str, ...]) -> ClosedPaths:
    """The closed paths in `top`, except in `denied`, which is closed anyway."""
    inodes = {inode for _, inode in linked}
    git_dirs: list[str] = []
    hard_links = [top] if _linked_file(top) in linked else []
    pending, seen = deque([top]), 0
    while pending and seen < MAX_FOLDERS:
        seen += 1
        for entry in _listed(pending.popleft()):
            if entry.path in denied:
                continue
            if entry.name.casefold() == ".git":
                git_dirs.append(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                if entry.name not in _TOOL_FOLDERS:
                    pending.append(entry.path)
            elif entry.inode() in inodes and _linked_file(entry.path) in linked:
                hard_links.append(entry.path)
    return ClosedPaths(tuple(git_dirs), _as_few(hard_links))


def _files_with_other_names(paths: Iterable[str]) -> set[tuple[int, int]]:
    """Device and inode of the files among and below `paths` that have more than one name.

    Installers such as uv link the files of one package into all environments.
    """
    pending = list(paths)
    found = {_linked_file(path) for path in pending}
    while pending:
        for entry in _listed(pending.pop()):
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            else:
                found.add(_linked_file(entry.path))
    return {file for file in found if file is not None}


def _linked_file(path: str) -> tuple[int, int] | None:
    """Device and inode of a file with more than one name; None for anything else."""
    with contextlib.suppress(OSError):
        about = os.lstat(path)
        if about.st_nlink > 1 and not stat.S_ISDIR(about.st_mode):
            return about.st_dev, about.st_ino
    return None


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listing:
            return list(listing)
    except OSError:
        return []


def _as_few(paths: list[str]) -> tuple[str, ...]:
    """`paths`, or the folders that contain them if there are too many.

    Each path costs a mount for every command.
    """
    while len(paths) > _MAX_HARD_LINKS:
        folders = sorted(set(map(os.path.dirname, paths)))
        paths = [f for i, f in enumerate(folders) if not any(is_below(f, o) for o in folders[:i])]
    return tuple(paths)
