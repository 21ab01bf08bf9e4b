"""Applies changes to a file tree that the user may be editing at the same moment.

`git read-tree -u` checks all files first and then writes: it loses an edit in between, and a file
that cannot be written leaves half of a change behind. Here each old file is moved aside and checked
where no one else can reach it. The new file is then linked to the free name, which fails if someone
has created a file there. If anything fails, everything is moved back. A file whose name was taken
meanwhile goes to `.retinue/rescued`, and is never removed.

A file on another mount than `.retinue` cannot be moved there or linked from there. It is copied, by
way of a temporary name next to it that snapshots leave out.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress

import msgspec

from retinue.errors import WorkspaceError
from retinue.processes.removal import remove_folder
from retinue.workspace.atomic_write import copy_owner_and_mode, open_or_make_folder, read_regular
from retinue.workspace.file_names import quoted
from retinue.workspace.git import git_output, run_git
from retinue.workspace.private_git import STAGING_PREFIX, PrivateGit
from retinue.workspace.recorded_changes import delete_ref, record_diff
from retinue.workspace.safe_open import DIRECTORY, READ, TRAVERSE, best_opener, closing_fd
from retinue.workspace.snapshot import MAX_FILE_BYTES
from retinue.workspace.tree_diff import DiffEntry, is_link

_PENDING_FILE = "plan"
# The file system has no hard links, or the file has too many of them.
_UNLINKABLE = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)


class ApplyRefused(Exception):
    """The tree has changed since the change was computed; nothing was applied.

    A file that cannot be written is a WorkspaceError instead: another attempt would not help.

    `rescued` is a folder with files that could not be put back, since their names were taken.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{quoted(path)} {why}")
        self.rescued = ""

    def __str__(self) -> str:
        return super().__str__() + _rescued_note(self.rescued)


class _PendingApply(msgspec.Struct, frozen=True):
    """A change while it is applied, for the process that recovers after a crash. Paths are bytes.

    `top` is relative to the private git dir, which moves with the project.
    """

    top: bytes
    ref: str | None
    changed: tuple[tuple[bytes, int, int, str, str], ...]


def apply(
    private_git: PrivateGit,
    top: str,
    changed: Sequence[DiffEntry],
    *,
    staging_parent: str,
    ref: str | None = None,
    message: str = "",
    agent_id: str = "",
) -> str | None:
    """Apply all of the changes to the tree at `top`, or none of them and raise ApplyRefused.

    Raises WorkspaceError if `staging_parent` or a file cannot be written. `staging_parent` is a
    folder that no agent can write, best on the same file system. If the process is killed,
    `recover_interrupted` puts back what it finds there. With `ref` the change is recorded under
    that ref, so that it can be undone, and the commit is returned.
    """
    try:
        staging = tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=staging_parent)
    except OSError as error:
        raise _unwritable(staging_parent, error) from error
    try:
        _stage(private_git, top, changed, staging)
        pending = os.path.join(staging, _PENDING_FILE)
        with open(pending, "wb") as file:
            file.write(msgspec.msgpack.encode(_pending_apply(private_git, top, ref, changed)))
        commit = None
        if ref is not None:
            commit = record_diff(private_git, ref, changed, message, agent_id=agent_id)
        try:
            with _FileSwap(private_git, top, staging) as exchange:
                exchange.run(changed)
        except BaseException:
            if ref is not None:
                delete_ref(private_git, ref)
            raise
        # From here on the change is complete, and recovery does not take it back.
        os.unlink(pending)
    except BaseException as error:
        rescued = _discard_staging(private_git, staging, changed)
        if isinstance(error, ApplyRefused):
            error.rescued = rescued
        if isinstance(error, OSError):
            raise _unwritable(staging, error, rescued) from error
        if isinstance(error, WorkspaceError) and rescued:
            raise WorkspaceError(f"{error}{_rescued_note(rescued)}") from error
        raise
    remove_folder(staging)
    return commit


def _unwritable(folder: str, error: OSError, rescued: str = "") -> WorkspaceError:
    return WorkspaceError(f"{folder} cannot be written ({error.strerror}){_rescued_note(rescued)}.")


def _rescued_note(rescued: str) -> str:
    return rescued and f"; files that could not be put back are in {rescued}"


class Recovered(msgspec.Struct, frozen=True):
    """`paths` were put back; `rescued` are folders with files that could not be put back."""

    paths: tuple[str, ...] = ()
    rescued: tuple[str, ...] = ()


def has_interrupted(staging_parent: str) -> bool:
    """Whether a process was killed while it applied a change."""
    with suppress(OSError):
        return any(name.startswith(STAGING_PREFIX) for name in os.listdir(staging_parent))
    return False


def recover_interrupted(private_git: PrivateGit, staging_parent: str) -> Recovered:
    """Put back the changes that killed processes left half applied."""
    found: list[str] = []
    rescued: list[str] = []
    for name in sorted(os.listdir(staging_parent)):
        if not name.startswith(STAGING_PREFIX):
            continue
        staging = os.path.join(staging_parent, name)
        try:
            with open(os.path.join(staging, _PENDING_FILE), "rb") as file:
                written = file.read()
        except FileNotFoundError:
            # The change was not begun, or is complete.
            remove_folder(staging)
            continue
        changed: list[DiffEntry] = []
        with suppress(OSError, msgspec.DecodeError):
            pending = msgspec.msgpack.decode(written, type=_PendingApply)
            changed = [DiffEntry(os.fsdecode(entry[0]), *entry[1:]) for entry in pending.changed]
            top = os.path.normpath(os.path.join(private_git.path, os.fsdecode(pending.top)))
            with _FileSwap(private_git, top, staging) as exchange:
                exchange.put_back(changed)
            if pending.ref is not None:
                delete_ref(private_git, pending.ref)
            found += [change.path for change in changed]
        if folder := _discard_staging(private_git, staging, changed):
            rescued.append(folder)
    return Recovered(tuple(found), tuple(rescued))


def _discard_staging(private_git: PrivateGit, staging: str, changed: Sequence[DiffEntry]) -> str:
    """Remove the staging folder of a change that was not applied, after rescuing the user's files.

    Returns the folder with files that could not be put back; "" if there are none.
    """
    old, rescued = os.path.join(staging, "old"), ""
    parents = os.path.join(os.path.dirname(private_git.path), "rescued")
    try:
        for number in os.listdir(old) if os.path.isdir(old) else ():
            if os.path.islink(parents):
                return old  # A link in a cloned project could point anywhere.
            parent = os.path.join(parents, os.path.basename(staging))
            # If the pending file is unreadable, the file's name is unknown.
            target = os.path.join(parent, changed[int(number)].path if changed else number)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.move(os.path.join(old, number), target)
            rescued = parent
    except OSError:
        return old
    remove_folder(staging)
    return rescued


def _stage(private_git: PrivateGit, top: str, changed: Sequence[DiffEntry], staging: str) -> None:
    """Write the new files below `new/`, with the line endings of a work tree."""
    for name in ("old", "new"):
        os.mkdir(os.path.join(staging, name))
    entries = [
        b"%o %b\t%b\0" % (change.new_mode, change.new_id.encode(), os.fsencode(change.path))
        for change in changed
        if change.new_mode
    ]
    if entries:
        repository = private_git.repository(os.path.join(staging, "index"), top=top)
        git_output(repository, ["update-index", "-z", "--index-info"], stdin=b"".join(entries))
        git_output(repository, ["checkout-index", "-a", f"--prefix={staging}/new/"])


class _FileSwap:
    """Moves old files out of the tree and new files in.

    An OSError becomes ApplyRefused, or WorkspaceError if the file cannot be written.
    """

    def __init__(self, private_git: PrivateGit, top: str, staging: str) -> None:
        self._private_git = private_git
        self._top = top
        self._staging = os.path.basename(staging)
        self._staged = os.path.join(staging, "new")
        self._old_path = os.path.join(staging, "old")

    def __enter__(self) -> _FileSwap:
        self._root = os.open(self._top, DIRECTORY)
        self._old = os.open(self._old_path, DIRECTORY)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)
        os.close(self._old)

    def run(self, changed: Sequence[DiffEntry]) -> None:
        with ExitStack() as back:
            for number, change in enumerate(changed):
                if change.old_mode:
                    self._take_out(number, change, back)
            for change in changed:
                if not change.new_mode:
                    self._prune(_folder(change.path))
            for number, change in enumerate(changed):
                if change.new_mode:
                    self._put_in(number, change, back)
            back.pop_all()

    def put_back(self, changed: Sequence[DiffEntry]) -> None:
        """Undo what an interrupted `run` has done."""
        for change in changed:
            placed = os.path.join(self._top, change.path)
            if change.new_mode and self._matches_blob(
                placed, change.path, change.new_mode, change.new_id
            ):
                self._remove(change)
        for number, change in enumerate(changed):
            self._restore(number, change)
            with suppress(OSError), self._open_parent(change.path) as parent:
                os.unlink(self._temporary("new", number), dir_fd=parent)

    def _temporary(self, kind: str, number: int) -> str:
        """A name next to a file on another mount, while a version of it is copied."""
        return f".retinue-{self._staging}-{number}-{kind}.tmp"

    def _take_out(self, number: int, change: DiffEntry, back: ExitStack) -> None:
        path, name, aside = change.path, _name(change.path), str(number)
        try:
            with self._open_parent(path) as parent:
                if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    raise ApplyRefused(path, "has become a folder")
                back.callback(self._restore, number, change)
                try:
                    os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=self._old)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    beside = self._temporary("old", number)
                    os.rename(name, beside, src_dir_fd=parent, dst_dir_fd=parent)
                    before = os.lstat(beside, dir_fd=parent)
                    _copy(beside, parent, aside, self._old)
                    if os.lstat(beside, dir_fd=parent).st_mtime_ns != before.st_mtime_ns:
                        raise ApplyRefused(path, "was changed meanwhile") from None
                    os.unlink(beside, dir_fd=parent)
        except FileNotFoundError:
            raise ApplyRefused(path, "was removed meanwhile") from None
        except OSError as error:
            raise _refusal(path, error) from error
        moved = os.path.join(self._old_path, aside)
        if not self._matches_blob(moved, path, change.old_mode, change.old_id):
            raise ApplyRefused(path, "was changed meanwhile")

    def _restore(self, number: int, change: DiffEntry) -> None:
        """Bring an old file back, unless there is a newer one of that name.

        A file that cannot be brought back stays in the staging folder.
        """
        name, aside, beside = _name(change.path), str(number), self._temporary("old", number)
        with suppress(OSError), self._make_parent(change.path) as parent:
            if _exists(beside, parent):
                # The process was killed while it copied the file: the copy is not complete.
                with suppress(FileNotFoundError):
                    os.unlink(aside, dir_fd=self._old)
                _copy(beside, parent, aside, self._old)
                os.unlink(beside, dir_fd=parent)
            if stat.S_ISDIR(os.lstat(aside, dir_fd=self._old).st_mode):
                os.rename(aside, name, src_dir_fd=self._old, dst_dir_fd=parent)
            else:
                self._place(aside, self._old, name, parent, number)
                with suppress(FileNotFoundError):
                    os.unlink(aside, dir_fd=self._old)

    def _put_in(self, number: int, change: DiffEntry, back: ExitStack) -> None:
        path = change.path
        staged = os.path.join(self._staged, path)
        if change.old_mode and not is_link(change.old_mode) and not is_link(change.new_mode):
            _copy_attributes(staged, os.stat(str(number), dir_fd=self._old), change)
        try:
            with self._make_parent(path) as parent:
                self._place(staged, None, _name(path), parent, number)
        except FileExistsError:
            raise ApplyRefused(path, "exists already, and was not part of the snapshot") from None
        except OSError as error:
            raise _refusal(path, error) from error
        back.callback(self._take_back, change, os.lstat(os.path.join(self._top, path)))

    def _place(self, source: str, folder: int | None, name: str, parent: int, number: int) -> None:
        """Give a file a name in the folder `parent`. FileExistsError if the name is taken."""
        try:
            _link(source, folder, name, parent)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            temporary = self._temporary("new", number)
            _copy(source, folder, temporary, parent)
            try:
                _link(temporary, parent, name, parent)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)

    def _take_back(self, change: DiffEntry, placed: os.stat_result) -> None:
        """Remove a new file again, unless it was edited since."""
        with suppress(OSError):
            now = os.lstat(os.path.join(self._top, change.path))
            if (now.st_ino, now.st_mtime_ns) == (placed.st_ino, placed.st_mtime_ns):
                self._remove(change)

    def _remove(self, change: DiffEntry) -> None:
        with suppress(OSError):
            with self._open_parent(change.path) as parent:
                os.unlink(_name(change.path), dir_fd=parent)
            self._prune(_folder(change.path))

    def _prune(self, folder: str) -> None:
        """Remove folders that have become empty."""
        with suppress(OSError):
            while folder != ".":
                with self._open_parent(folder) as parent:
                    os.rmdir(_name(folder), dir_fd=parent)
                folder = _folder(folder)

    def _open_parent(self, path: str) -> AbstractContextManager[int]:
        return closing_fd(best_opener()(self._root, _folder(path), TRAVERSE))

    def _make_parent(self, path: str) -> AbstractContextManager[int]:
        return closing_fd(open_or_make_folder(best_opener(), self._root, _folder(path)))

    def _matches_blob(self, file: str, path: str, mode: int, blob: str) -> bool:
        """Whether git would store `file` as `blob`, if it were at `path`."""
        try:
            if is_link(mode):
                return self._blob_id(os.fsencode(os.readlink(file))) == blob
            with closing_fd(os.open(file, READ | os.O_NOFOLLOW)) as fd:
                is_file = stat.S_ISREG(os.fstat(fd).st_mode)
                data = read_regular(fd, MAX_FILE_BYTES) if is_file else None
        except OSError:
            return False
        if data is None:
            return False
        if self._blob_id(data) == blob:
            return True
        # Git may convert line endings and encodings, as .gitattributes says.
        repository = self._private_git.repository(top=self._top)
        hashed = run_git(repository, ["hash-object", "--stdin", f"--path={path}"], stdin=data)
        return hashed.stdout.decode().strip() == blob

    def _blob_id(self, data: bytes) -> str:
        kind = self._private_git.user_repository.object_format
        digest = hashlib.new(kind, b"blob %d\0" % len(data))
        digest.update(data)
        return digest.hexdigest()


def _link(source: str, folder: int | None, name: str, parent: int) -> None:
    """Give a file a name in the folder `parent`. FileExistsError if the name is taken."""
    try:
        os.link(source, name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _UNLINKABLE:
            raise
        # Claim the name, then fill it.
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, dir_fd=parent))
        try:
            os.rename(source, name, src_dir_fd=folder, dst_dir_fd=parent)
        except BaseException:
            os.unlink(name, dir_fd=parent)
            raise


def _copy(source: str, folder: int | None, name: str, parent: int) -> None:
    """Copy a file or link, with mode and owner, to another mount. `name` must be free."""
    found = os.stat(source, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(source, dir_fd=folder), name, dir_fd=parent)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with (
        open(os.open(source, READ | os.O_NOFOLLOW, dir_fd=folder), "rb") as old,
        open(os.open(name, flags, 0o600, dir_fd=parent), "wb") as new,
    ):
        shutil.copyfileobj(old, new)
        copy_owner_and_mode(new.fileno(), found)
        new.flush()
        os.utime(new.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _copy_attributes(staged: str, like: os.stat_result, change: DiffEntry) -> None:
    """Give the new file the owner and the mode of the old one, unless the change sets the mode."""
    with closing_fd(os.open(staged, READ | os.O_NOFOLLOW)) as fd:
        own = os.fstat(fd).st_mode
        copy_owner_and_mode(fd, like)
        if change.old_mode != change.new_mode:
            os.fchmod(fd, own & 0o777)


def _refusal(path: str, error: OSError) -> Exception:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return ApplyRefused(path, "is behind a link or a file")
    return WorkspaceError(f"{quoted(path)} cannot be written ({error.strerror})")


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _pending_apply(
    private_git: PrivateGit, top: str, ref: str | None, changed: Sequence[DiffEntry]
) -> _PendingApply:
    entries = tuple(
        (os.fsencode(c.path), c.old_mode, c.new_mode, c.old_id, c.new_id) for c in changed
    )
    return _PendingApply(os.fsencode(os.path.relpath(top, private_git.path)), ref, entries)
