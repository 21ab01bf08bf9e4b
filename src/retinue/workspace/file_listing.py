"""Lists the files that can be found and searched: those that git knows, or all in a plain walk.

Both ways list regular files, sorted, and never follow a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import msgspec

from retinue.errors import WorkspaceError
from retinue.workspace.file_names import protected_name
from retinue.workspace.git import Repository, run_git, split_paths
from retinue.workspace.safe_open import DIRECTORY, Opener

MAX_ENTRIES = 200_000
_GIT_TIMEOUT_S = 20.0
# Projects without a repository have no .gitignore; these folders are skipped there.
_SKIPPED_FOLDERS = frozenset({"node_modules", ".venv", "__pycache__"})


class FileListing(msgspec.Struct, frozen=True):
    """Sorted paths, relative to the root; `complete` is false if there were too many."""

    paths: list[str]
    complete: bool


def list_files(
    repository: Repository | None, root_fd: int, opening: Opener, under: str
) -> FileListing:
    """The files below the folder `under`, as `repository` lists them, if there is one."""
    known = None if repository is None else _listed_by_git(repository, under)
    # Git lists nothing in an ignored folder; a caller that names such a folder wants its files.
    if known is None or (not known and under != "."):
        return _walk(root_fd, opening, under)
    paths: set[str] = set()
    complete = len(known) <= MAX_ENTRIES
    for path in known[:MAX_ENTRIES]:
        if protected_name(path):
            continue
        if path.endswith("/"):
            # Git lists a nested repository only by its name.
            inner = _walk(root_fd, opening, path[:-1])
            paths.update(inner.paths)
            complete = complete and inner.complete
        else:
            paths.add(path)
    return FileListing(sorted(paths), complete)


def size_of(root_fd: int, path: str) -> int | None:
    """The size of a regular file; None for anything else, such as a tracked file that is gone."""
    try:
        found = os.stat(path, dir_fd=root_fd, follow_symlinks=False)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _listed_by_git(repository: Repository, under: str) -> list[str] | None:
    try:
        listed = run_git(
            repository,
            ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", under],
            timeout_s=_GIT_TIMEOUT_S,
        )
    except WorkspaceError:
        return None
    if not listed.ok:
        return None
    return split_paths(listed.stdout)


def _walk(root_fd: int, opening: Opener, under: str) -> FileListing:
    paths: list[str] = []
    folders = [under]
    seen = 0
    while folders:
        folder = folders.pop()
        for entry in _entries(root_fd, opening, folder):
            seen += 1
            if seen > MAX_ENTRIES:
                return FileListing(sorted(paths), False)
            if protected_name(entry.name):
                continue
            path = entry.name if folder == "." else f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _SKIPPED_FOLDERS:
                    folders.append(path)
            elif entry.is_file(follow_symlinks=False):
                paths.append(path)
    return FileListing(sorted(paths), True)


def _entries(root_fd: int, opening: Opener, folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        fd = opening(root_fd, folder, DIRECTORY)
    except OSError:
        # Gone, swapped for a link, or not readable.
        return
    try:
        with os.scandir(fd) as entries:
            yield from entries
    finally:
        os.close(fd)
