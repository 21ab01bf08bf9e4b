"""Working copies for agents that write, each in a folder of its own outside the project.

<cache>/worktrees/<run>-<agent>/
    lock       held by the process that uses the copy, while that process lives; has its id
    write-lock held while the copy is changed or committed
    index      our index of the copy, out of the agent's reach
    borrowed/  links to the object folders; they resolve also where the copy is mounted elsewhere
    copy/      the copy, in a folder named like the project, with a git dir that we never read
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from retinue.errors import WorkspaceError
from retinue.processes.removal import remove_folder
from retinue.workspace.git import Repository, git_output, run_git
from retinue.workspace.private_git import PrivateGit, make_git_dir

LOCK = "lock"
WRITE_LOCK = "write-lock"
# Another process may be removing a large copy.
LOCK_WAIT_S = 30.0
# A search for stale copies holds the lock for a moment.
CHECK_WAIT_S = 2.0
_LOCK_RETRY_S = 0.02
# Installed dependencies, which no repository holds. A copy sees those of the original.
DEPENDENCY_FOLDERS = ("node_modules", ".venv", "venv")
_DEPENDENCY_DEPTH = 2


class CopyFolder:
    """A commit checked out into a folder, which is locked until `remove` or the process ends.

    Without `lock`, another process holds the lock, and this one works for it.
    """

    def __init__(
        self, private_git: PrivateGit, folder: str, base: str, *, lock: bool = True
    ) -> None:
        self.base = base
        self.folder = folder
        self.top = os.path.join(folder, "copy", os.path.basename(private_git.top) or "project")
        self.private_git = private_git
        if not lock:
            return
        self._lock = _lock(folder, os.O_CREAT)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d" % os.getpid(), 0)

    @property
    def repository(self) -> Repository:
        return self.private_git.repository(os.path.join(self.folder, "index"), top=self.top)

    @property
    def object_links(self) -> tuple[str, ...]:
        """Links to the object folders, at paths that exist only for this copy."""
        parent = os.path.join(self.folder, "borrowed")
        return tuple(
            os.path.join(parent, str(n)) for n in range(len(self.private_git.object_folders))
        )

    def share_dependencies(self, folder: str, original: str) -> tuple[str, ...]:
        """The dependency folders of `original` that `folder` of the copy lacks.

        An empty folder is made for each of them, as a mount point. Another process that has opened
        the copy may have made it.
        """
        found = []
        for path in _folders(folder, _DEPENDENCY_DEPTH):
            for name in DEPENDENCY_FOLDERS:
                inside = os.path.normpath(os.path.join(path, name))
                if os.path.isdir(os.path.join(original, inside)):
                    place = os.path.join(folder, inside)
                    if not os.path.lexists(place):
                        # Git ignores empty folders.
                        os.mkdir(place)
                    elif os.path.islink(place) or not os.path.isdir(place) or os.listdir(place):
                        continue
                    found.append(inside)
        return tuple(found)

    def remove(self) -> None:
        remove_folder(self.folder)
        os.close(self._lock)

    def release(self) -> None:
        os.close(self._lock)

    def leave_to_user(self) -> str:
        """Rename the copy, so that it is never discarded; returns the path of its files."""
        with suppress(OSError):
            os.rename(self.folder, f"{self.folder}-left")
            self.top = self.top.replace(self.folder, f"{self.folder}-left", 1)
        os.close(self._lock)
        return self.top


def make_copy(private_git: PrivateGit, folder: str, base: str, content: str = "") -> CopyFolder:
    """Check the commit `content`, by default `base`, out into the new `folder`.

    If a killed process left a folder of that name, it is removed first.
    """
    discard_copy(folder)
    try:
        os.makedirs(folder, mode=0o700)
    except OSError as error:
        raise WorkspaceError(f"{folder} cannot be made ({error.strerror}).") from error
    copy = CopyFolder(private_git, folder, base)
    try:
        os.makedirs(copy.top)
        repository = copy.repository
        git_output(repository, ["read-tree", content or base])
        if private_git.user_repository.is_sparse:
            _skip_absent_files(private_git, repository)
        git_output(repository, ["checkout-index", "--all", "--quiet", "--index"])
        _make_git_dir(private_git, copy)
    except BaseException as error:
        copy.remove()
        if isinstance(error, OSError):
            raise WorkspaceError(f"{folder} cannot be filled ({error.strerror}).") from error
        raise
    return copy


def reopen_copy(private_git: PrivateGit, folder: str, base: str) -> CopyFolder:
    """Open the copy of `base` that another process made in `folder`."""
    try:
        copy = CopyFolder(private_git, folder, base)
    except OSError as error:
        raise WorkspaceError(f"The working copy {folder} is gone ({error.strerror}).") from error
    if not os.path.isdir(copy.top):
        copy.release()
        raise WorkspaceError(f"The working copy {folder} is gone.")
    return copy


@contextmanager
def lock_writes(folder: str) -> Iterator[None]:
    """Hold the lock that threads and processes take before they change or commit a copy."""
    fd = os.open(os.path.join(folder, WRITE_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def discard_copy(folder: str) -> None:
    """Remove a copy, if it exists, when no process uses it any more."""
    if not os.path.isdir(folder):
        return
    try:
        lock = _lock(folder, os.O_CREAT)
    except OSError as error:
        raise WorkspaceError(f"{folder} cannot be removed ({error.strerror}).") from error
    remove_folder(folder)
    os.close(lock)


def check_unused(folder: str) -> None:
    """Raise WorkspaceError if another process uses the copy in `folder`, which need not exist."""
    with suppress(OSError):
        os.close(_lock(folder, 0, CHECK_WAIT_S))


def _skip_absent_files(private_git: PrivateGit, repository: Repository) -> None:
    """Leave out the files that the user's sparse checkout leaves out."""
    assert private_git.user_repository.index_file is not None, "only a repository is sparse"
    users = private_git.repository(private_git.user_repository.index_file)
    listed = git_output(users, ["ls-files", "-z", "-t", "--cached"])
    absent = [line[2:] + b"\0" for line in listed.split(b"\0") if line.startswith(b"S ")]
    # Not `git_output`: it fails for a path that an agent has removed since.
    update = ["update-index", "-z", "--skip-worktree", "--stdin"]
    run_git(repository, update, stdin=b"".join(absent))


def _make_git_dir(private_git: PrivateGit, copy: CopyFolder) -> None:
    """Make a repository at `base`, for the agent's own `git status` and `git diff`."""
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
    """The folder itself and those below it, as relative paths. Links are not followed."""
    yield "."
    if depth:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        for name in names:
            if name != ".git":
                below = _folders(os.path.join(folder, name), depth - 1)
                yield from (os.path.join(name, path) for path in below)


def stale_copies(parent: str) -> list[tuple[float, str]]:
    """Time and folder of the copies that killed processes left below `parent`, oldest first."""
    found = []
    for entry in os.scandir(parent) if os.path.isdir(parent) else ():
        # Fails for a copy that is in use, being made, or being removed.
        with suppress(OSError):
            os.close(_try_lock(entry.path, 0))
            found.append((entry.stat().st_mtime, entry.path))
    return sorted(found)


def _lock(folder: str, flags: int, wait_s: float = LOCK_WAIT_S) -> int:
    """Lock a copy; returns the descriptor that holds the lock.

    Raises WorkspaceError if another process, which may be stopped, holds the lock for `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    while True:
        with suppress(BlockingIOError):
            return _try_lock(folder, flags)
        if time.monotonic() > deadline:
            raise WorkspaceError(_in_use(folder))
        time.sleep(_LOCK_RETRY_S)


def _try_lock(folder: str, flags: int) -> int:
    """Lock a copy; BlockingIOError if it is locked."""
    fd = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _in_use(folder: str) -> str:
    with suppress(OSError, ValueError), open(os.path.join(folder, LOCK), "rb") as file:
        pid = int(file.read(20))
        return (
            f"Process {pid} works in the working copy {folder}; if the process is stopped"
            f" (Ctrl-Z), continue it with `fg` or `kill -CONT {pid}`, or end it with"
            f" `kill -KILL {pid}`."
        )
    return f"Another process works in the working copy {folder}; wait for the process, or end it."
