"""The state of a tree as a git tree: what is committed, changed and new, without what is ignored.

Nothing in the user's repository is touched. Their index is copied, for it knows which files are
tracked and which of them have not changed; everything else happens in the copy.
"""

from __future__ import annotations

import os
import shutil
import stat
import time

import msgspec

from retinue.errors import GitError, WorkspaceError
from retinue.workspace.git import Repository, git_output, run_git, split_paths
from retinue.workspace.private_git import PrivateGit

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_NEW_FILES = 50_000
MAX_NEW_BYTES = 1024 * 1024 * 1024
# A file may be written, or be removed, while git reads it.
_ATTEMPTS = 3
# What nobody has asked for in longer may have been swept away.
_CACHE_S = 3600.0


class Snapshot(msgspec.Struct, frozen=True):
    """`left_out` are paths that could not be taken; `nested` are repositories inside the tree."""

    tree: str
    left_out: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()


class _Differences(msgspec.Struct, frozen=True):
    """The paths that the index does not know as they are; and those to leave out, and why.

    `seen` is how the files looked, and `latest_ns` when the last of them was changed.
    """

    paths: tuple[str, ...]
    left_out: tuple[str, ...]
    nested: tuple[str, ...]
    seen: tuple[tuple[int, ...], ...]
    latest_ns: int


class SnapshotCache:
    """The last snapshot of the user's tree, which is right as long as nothing looks different."""

    def __init__(self) -> None:
        self._known: tuple[str, _Differences] | None = None
        self._taken = Snapshot("")
        self._until = 0.0

    def get(self, seed: str, differing: _Differences) -> Snapshot | None:
        same = self._known == (seed, differing) and time.monotonic() < self._until
        return self._taken if same else None

    def put(self, seed: str, differing: _Differences, taken: Snapshot, begun_ns: int) -> None:
        """`begun_ns` is from before the files were looked at, by the file system's own clock."""
        # What was written in the same tick can be written once more and look the same.
        settled = differing.latest_ns < begun_ns
        self._known = (seed, differing) if settled else None
        self._taken, self._until = taken, time.monotonic() + _CACHE_S


def snapshot_user_tree(private_git: PrivateGit, recent: SnapshotCache | None = None) -> Snapshot:
    """The user's tree as it is now. Who looks often gives the same `recent` along."""
    source = private_git.user_repository
    with private_git.temporary_folder() as folder:
        index_file = os.path.join(folder, "index")
        if source.index_file is None:
            kept = os.path.join(private_git.path, "index")
            _copy_index(kept, index_file)
            where = private_git.repository(source.top, index_file)
            _forget_ignored(where)
            taken = take_snapshot(where)
            os.replace(index_file, kept)
            return taken
        seed = _base_index(private_git, source.index_file)
        _copy_index(seed, index_file)
        begun_ns = os.stat(folder).st_ctime_ns
        return _snapshot(
            private_git.repository(source.top, index_file),
            recent or SnapshotCache(),
            seed,
            begun_ns,
        )


def take_snapshot(where: Repository) -> Snapshot:
    """The state of a work tree; its index is brought up to date with it."""
    return _snapshot(where, SnapshotCache(), "", 0)


def _snapshot(where: Repository, recent: SnapshotCache, seed: str, begun_ns: int) -> Snapshot:
    for attempt in range(1, _ATTEMPTS + 1):
        differing = _find_differences(where)
        if (known := recent.get(seed, differing)) is not None:
            return known
        paths = differing.paths
        try:
            if paths:
                update = ["update-index", "-z", "--add", "--remove", "--replace", "--stdin"]
                git_output(where, update, stdin=b"".join(os.fsencode(p) + b"\0" for p in paths))
            # In a partial clone, a blob that was never checked out need not be here.
            tree = git_output(where, ["write-tree", "--missing-ok"]).decode().strip()
        except GitError:
            if attempt == _ATTEMPTS:
                raise
        else:
            taken = Snapshot(tree, differing.left_out, differing.nested)
            recent.put(seed, differing, taken, begun_ns)
            return taken
    raise AssertionError("the last try returns or raises")


def find_unseen_writes(where: Repository) -> list[str]:
    """Paths with files in places that no snapshot looks at: submodules, and what is left out."""
    found = []
    for line in git_output(where, ["ls-files", "-z", "-t", "--stage"]).split(b"\0"):
        about, _, name = line.partition(b"\t")
        path = os.fsdecode(name)
        full = os.path.join(where.work_tree, path)
        if b" 160000 " in about:
            # Folders without files are nothing to git.
            if any(files for _, _, files in os.walk(full)):
                found.append(path)
        elif about.startswith(b"S ") and os.path.lexists(full):
            found.append(path)
    return found


def _find_differences(where: Repository) -> _Differences:
    listing = ["ls-files", "-z", "--others", "--modified", "--deleted", "--exclude-standard"]
    paths: list[str] = []
    left_out: list[str] = []
    nested: list[str] = []
    seen: list[tuple[int, ...]] = []
    size_bytes = latest_ns = 0
    for path in dict.fromkeys(split_paths(git_output(where, listing))):
        if path.endswith("/"):
            nested.append(path[:-1])
            continue
        full = os.path.join(where.work_tree, path)
        try:
            found = os.lstat(full)
        except OSError:
            paths.append(path)  # Gone, which is news.
            seen.append(())
            continue
        if stat.S_ISDIR(found.st_mode):
            continue  # A submodule: which commit it is at is not ours to say.
        changed_ns = found.st_ctime_ns
        seen.append((found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, changed_ns))
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
                f"{where.work_tree} has too many files that git does not know (more than"
                f" {MAX_NEW_FILES:,}, or {MAX_NEW_BYTES // 2**30} GiB). Add what is no part of the"
                " project to .gitignore."
            )
    return _Differences(tuple(paths), tuple(left_out), tuple(nested), tuple(seen), latest_ns)


def _base_index(private_git: PrivateGit, users_index: str) -> str:
    """A copy of the user's index that is fit to begin with, made anew when theirs has changed."""
    try:
        found = os.stat(users_index)
    except FileNotFoundError:
        return users_index  # Nothing was ever added.
    signature = f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"
    kept = os.path.join(private_git.path, f"seed-{signature}")
    if os.path.exists(kept):
        return kept
    with private_git.temporary_folder() as folder:
        index_file = os.path.join(folder, "index")
        _copy_index(users_index, index_file)
        for entry in os.scandir(os.path.dirname(users_index)):
            # An index may be a difference to another file, that git looks for in its git dir.
            if entry.name.startswith("sharedindex."):
                _copy_index(entry.path, os.path.join(private_git.path, entry.name))
        where = private_git.repository(private_git.top, index_file)
        _clear_assume_unchanged(where)
        # Files that only look changed are found out once, instead of by each snapshot.
        run_git(where, ["update-index", "-q", "--refresh"])
        for entry in os.scandir(private_git.path):
            if entry.name.startswith("seed-"):
                os.unlink(entry.path)
        if os.path.exists(index_file):
            os.replace(index_file, kept)
    return kept


def _clear_assume_unchanged(where: Repository) -> None:
    """Look at files again that the user has told git not to look at: they may have changed."""
    listed = git_output(where, ["ls-files", "-z", "-v", "--cached"])
    blindly = [line[2:] for line in listed.split(b"\0") if line[:1].islower()]
    if blindly:
        update = ["update-index", "-z", "--no-assume-unchanged", "--stdin"]
        git_output(where, update, stdin=b"".join(path + b"\0" for path in blindly))


def _forget_ignored(where: Repository) -> None:
    """Without a repository nothing is tracked: what is ignored by now is no part of the tree."""
    ignored = git_output(where, ["ls-files", "-z", "--cached", "--ignored", "--exclude-standard"])
    if ignored:
        git_output(where, ["update-index", "-z", "--force-remove", "--stdin"], stdin=ignored)


def _copy_index(source: str, target: str) -> None:
    """Copy an index with its time: git tells by it which files may have changed unnoticed."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        return
