"""The private git dir in `.retinue`, where snapshots, merges and recorded changes are stored.

The user's repository is only read; its objects, refs and index are never written. The private git
dir reads the user's objects in place (git's alternates). Objects that must last are copied
(`recorded_changes`), since the user may prune their repository at any time.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from retinue.errors import WorkspaceError
from retinue.processes.child import is_stopped
from retinue.processes.removal import remove_folder
from retinue.workspace.git import Repository, git_output
from retinue.workspace.user_repository import UserRepository

# Snapshots leave out our state (but not agent files, which people write) and temporary files.
_EXCLUDED_STATE = b"**/.retinue/*\n!**/.retinue/agents/\n.retinue-*.tmp\n"
_SEAL_FILE = "seal"
STAGING_PREFIX = "apply-"
"""Prefix of the folders in `tmp` that hold a change of the user's tree while it is applied."""

STOPPED_PATIENCE_S, LOCK_PATIENCE_S = 5.0, 600.0
"""How long one holder is waited for: if its process is stopped (Ctrl-Z), and if it is not."""
_LOCK_POLL_S = 0.01

Seal = Callable[[str], str]
"""Signs a name with the key of this user on this machine; "" if the user has no key."""


def move_foreign_aside(path: str, seal: Seal) -> str:
    """Rename a git dir that this user did not make; returns its new path, or "" if it is fine.

    A foreign git dir came with the project, and its settings could make git run any program.
    """
    if not is_foreign(path, seal):
        return ""
    away = f"{path}-{secrets.token_hex(4)}.foreign"
    try:
        os.rename(path, away)
    except FileNotFoundError:
        return ""  # Another process has moved it.
    except OSError as error:
        raise WorkspaceError(
            f"{path} was not made by you, and cannot be moved away ({error.strerror})."
        ) from error
    if not is_foreign(away, seal):
        # Another process moved the foreign one a moment ago; this is its replacement.
        with suppress(OSError):
            os.rename(away, path)
        return ""
    return away


def is_foreign(path: str, seal: Seal) -> bool:
    """Whether there is a git dir at `path` that this user did not make."""
    return os.path.lexists(path) and (os.path.islink(path) or not _is_ours(path, seal))


def _is_ours(path: str, seal: Seal) -> bool:
    try:
        fd = os.open(os.path.join(path, _SEAL_FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            name, _, found = file.read(1024).decode("ascii").partition(" ")
    except (OSError, ValueError):
        return False
    real = _seal_of(name, seal)
    if not real:
        return _looks_like_ours(path)
    # A copy of the whole `.retinue` contains the seal too, so the seal alone does not prove that
    # the git settings are ours.
    return secrets.compare_digest(found, real) and _has_our_settings(path)


def _seal_of(name: str, seal: Seal) -> str:
    # Prefixed, so that it differs from the seals of runs, which others may have seen.
    return seal(f"files {name}")


def _has_our_settings(path: str) -> bool:
    """Whether a git dir has the settings that we write, and no others."""
    foreign = ("commondir", "config.worktree", "info/attributes", "objects/info/alternates")
    try:
        with open(os.path.join(path, "config"), "rb") as file:
            ours = file.read(4096) in map(_config_of, ("sha1", "sha256"))
    except OSError:
        return False
    return ours and not any(os.path.lexists(os.path.join(path, name)) for name in foreign)


def _looks_like_ours(path: str) -> bool:
    """Whether a git dir has only what we put there: all that can be checked without a key."""
    with suppress(OSError):
        found = [os.path.join(folder, n) for folder, a, b in os.walk(path) for n in (*a, *b)]
        return (
            _has_our_settings(path)
            and not any(map(os.path.islink, found))
            and not any(n.startswith(STAGING_PREFIX) for n in os.listdir(os.path.join(path, "tmp")))
        )
    return False


class PrivateGit:
    """A private git dir, made on first use. Safe to use from many threads and processes at once."""

    def __init__(
        self, path: str, user_repository: UserRepository, *, seal: Seal, folder: str = ""
    ) -> None:
        """Git runs in `folder`, by default the top of the user's tree."""
        self.path = path
        self._folder = folder or user_repository.top
        self.user_repository = user_repository
        self.seal = seal
        self._config = os.path.join(path, "config")
        self._trees: dict[str, str] = {}
        if not os.path.exists(self._config):
            self._make()
        exclude = user_repository.exclude_patterns + _EXCLUDED_STATE
        with _as_workspace_error(path):
            os.makedirs(os.path.join(path, "tmp"), exist_ok=True)
            write_atomically(os.path.join(path, "info", "exclude"), exclude)

    def _make(self) -> None:
        folder = os.path.dirname(self.path)
        with _as_workspace_error(folder):
            made = tempfile.mkdtemp(prefix="git-", dir=folder)
        make_git_dir(made, self.user_repository.object_format)
        name = secrets.token_hex(8)
        write_atomically(
            os.path.join(made, _SEAL_FILE), f"{name} {_seal_of(name, self.seal)}".encode()
        )
        try:
            os.rename(made, self.path)
        except OSError:
            # Another process was faster; its git dir is as good.
            shutil.rmtree(made)

    @property
    def top(self) -> str:
        """The top of the user's tree."""
        return self.user_repository.top

    @property
    def name(self) -> str:
        """Names this git dir, on any machine."""
        with open(os.path.join(self.path, _SEAL_FILE), "rb") as file:
            return file.read(1024).partition(b" ")[0].decode("ascii", "replace")

    @property
    def object_folders(self) -> tuple[str, ...]:
        """The folders with the objects of our commits: our own, and the user's."""
        borrowed = self.user_repository.objects_folder
        own = os.path.join(self.path, "objects")
        return (own,) if borrowed is None else (own, borrowed)

    def repository(
        self,
        index_file: str | None = None,
        *,
        top: str | None = None,
        borrow: bool = True,
        shallow: bool = False,
    ) -> Repository:
        """This git dir with an index (default: none) and a work tree (default: the user's).

        Without `borrow`, it has only our own objects. With `shallow`, git knows which parents of
        the user's commits were not cloned.
        """
        return Repository(
            git_dir=self.path,
            work_tree=top or self._folder,
            index_file=index_file or os.path.join(self.path, "tmp", "no-index"),
            alternates=self.object_folders[1:] if borrow else (),
            settings=self.user_repository.settings,
            shallow_file=self.user_repository.shallow_file if shallow else "",
        )

    @property
    def users_repository(self) -> Repository | None:
        """The user's own, which says what names of commits mean; None without one."""
        user = self.user_repository
        if user.index_file is None:
            return None
        git_dir = os.path.dirname(user.index_file)
        return Repository(git_dir=git_dir, work_tree=self._folder, index_file=user.index_file)

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", borrow: bool = True) -> bytes:
        """Run a git command that needs neither a work tree nor an index; returns its output."""
        return git_output(self.repository(borrow=borrow), arguments, stdin=stdin)

    def commit(self, tree: str, *, parents: Sequence[str] = (), message: str = "") -> str:
        """Commit `tree`. The same arguments always give the same commit."""
        before = [part for parent in parents for part in ("-p", parent)]
        made = self.run(["commit-tree", *before, tree], stdin=message.encode("utf-8", "replace"))
        commit = made.decode().strip()
        self._trees[commit] = tree
        return commit

    def tree_of(self, commit: str) -> str:
        """The tree of `commit`, which never changes, so git is asked once."""
        if commit not in self._trees:
            found = self.run(["rev-parse", "--verify", f"{commit}^{{tree}}"])
            self._trees[commit] = found.decode().strip()
        return self._trees[commit]

    @contextmanager
    def temporary_folder(self) -> Iterator[str]:
        """A folder that is removed at the end."""
        folder = tempfile.mkdtemp(dir=os.path.join(self.path, "tmp"))
        try:
            yield folder
        finally:
            remove_folder(folder)

    @contextmanager
    def lock(self, name: str = "lock") -> Iterator[None]:
        """Hold the lock that all processes take before they change this project's files.

        Raises WorkspaceError if its holder is stopped or keeps the lock for too long, and if the
        file cannot be written.
        """
        path = os.path.join(self.path, name)
        with _as_workspace_error(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _wait_for_lock(fd, path)
            os.pwrite(fd, f"{os.getpid():<10} {secrets.token_hex(8)}\n".encode(), 0)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def changing_refs(self, names: Iterable[str]) -> Iterator[None]:
        """Hold the lock for changes of refs, without the locks that killed gits have left."""
        with self.lock("refs-lock"):
            for name in (*names, "packed-refs"):
                # The names of a mirror come from another machine, and must not lead out of the
                # repository. Git refuses such names too.
                if ".." not in name and not name.startswith("/"):
                    with suppress(FileNotFoundError, NotADirectoryError):
                        os.unlink(os.path.join(self.path, f"{name}.lock"))
            yield


@contextmanager
def _as_workspace_error(path: str) -> Iterator[None]:
    """Make an OSError of the body a WorkspaceError that names `path`."""
    try:
        yield
    except OSError as error:
        raise WorkspaceError(f"{path} cannot be written ({error.strerror}).") from error


def _wait_for_lock(fd: int, path: str) -> None:
    """Lock a file. The holder's process id and a random number are its content."""
    holder, since = b"", time.monotonic()
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        found, now = os.pread(fd, 64, 0), time.monotonic()
        if found != holder:
            holder, since = found, now
        pid, held_s = found[:10].strip().decode("ascii", "replace"), now - since
        stopped = held_s >= STOPPED_PATIENCE_S and is_stopped(pid)
        if stopped or held_s >= LOCK_PATIENCE_S:
            what = "is stopped and holds" if stopped else "has held"
            how_long = "" if stopped else f" for {held_s:,.0f} s"
            raise WorkspaceError(
                f"Process {pid} {what} the lock on the files of this project ({path}){how_long}."
                f" Continue the process (`fg`, or `kill -CONT {pid}`) or end it, then try again."
            )
        time.sleep(_LOCK_POLL_S)


def make_git_dir(path: str, object_format: str) -> None:
    """Make an empty repository in the folder `path`, without hooks and user settings."""
    for folder in ("objects", "refs/heads", "info"):
        os.makedirs(os.path.join(path, folder))
    write_atomically(os.path.join(path, "HEAD"), b"ref: refs/heads/retinue\n")
    write_atomically(os.path.join(path, "config"), _config_of(object_format))


def _config_of(object_format: str) -> bytes:
    sha1 = object_format == "sha1"
    lines = ["[core]", f"repositoryformatversion = {0 if sha1 else 1}", "bare = false"]
    lines += [] if sha1 else ["[extensions]", f"objectformat = {object_format}"]
    return "\n".join([*lines, ""]).encode()


def write_atomically(path: str, data: bytes) -> None:
    """Write a file that other processes may be reading."""
    with suppress(OSError), open(path, "rb") as file:
        if file.read() == data:
            return
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
