"""Copies of a tree for children that write, in folders of their own outside of the project.

<cache>/worktrees/<run>-<agent>/
    lock       held by the process that uses the copy, for as long as it lives
    project    whose copy it is
    index      ours, which the child cannot reach
    borrowed/  links to the objects that it is made of, where a copy seen elsewhere still finds them
    copy/      the copy, by its own name, with a git dir of its own that we never read
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from retinue.errors import WorkspaceError
from retinue.workspace.git import Repository, git_output, run_git
from retinue.workspace.private_git import PrivateGit, make_git_dir
from retinue.workspace.removal import remove_folder

LOCK = "lock"
PROJECT = "project"
# What a project needs to run, and its repository has not. The copy is lent the original's.
DEPENDENCY_FOLDERS = ("node_modules", ".venv", "venv")
_DEPENDENCY_DEPTH = 2


class CopyFolder:
    """A checked-out commit. Its folder is locked until `remove`, or until the process ends."""

    def __init__(self, private_git: PrivateGit, folder: str, base: str) -> None:
        self.base = base
        self.folder = folder
        self.top = os.path.join(folder, "copy", os.path.basename(private_git.top) or "project")
        self.private_git = private_git
        # Who looks for stale copies may have it for a moment.
        self._lock = _lock(folder, os.O_CREAT, fcntl.LOCK_EX)

    @property
    def repository(self) -> Repository:
        return self.private_git.repository(self.top, os.path.join(self.folder, "index"))

    @property
    def object_links(self) -> tuple[str, ...]:
        """The folders with what it is made of, by names that no other tree has."""
        parent = os.path.join(self.folder, "borrowed")
        return tuple(
            os.path.join(parent, str(n)) for n in range(len(self.private_git.object_folders))
        )

    def share_dependencies(self, folder: str, original: str) -> tuple[str, ...]:
        """What `folder` of the copy can be lent of the original, where it has a place for it."""
        found = []
        for path in _folders(folder, _DEPENDENCY_DEPTH):
            for name in DEPENDENCY_FOLDERS:
                inside = os.path.normpath(os.path.join(path, name))
                if os.path.isdir(os.path.join(original, inside)):
                    place = os.path.join(folder, inside)
                    if not os.path.lexists(place):
                        # Empty, so nothing to git.
                        os.mkdir(place)
                        found.append(inside)
        return tuple(found)

    def remove(self) -> None:
        remove_folder(self.folder)
        os.close(self._lock)

    def release(self) -> None:
        """Leave it to whoever reopens it."""
        os.close(self._lock)

    def leave_to_user(self) -> str:
        """Leave it to the user, by a name under which nobody discards it; where the files are."""
        with suppress(OSError):
            os.rename(self.folder, f"{self.folder}-left")
            self.top = self.top.replace(self.folder, f"{self.folder}-left", 1)
        os.close(self._lock)
        return self.top


def make_copy(private_git: PrivateGit, folder: str, base: str) -> CopyFolder:
    """Check the commit `base` out into the new `folder`.

    What a process that was killed has left there, before anybody knew of it, is removed.
    """
    discard_copy(folder)
    try:
        os.makedirs(folder, mode=0o700)
    except OSError as error:
        raise WorkspaceError(f"{folder} cannot be made ({error.strerror}).") from error
    copy = CopyFolder(private_git, folder, base)
    try:
        with open(os.path.join(folder, PROJECT), "wb") as file:
            file.write(os.fsencode(private_git.top))
        os.makedirs(copy.top)
        where = copy.repository
        git_output(where, ["read-tree", base])
        if private_git.user_repository.is_sparse:
            _skip_absent_files(private_git, where)
        git_output(where, ["checkout-index", "--all", "--quiet", "--index"])
        _make_git_dir(private_git, copy)
    except OSError as error:
        copy.remove()
        raise WorkspaceError(f"{folder} cannot be filled ({error.strerror}).") from error
    except BaseException:
        copy.remove()
        raise
    return copy


def reopen_copy(private_git: PrivateGit, folder: str, base: str) -> CopyFolder:
    """The copy in `folder`, which another process has made of `base`."""
    try:
        copy = CopyFolder(private_git, folder, base)
    except OSError as error:
        raise WorkspaceError(
            f"The copy of its files is gone ({folder}: {error.strerror})."
        ) from error
    if not os.path.isdir(copy.top):
        copy.release()
        raise WorkspaceError(f"The copy of its files is gone ({folder}).")
    return copy


def discard_copy(folder: str) -> None:
    """Remove a copy that nobody uses, if it is there."""
    if not os.path.isdir(folder):
        return
    try:
        lock = _lock(folder, os.O_CREAT, fcntl.LOCK_EX)
    except OSError as error:
        raise WorkspaceError(f"{folder} cannot be removed ({error.strerror}).") from error
    remove_folder(folder)
    os.close(lock)


def _skip_absent_files(private_git: PrivateGit, where: Repository) -> None:
    """Leave files out that the user has left out, of a repository too large to be checked out."""
    assert private_git.user_repository.index_file is not None, "only a repository is sparse"
    users = private_git.repository(private_git.top, private_git.user_repository.index_file)
    listed = git_output(users, ["ls-files", "-z", "-t", "--cached"])
    absent = [line[2:] + b"\0" for line in listed.split(b"\0") if line.startswith(b"S ")]
    # A path that a child has removed since is not in this index.
    update = ["update-index", "-z", "--skip-worktree", "--stdin"]
    run_git(where, update, stdin=b"".join(absent))


def _make_git_dir(private_git: PrivateGit, copy: CopyFolder) -> None:
    """A repository for the child's own `git status` and `git diff`, on the commit it began with."""
    git_dir = os.path.join(copy.top, ".git")
    make_git_dir(git_dir, private_git.user_repository.object_format)
    os.mkdir(os.path.join(git_dir, "objects", "info"))
    with open(os.path.join(git_dir, "objects", "info", "alternates"), "wb") as file:
        file.writelines(os.fsencode(path) + b"\n" for path in copy.object_links)
    os.mkdir(os.path.join(copy.folder, "borrowed"))
    for path, objects in zip(copy.object_links, private_git.object_folders, strict=True):
        os.symlink(objects, path)
    with open(os.path.join(git_dir, "refs", "heads", "retinue"), "w") as file:
        file.write(f"{copy.base}\n")
    shutil.copy2(os.path.join(private_git.path, "info", "exclude"), os.path.join(git_dir, "info"))
    shutil.copy2(os.path.join(copy.folder, "index"), git_dir)


def _folders(folder: str, depth: int) -> Iterator[str]:
    """The folder itself, and those below it, as seen from it; none behind a link."""
    yield "."
    if depth:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        for name in names:
            if name != ".git":
                below = _folders(os.path.join(folder, name), depth - 1)
                yield from (os.path.join(name, path) for path in below)


class StaleCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy that nobody uses, left behind by a process that was killed."""

    folder: str
    project: str
    since: float


def stale_copies(parent: str) -> Iterator[StaleCopy]:
    """The copies below `parent` whose owner is gone, oldest first."""
    found = []
    for entry in os.scandir(parent) if os.path.isdir(parent) else ():
        try:
            os.close(_lock(entry.path, 0, fcntl.LOCK_EX | fcntl.LOCK_NB))
            with open(os.path.join(entry.path, PROJECT), "rb") as file:
                project = os.fsdecode(file.read())
            since = entry.stat().st_mtime
        except OSError:
            continue  # In use, or being made or removed.
        found.append(StaleCopy(folder=entry.path, project=project, since=since))
    yield from sorted(found, key=lambda one: one.since)


def _lock(folder: str, flags: int, how: int) -> int:
    """Hold the lock of a copy."""
    fd = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(fd, how)
    except OSError:
        os.close(fd)
        raise
    return fd
