"""The commits of a project on a machine that does not see its disk, and working copies of them.

<cache>/projects/<id>/git        the commits, from bundles; there is no work tree
<cache>/projects/<id>/received   which commits bundles brought, the last first
<cache>/projects/<id>/lock       held while a bundle is asked for and stored
<cache>/projects/<id>/in-use     held, shared, by all processes that use the mirror
<cache>/worktrees/<name>         working copies, as on the machine of the project
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from retinue.domain.protected_paths import ProtectedPaths
from retinue.errors import WorkspaceError
from retinue.ports.file_tree import ProjectFacts
from retinue.processes.removal import remove_folder
from retinue.threads import in_thread, threaded, threaded_shielded
from retinue.workspace.bundles import commits_here, read_bundle, users_refs
from retinue.workspace.cleanup import remove_old_copies
from retinue.workspace.copies import make_copy
from retinue.workspace.file_trees import AgentWorkingCopy
from retinue.workspace.git import git_version
from retinue.workspace.private_git import PrivateGit, write_atomically
from retinue.workspace.user_repository import MIN_GIT_VERSION, UserRepository

UNUSED_S = 14 * 86_400.0
MAX_BUNDLES = 5_000
"""After so many, a mirror is made anew when no process uses it."""
_OFFERED_COMMITS = 16
"""More would cost more to compare than they save."""


def why_no_mirrors() -> str:
    """Why this machine cannot have mirrors; "" if it can."""
    installed = git_version()
    if installed is None:
        return "git is not installed"
    if installed < MIN_GIT_VERSION:
        needed, have = (".".join(map(str, v)) for v in (MIN_GIT_VERSION, installed))
        return f"git {needed} or newer is needed, and this is {have}"
    return ""


class ProjectMirror:
    """The commits of one project, for all processes of this machine. Implements `Mirror`."""

    def __init__(
        self,
        facts: ProjectFacts,
        *,
        projects: str,
        worktrees: str,
        project: str,
        protected: ProtectedPaths,
    ) -> None:
        """Make the mirror in the folder `projects` if there is none. Blocks.

        `project` is the directory that agents see, on the machine of the project.
        """
        self._facts = facts
        self._project = project
        self._worktrees = worktrees
        self._protected = protected
        self._locking = asyncio.Lock()
        if not facts.id.isalnum():
            raise WorkspaceError(f"{facts.id!r} is no id of a project.")
        self._folder = os.path.join(projects, facts.id)
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            _remove_unused(projects, self._folder)
            remove_old_copies(worktrees)
            self._in_use = _use(self._folder)
            git = os.path.join(self._folder, "git")
            shallow = os.path.join(self._folder, "shallow")
            write_atomically(shallow, facts.shallow)  # Other hosts may read it.
            self._private_git = PrivateGit(
                git,
                UserRepository(
                    top=facts.top,
                    index_file=os.path.join(git, "index") if facts.is_repository else None,
                    shallow_file=shallow if facts.shallow else "",
                    object_format=facts.object_format,
                    settings=facts.settings,
                    exclude_patterns=facts.exclude_patterns,
                ),
                seal=lambda name: "",
                folder=git,
            )
        except OSError as error:
            raise WorkspaceError(f"{self._folder} cannot be made ({error.strerror}).") from error

    def close(self) -> None:
        """Use the mirror no more, so that it may be removed."""
        os.close(self._in_use)

    @threaded
    def has(self, commits: Sequence[str]) -> bool:
        # A damaged bundle may have brought a commit without all that it refers to.
        wanted = set(commits)
        return wanted.issubset(self._received()) and wanted.issubset(
            commits_here(self._private_git, wanted)
        )

    @threaded
    def received(self) -> list[str]:
        return commits_here(self._private_git, self._received()[:_OFFERED_COMMITS])

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        # One thread waits, whoever else wants the lock here: its holder needs threads too.
        async with self._locking:
            fd = os.open(os.path.join(self._folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            try:
                await in_thread(lambda: fcntl.flock(fd, fcntl.LOCK_EX))
                yield
            finally:
                os.close(fd)

    @threaded_shielded
    def store(self, path: str) -> None:
        self._store(path)

    @threaded_shielded
    def store_history(self, path: str) -> None:
        refs = self._store(path)
        lines = [f"update {name} {commit}\n" for name, commit in refs.items()]
        gone = set(users_refs(self._private_git)).difference(refs)
        lines += [f"delete {name}\n" for name in gone]
        update = ["update-ref", "--no-deref", "--stdin"]
        with self._private_git.changing_refs([*refs, *gone]):
            self._private_git.run(update, stdin=os.fsencode("".join(lines)))

    def _store(self, path: str) -> dict[str, str]:
        commits = read_bundle(self._private_git, path)
        before = self._received()
        added = [one for one in dict.fromkeys(commits.values()) if one not in before]
        if added:
            lines = "".join(f"{one}\n" for one in (*added, *before))
            write_atomically(os.path.join(self._folder, "received"), lines.encode("ascii"))
        return commits

    @threaded
    def history(self) -> dict[str, str]:
        return users_refs(self._private_git)

    @threaded_shielded
    def copy(
        self,
        base: str,
        *,
        name: str,
        directory: str,
        content: str,
        since: str | None,
        before_history: Callable[[], None],
    ) -> AgentWorkingCopy:
        folder = make_copy(self._private_git, os.path.join(self._worktrees, name), base, content)
        return AgentWorkingCopy(
            folder,
            self._project,
            self._worktrees,
            self._protected,
            directory,
            since=since,
            before_history=before_history,
        )

    def _received(self) -> list[str]:
        try:
            with open(os.path.join(self._folder, "received"), encoding="ascii") as file:
                return file.read().split()
        except FileNotFoundError:
            return []


def _use(folder: str) -> int:
    """Lock a mirror against its removal; remove the commits of one that has grown too large.

    Returns the descriptor that holds the lock.
    """
    fd = os.open(os.path.join(folder, "in-use"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        received = os.path.join(folder, "received")
        with suppress(FileNotFoundError), open(received, encoding="ascii") as file:
            if sum(1 for _ in file) > MAX_BUNDLES:
                remove_folder(os.path.join(folder, "git"))
                os.unlink(received)
    os.utime(fd)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def _remove_unused(projects: str, folder: str) -> None:
    """Remove the mirrors that nobody has used for long."""
    for entry in os.scandir(projects):
        with suppress(OSError):
            used = os.stat(os.path.join(entry.path, "in-use")).st_mtime
            if entry.path == folder or time.time() - used < UNUSED_S:
                continue
            fd = os.open(os.path.join(entry.path, "in-use"), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_folder(entry.path)
            finally:
                os.close(fd)
