"""Snapshots: the files of a work tree as a git tree, with uncommitted and new, without ignored
ones.

The user's repository is not changed. Its index is copied, since the index knows which files are
tracked and which of them have not changed; everything else happens in that copy.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from functools import cache, partial

import msgspec

from retinue.errors import GitError, WorkspaceError
from retinue.workspace.git import Repository, git_output, join_paths, run_git, split_paths
from retinue.workspace.private_git import PrivateGit

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_NEW_FILES = 50_000
MAX_NEW_BYTES = 1024 * 1024 * 1024
# Files may be written or removed while git reads them.
_ATTEMPTS = 3
# Cleanup may have removed the objects of an older snapshot.
_CACHE_S = 3600.0


class Snapshot(msgspec.Struct, frozen=True):
    """`left_out` are paths that cannot be included; `nested` are repositories inside the tree."""

    tree: str
    left_out: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()


class _Differences(msgspec.Struct, frozen=True):
    """How a work tree differs from its index: `paths` to update, and paths to leave out.

    `behind_links` are tracked files whose folder is a link now: for git they are gone. `stats` are
    the stat values of the files, and `latest_ns` is the latest change time.
    """

    paths: tuple[str, ...]
    behind_links: tuple[str, ...]
    left_out: tuple[str, ...]
    nested: tuple[str, ...]
    stats: tuple[tuple[int, ...], ...]
    latest_ns: int


class SnapshotCache:
    """The last snapshot of the user's tree. It is valid as long as no stat value has changed."""

    def __init__(self) -> None:
        self._known: tuple[str, _Differences] | None = None
        self._taken = Snapshot("")
        self._until = 0.0

    def get(self, base_index: str, differing: _Differences) -> Snapshot | None:
        same = self._known == (base_index, differing) and time.monotonic() < self._until
        return self._taken if same else None

    def put(self, base_index: str, differing: _Differences, taken: Snapshot, begun_ns: int) -> None:
        """`begun_ns` is the file system's clock before the first stat."""
        # A file changed in the current tick can change once more with the same stat values.
        settled = differing.latest_ns < begun_ns
        self._known = (base_index, differing) if settled else None
        self._taken, self._until = taken, time.monotonic() + _CACHE_S


def snapshot_user_tree(private_git: PrivateGit, cache: SnapshotCache | None = None) -> Snapshot:
    """A snapshot of the user's tree. A caller that takes several passes the same `cache`."""
    source = private_git.user_repository
    with private_git.temporary_folder() as folder:
        index_file = os.path.join(folder, "index")
        if source.index_file is None:
            kept = os.path.join(private_git.path, "index")
            _copy_index(kept, index_file)
            repository = private_git.repository(index_file)
            _forget_ignored(repository)
            taken = _snapshot(repository, SnapshotCache(), "", 0)
            os.replace(index_file, kept)
            return taken
        base_index = _base_index(private_git, source.index_file)
        _copy_index(base_index, index_file)
        begun_ns = os.stat(folder).st_ctime_ns
        repository = private_git.repository(index_file)
        return _snapshot(repository, cache or SnapshotCache(), base_index, begun_ns)


def take_snapshot(repository: Repository) -> Snapshot:
    """A snapshot of a working copy; the index is brought up to date.

    Git works on a copy of the index: a git that is killed, as by the end of its host, leaves a lock
    that nobody removes.
    """
    kept = repository.index_file
    parent = os.path.dirname(kept)
    try:
        with tempfile.TemporaryDirectory(prefix="index-", dir=parent) as folder:
            index_file = os.path.join(folder, "index")
            _copy_index(kept, index_file)
            copied = msgspec.structs.replace(repository, index_file=index_file)
            taken = _snapshot(copied, SnapshotCache(), "", 0)
            os.replace(index_file, kept)
    except OSError as error:
        raise WorkspaceError(f"{parent} cannot be written ({error.strerror}).") from error
    return taken


def _snapshot(
    repository: Repository, cache: SnapshotCache, base_index: str, begun_ns: int
) -> Snapshot:
    for attempt in range(1, _ATTEMPTS + 1):
        differing = _find_differences(repository)
        if (known := cache.get(base_index, differing)) is not None:
            return known
        paths = differing.paths
        try:
            if differing.behind_links:
                remove = ["update-index", "-z", "--force-remove", "--stdin"]
                git_output(repository, remove, stdin=join_paths(differing.behind_links))
            if paths:
                update = ["update-index", "-z", "--add", "--remove", "--replace", "--stdin"]
                git_output(repository, update, stdin=join_paths(paths))
            # In a partial clone, blobs that were never checked out may be missing.
            tree = git_output(repository, ["write-tree", "--missing-ok"]).decode().strip()
        except GitError:
            if attempt == _ATTEMPTS:
                raise
        else:
            taken = Snapshot(tree, differing.left_out, differing.nested)
            cache.put(base_index, differing, taken, begun_ns)
            return taken
    raise AssertionError("the last attempt returns or raises")


def find_unseen_writes(repository: Repository) -> list[str]:
    """Paths with files that no snapshot includes: in submodules, or left out of the checkout."""
    found = []
    for line in git_output(repository, ["ls-files", "-z", "-t", "--stage"]).split(b"\0"):
        about, _, name = line.partition(b"\t")
        path = os.fsdecode(name)
        full = os.path.join(repository.work_tree, path)
        if b" 160000 " in about:
            # Git ignores folders without files.
            if any(files for _, _, files in os.walk(full)):
                found.append(path)
        elif about.startswith(b"S ") and os.path.lexists(full):
            found.append(path)
    return found


def _find_differences(repository: Repository) -> _Differences:
    listing = ["ls-files", "-z", "--others", "--modified", "--deleted", "--exclude-standard"]
    paths: list[str] = []
    behind_links: list[str] = []
    left_out: list[str] = []
    is_behind_link = cache(partial(_is_behind_link, repository.work_tree))
    nested: list[str] = []
    stats: list[tuple[int, ...]] = []
    size_bytes = latest_ns = 0
    for path in dict.fromkeys(split_paths(git_output(repository, listing))):
        if path.endswith("/"):
            nested.append(path[:-1])
            continue
        if is_behind_link(os.path.dirname(path)):
            behind_links.append(path)
            continue
        full = os.path.join(repository.work_tree, path)
        try:
            found = os.lstat(full)
        except OSError:
            paths.append(path)  # Removed.
            stats.append(())
            continue
        if stat.S_ISDIR(found.st_mode):
            continue  # A submodule: its commit stays as it is in the index.
        changed_ns = found.st_ctime_ns
        stats.append((found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, changed_ns))
        latest_ns = max(latest_ns, changed_ns)
        if stat.S_ISREG(found.st_mode):
            if found.st_size > MAX_FILE_BYTES or not os.access(full, os.R_OK):
                left_out.append(path)
                continue
            size_bytes += found.st_size
        elif not stat.S_ISLNK(found.st_mode):
            left_out.append(path)
            continue
        paths.append(path)
        if len(paths) > MAX_NEW_FILES or size_bytes > MAX_NEW_BYTES:
            raise WorkspaceError(
                f"{repository.work_tree} has too many files that git does not track (more than"
                f" {MAX_NEW_FILES:,}, or {MAX_NEW_BYTES // 2**30} GiB). Add files that are not"
                " part of the project to .gitignore."
            )
    return _Differences(
        tuple(paths), tuple(behind_links), tuple(left_out), tuple(nested), tuple(stats), latest_ns
    )


def _is_behind_link(work_tree: str, folder: str) -> bool:
    """Whether a folder, or one above it in the work tree, is a link."""
    while folder:
        if os.path.islink(os.path.join(work_tree, folder)):
            return True
        folder = os.path.dirname(folder)
    return False


def _base_index(private_git: PrivateGit, users_index: str) -> str:
    """A copy of the user's index to start from; it is made again when theirs has changed."""
    try:
        found = os.stat(users_index)
    except FileNotFoundError:
        return users_index  # No file was ever added.
    signature = f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"
    kept = os.path.join(private_git.path, f"seed-{signature}")
    if os.path.exists(kept):
        return kept
    with private_git.temporary_folder() as folder:
        index_file = os.path.join(folder, "index")
        _copy_index(users_index, index_file)
        for entry in os.scandir(os.path.dirname(users_index)):
            # A split index refers to another file, which git looks for in its git dir.
            if entry.name.startswith("sharedindex."):
                _copy_index(entry.path, os.path.join(private_git.path, entry.name))
        repository = private_git.repository(index_file)
        _clear_assume_unchanged(repository)
        # Once, instead of in each snapshot: read files whose stat values alone have changed.
        run_git(repository, ["update-index", "-q", "--refresh"])
        for entry in os.scandir(private_git.path):
            if entry.name.startswith("seed-"):
                os.unlink(entry.path)
        if os.path.exists(index_file):
            os.replace(index_file, kept)
    return kept


def _clear_assume_unchanged(repository: Repository) -> None:
    """Clear the user's "assume unchanged" marks: such files may have changed."""
    listed = git_output(repository, ["ls-files", "-z", "-v", "--cached"])
    blindly = [line[2:] for line in listed.split(b"\0") if line[:1].islower()]
    if blindly:
        update = ["update-index", "-z", "--no-assume-unchanged", "--stdin"]
        git_output(repository, update, stdin=b"".join(path + b"\0" for path in blindly))


def _forget_ignored(repository: Repository) -> None:
    """Drop ignored files from the index: in a project without a repository none is tracked."""
    ignored = git_output(
        repository, ["ls-files", "-z", "--cached", "--ignored", "--exclude-standard"]
    )
    if ignored:
        git_output(repository, ["update-index", "-z", "--force-remove", "--stdin"], stdin=ignored)


def _copy_index(source: str, target: str) -> None:
    """Copy an index with its modification time, which git compares with those of the files."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        return
