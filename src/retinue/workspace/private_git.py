"""The private git dir of a project, where everything is merged and kept.

The user's repository is read and never written: not its objects, refs or index. What the depot
needs of it is borrowed object by object, and what must last is copied (`steps`), since the user may
prune theirs at any time.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from retinue.errors import WorkspaceError
from retinue.workspace.git import Repository, git_output
from retinue.workspace.removal import remove_folder
from retinue.workspace.user_repository import UserRepository

# Our own state is no part of a tree, but for agents that people write; nor is half of a file that
# somebody was killed over.
_EXCLUDED_STATE = b"**/.retinue/*\n!**/.retinue/agents/\n.retinue-*.tmp\n"


_SEAL_FILE = "seal"
# How folders in `tmp` are called in which a change of the user's tree is under way.
STAGING_PREFIX = "apply-"

Seal = Callable[[str], str]
"""What only this user can make of a name, on this machine; "" where they have no key."""


def move_foreign_aside(path: str, seal: Seal) -> str:
    """Put a git dir away that this user has not made; where it is now, or "" if it may stay.

    It came with the project, and its settings could have git run anything.
    """
    if not is_foreign(path, seal):
        return ""
    away = f"{path}-{secrets.token_hex(4)}.foreign"
    try:
        os.rename(path, away)
    except FileNotFoundError:
        return ""  # Another process was faster.
    except OSError as error:
        raise WorkspaceError(f"{path} is not yours, and stays ({error.strerror}).") from error
    if not is_foreign(away, seal):
        # Another process has done the same a moment ago, and this was its new one.
        with suppress(OSError):
            os.rename(away, path)
        return ""
    return away


def is_foreign(path: str, seal: Seal) -> bool:
    """Is there a git dir that this user has not made?"""
    return os.path.lexists(path) and (os.path.islink(path) or not _is_ours(path, seal))


def _is_ours(path: str, seal: Seal) -> bool:
    try:
        fd = os.open(os.path.join(path, _SEAL_FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            name, _, found = file.read(1024).decode("ascii").partition(" ")
    except (OSError, ValueError):
        return False
    real = _seal_of(name, seal)
    return secrets.compare_digest(found, real) if real else _looks_like_ours(path)


def _seal_of(name: str, seal: Seal) -> str:
    # Apart from the seals of runs, which others may have seen.
    return seal(f"files {name}")


def _looks_like_ours(path: str) -> bool:
    """Whether it is as we make them, as far as can be seen where the user has no key."""
    foreign = ("commondir", "config.worktree", "info/attributes", "objects/info/alternates")
    with suppress(OSError):
        with open(os.path.join(path, "config"), "rb") as file:
            ours = file.read(4096) in map(_config_of, ("sha1", "sha256"))
        found = [os.path.join(folder, n) for folder, a, b in os.walk(path) for n in (*a, *b)]
        return (
            ours
            and not any(os.path.lexists(os.path.join(path, name)) for name in foreign)
            and not any(map(os.path.islink, found))
            and not any(n.startswith(STAGING_PREFIX) for n in os.listdir(os.path.join(path, "tmp")))
        )
    return False


class PrivateGit:
    """Safe to use from many threads and processes at once; `locked` is for what must be alone."""

    def __init__(self, path: str, user_repository: UserRepository, *, seal: Seal) -> None:
        self.path = path
        self.user_repository = user_repository
        self._seal = seal
        self._config = os.path.join(path, "config")
        if not os.path.exists(self._config):
            self._make()
        os.makedirs(os.path.join(path, "tmp"), exist_ok=True)
        exclude = user_repository.exclude_patterns + _EXCLUDED_STATE
        _write_atomically(os.path.join(path, "info", "exclude"), exclude)

    def _make(self) -> None:
        folder = os.path.dirname(self.path)
        try:
            made = tempfile.mkdtemp(prefix="git-", dir=folder)
        except OSError as error:
            raise WorkspaceError(f"{folder} cannot be written ({error.strerror}).") from error
        make_git_dir(made, self.user_repository.object_format)
        name = secrets.token_hex(8)
        _write_atomically(
            os.path.join(made, _SEAL_FILE), f"{name} {_seal_of(name, self._seal)}".encode()
        )
        try:
            os.rename(made, self.path)
        except OSError:
            # Another process was faster, and its own is as good.
            shutil.rmtree(made)

    @property
    def top(self) -> str:
        """The top of the user's tree."""
        return self.user_repository.top

    @property
    def object_folders(self) -> tuple[str, ...]:
        """The folders that hold what commits of the depot are made of."""
        borrowed = self.user_repository.objects_folder
        own = os.path.join(self.path, "objects")
        return (own,) if borrowed is None else (own, borrowed)

    def repository(self, work_tree: str, index_file: str, *, borrow: bool = True) -> Repository:
        """The depot with that tree and that index. Without `borrow`, with its own objects only."""
        return Repository(
            git_dir=self.path,
            work_tree=work_tree,
            index_file=index_file,
            alternates=self.object_folders[1:] if borrow else (),
            settings=self.user_repository.settings,
        )

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", borrow: bool = True) -> bytes:
        """What git says where neither a tree nor an index matters."""
        nowhere = os.path.join(self.path, "tmp", "no-index")
        where = self.repository(self.top, nowhere, borrow=borrow)
        return git_output(where, arguments, stdin=stdin)

    def commit(self, tree: str, *, parents: Sequence[str] = (), message: str = "") -> str:
        """The commit of `tree`. The same arguments give the same commit, whenever and whoever."""
        before = [part for parent in parents for part in ("-p", parent)]
        made = self.run(["commit-tree", *before, tree], stdin=message.encode("utf-8", "replace"))
        return made.decode().strip()

    def tree_of(self, commit: str) -> str:
        return self.run(["rev-parse", "--verify", f"{commit}^{{tree}}"]).decode().strip()

    @contextmanager
    def temporary_folder(self) -> Iterator[str]:
        """A folder that is gone at the end."""
        folder = tempfile.mkdtemp(dir=os.path.join(self.path, "tmp"))
        try:
            yield folder
        finally:
            remove_folder(folder)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Alone among all processes that work on this project."""
        fd = os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def make_git_dir(path: str, object_format: str) -> None:
    """An empty repository in the folder `path`, without hooks and with no settings of anybody's."""
    for folder in ("objects", "refs/heads", "info"):
        os.makedirs(os.path.join(path, folder))
    _write_atomically(os.path.join(path, "HEAD"), b"ref: refs/heads/retinue\n")
    _write_atomically(os.path.join(path, "config"), _config_of(object_format))


def _config_of(object_format: str) -> bytes:
    sha1 = object_format == "sha1"
    lines = ["[core]", f"repositoryformatversion = {0 if sha1 else 1}", "bare = false"]
    lines += [] if sha1 else ["[extensions]", f"objectformat = {object_format}"]
    return "\n".join([*lines, ""]).encode()


def _write_atomically(path: str, data: bytes) -> None:
    """Write a file that others may be reading."""
    with suppress(OSError), open(path, "rb") as file:
        if file.read() == data:
            return
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
