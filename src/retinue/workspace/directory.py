"""A directory as the workspace of an agent: no path leads out of it."""

from __future__ import annotations

import builtins
import copy
import difflib
import errno
import hashlib
import os
import posixpath
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from operator import itemgetter
from posixpath import relpath
from typing import NamedTuple, TypeVar

import msgspec

from retinue.domain.grant import Access, Network
from retinue.domain.paths import inside
from retinue.domain.protected_paths import NOTHING_PROTECTED, ProtectedPaths
from retinue.domain.result import FileChange
from retinue.domain.scope import NOWHERE, Scope
from retinue.errors import ToolFailure, WorkspaceError
from retinue.executables import find_program
from retinue.ports.workspace import CodeQuery, DirEntry, GitQuery, SearchMatch
from retinue.threads import in_thread
from retinue.workspace.atomic_write import (
    open_or_make_folder,
    read_regular,
    remove_leftovers,
    replace_file,
)
from retinue.workspace.code_index.client import CodeRequest, ask
from retinue.workspace.file_changes import describe_change
from retinue.workspace.file_listing import list_files, size_of
from retinue.workspace.file_names import printable, protected_name, quoted
from retinue.workspace.git import Repository, find_repository
from retinue.workspace.git_history import GitHistory
from retinue.workspace.glob import matcher
from retinue.workspace.safe_open import (
    DIRECTORY,
    READ,
    TRAVERSE,
    OnPath,
    Opener,
    best_opener,
    closing_fd,
    open_if_cached,
    open_with_openat2,
)
from retinue.workspace.search import MAX_FILE_BYTES, search

T = TypeVar("T")

MAX_ENTRIES = 100_000
FEW_ENTRIES = 200
MAX_LISTED = 10_000
MAX_REPLACED_BYTES = 32 * 1024 * 1024
MAX_PATH_CHARS = 4_000
_MAX_HINT_NAMES = 2_000
_LIKE = 0.65  # A common extension alone makes no two names alike.
INDEX_FILE = "code-index.db"


class Write(NamedTuple):
    """A change of a file by a file tool; `before` is None if the file is new."""

    path: str
    executable: bool
    before: bytes | None
    after: bytes
    change: FileChange


class DirectoryWorkspace:
    """A Workspace on disk. Safe to use from many threads, while others change the files.

    Its descriptor is closed only when nothing refers to the workspace any more. Closed earlier, the
    same number could mean another directory for a thread that is still reading.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        opener: Opener | None = None,
        ripgrep: str | None = "rg",
        alias_root: str | None = None,
        repository: Repository | None = None,
        readable: tuple[str, ...] = (),
        shared_folders: tuple[str, ...] = (),
        protected: ProtectedPaths = NOTHING_PROTECTED,
        before_write: Callable[[], None] | None = None,
        history: GitHistory | None = None,
        index_folder: str | None = None,
        index_seal: str = "",
    ) -> None:
        """`ripgrep` is the program to search with, if it is installed; None disables it.

        `alias_root` is a second path for the same root: in a copy, the path of the project.
        `repository` is the repository that lists the files; without it, `.git` in the root is used.
        `protected` are paths that nobody may change; in a copy, those of the project.
        `readable` and `shared_folders` are passed on to `Access`. `before_write` is called before
        each change. `history` reads the repository. The code index is in `index_folder`; one
        without `index_seal` is not ours, and made anew.
        """
        self._index_folder = index_folder
        self._index_seal = index_seal
        self._history = history
        self._before_write = before_write
        self._protected = protected
        self._readable = readable
        self._shared_folders = shared_folders
        self._mount_point = alias_root or ""
        self._root = os.path.realpath(root)
        self._named_root = alias_root or os.path.abspath(root)
        self._repository = repository
        self._open = opener or best_opener()
        self._listed: set[tuple[int, int]] = set()
        self._on_write: Callable[[Write], None] | None = None
        self._original: DirectoryWorkspace | None = None
        self._ripgrep = None if ripgrep is None else find_program(ripgrep)
        try:
            self._fd = os.open(self._root, DIRECTORY)
        except OSError as error:
            raise WorkspaceError(
                f"{self._root} cannot be a workspace: {error.strerror}."
            ) from error
        weakref.finalize(self, os.close, self._fd)

    def recording(self, on_write: Callable[[Write], None]) -> DirectoryWorkspace:
        """The same workspace, but `on_write` is called for each write that changes a file."""
        twin = copy.copy(self)
        twin._on_write = on_write
        # The descriptor is closed with the original.
        twin._original = self
        return twin

    @property
    def root(self) -> str:
        return self._root

    def access(self, write_scope: Scope, network: Network = Network.NONE) -> Access:
        protected, in_copy = self._protected, bool(self._mount_point)
        closed = self._closed
        # In a copy, the merge refuses what is not allowed, and what does not exist cannot be run.
        read_only = [path for path in closed if not in_copy or self._exists(path)]
        return Access(
            root=self.root,
            write_scope=NOWHERE if "." in closed else write_scope,
            network=network,
            readable=self._readable,
            mount_point=self._mount_point,
            shared_folders=self._shared_folders,
            read_only=tuple(read_only),
            packages=() if in_copy else protected.packages,
            denied=() if in_copy else protected.rules,
            denied_prefix=self._denied_prefix,
        )

    # The same for all agents that share the workspace, and so computed once.

    @cached_property
    def _closed(self) -> tuple[str, ...]:
        """Protected paths in the workspace."""
        return self._protected.within(self._mount_point or self._root)

    @cached_property
    def _denied_prefix(self) -> str:
        """The way from the project to the workspace, for the rules of the user."""
        root, protected = self._mount_point or self._root, self._protected
        if not protected.rules or root == protected.project:
            return ""
        return f"{relpath(root, protected.project)}/"

    def _exists(self, path: str) -> bool:
        return os.path.lexists(os.path.join(self._root, path))

    def inside(self, path: str) -> str | None:
        normal = inside(path, self._root)
        if normal is None and self._named_root != self._root:
            normal = inside(path, self._named_root)
        return normal

    def read(self, path: str, *, max_bytes: int) -> bytes:
        """The whole file. ToolFailure if it is larger than `max_bytes`."""
        path = self._normal(path)
        self._refuse_unreadable(path)
        with self._opened(path, READ, self._refuse_unreadable) as fd:
            size = _regular(os.fstat(fd), path).st_size
            data = read_regular(fd, max_bytes) if size <= max_bytes else None
        if data is None:
            raise ToolFailure(
                f"{quoted(path)} has {size:,} bytes; at most {max_bytes:,} can be read."
            )
        return data

    def read_now(self, path: str, *, max_bytes: int) -> bytes | None:
        """The whole file if it is small and cached by the kernel, so that reading cannot block."""

        def read(fd: int) -> bytes | None:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size > max_bytes:
                return None
            data = bytearray(found.st_size + 1)
            # One byte more than its size, to notice a file that has grown.
            length = os.preadv(fd, [data], 0, os.RWF_NOWAIT)
            return bytes(data[:length]) if length == found.st_size else None

        if self._protected.unreadable and self._hides(self._normal(path)):
            return None  # `read` says why.
        return self._read_if_cached(path, READ, read)

    def list(self, path: str) -> builtins.list[DirEntry]:
        path = self._normal(path)
        with self._opened(path, DIRECTORY, _refuse_protected) as fd:
            entries = _entries(fd, path)
            if len(entries) <= FEW_ENTRIES and len(self._listed) < MAX_LISTED:
                found = os.fstat(fd)
                self._listed.add((found.st_dev, found.st_ino))
        return entries

    def list_now(self, path: str) -> builtins.list[DirEntry] | None:
        """The directory if it was listed before, since the kernel has cached it then."""

        def read(fd: int) -> builtins.list[DirEntry] | None:
            found = os.fstat(fd)
            return _entries(fd, path) if (found.st_dev, found.st_ino) in self._listed else None

        return self._read_if_cached(path, DIRECTORY, read)

    def _read_if_cached(self, path: str, flags: int, read: Callable[[int], T | None]) -> T | None:
        """The result of `read`; None if `path` is not cached, or the kernel cannot tell."""
        if self._open is not open_with_openat2:
            return None
        fd = open_if_cached(self._fd, self._normal(path), flags)
        if fd is None:
            return None
        try:
            return read(fd)
        except OSError:
            return None
        finally:
            os.close(fd)

    def find(self, pattern: str, *, under: str, limit: int) -> tuple[builtins.list[str], bool]:
        found: builtins.list[str] = []
        paths, complete = self._list_files(under, pattern)
        for path in paths:
            # Git also lists deleted files and links.
            if size_of(self._fd, path) is None:
                continue
            if len(found) == limit:
                return found, True
            found.append(printable(path))
        return found, not complete

    def search(
        self, pattern: str, *, under: str, glob: str | None, limit: int
    ) -> tuple[builtins.list[SearchMatch], bool]:
        paths, complete = self._list_files(under, glob)
        found, in_time = search(
            pattern,
            (p for p in paths if (size_of(self._fd, p) or 0) in range(1, MAX_FILE_BYTES + 1)),
            root=self._root,
            read=self._searchable,
            limit=limit + 1,
            ripgrep=self._ripgrep,
        )
        if not in_time and not found:
            raise ToolFailure(
                "The search took too long and found nothing so far. Use a simpler pattern, or"
                " narrow the search with path or glob."
            )
        return found[:limit], len(found) > limit or not complete or not in_time

    def fingerprint(self, under: str) -> str:
        seen = hashlib.sha256()
        paths, _ = self._list_files(under, None)
        for path in paths:
            try:
                found = os.stat(path, dir_fd=self._fd, follow_symlinks=False)
            except OSError:
                continue
            # ctime too: unlike mtime, it cannot be set back.
            state = f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}\n"
            seen.update(state.encode(errors="replace"))
        return seen.hexdigest()

    def changed_after(self, time: float) -> builtins.list[tuple[str, float]]:
        found = []
        for path in self._list_files(".", None)[0]:
            with suppress(OSError):  # Git also lists deleted files.
                at = os.stat(path, dir_fd=self._fd, follow_symlinks=False).st_ctime
                if at > time:
                    found.append((printable(path), at))
        return sorted(found)

    def missing(self, paths: Iterable[str]) -> builtins.list[str]:
        normal = ((path, self.inside(path)) for path in paths)
        return [path for path, at in normal if at is not None and not self._exists(at)]

    async def code(self, query: CodeQuery) -> str:
        return await ask(await in_thread(partial(self._code_request, query)))

    def _code_request(self, query: CodeQuery) -> CodeRequest:
        if self._index_folder is None:
            raise ToolFailure(
                "There is no code index here; use search_files.",
                shown="There is no code index here.",
            )
        under = self._normal(query.path)
        with self._explained(under):
            os.close(self._open(self._fd, under, READ))
        return CodeRequest(
            query=msgspec.structs.replace(query, path=under),
            root=self._root,
            named_root=self._mount_point or self._root,
            repository=self._repository or find_repository(self._root),
            database=os.path.join(self._index_folder, INDEX_FILE),
            seal=self._index_seal,
            protected=self._protected,
        )

    def git(self, query: GitQuery) -> str:
        if self._history is None:
            raise ToolFailure("There is no repository here.")
        return self._history.read(query)

    def write(self, path: str, data: bytes) -> FileChange:
        """Create or replace a file. Links are not followed."""
        path = self._normal(path)
        if refusal := self._protected.refusal(self._mount_point or self._root, path):
            raise ToolFailure(f"{printable(refusal)}.")
        folder, _, name = path.rpartition("/")
        with self._explained(path):
            if path == ".":
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            with closing_fd(open_or_make_folder(self._open, self._fd, folder or ".")) as parent:
                before, like = self._existing(parent, path, name)
                remove_leftovers(parent)
                if data != before:
                    if self._before_write is not None:
                        self._before_write()
                    replace_file(parent, name, data, like)
        change = describe_change(path, before, data)
        if data != before and self._on_write is not None:
            executable = like is not None and bool(like.st_mode & 0o100)
            self._on_write(Write(path, executable, before, data, change))
        return change

    def record_later_change(self, path: str, before: bytes) -> None:
        path, data = self._normal(path), self.read(path, max_bytes=MAX_REPLACED_BYTES)
        if data != before and self._on_write is not None:
            executable = os.access(path, os.X_OK, dir_fd=self._fd)
            self._on_write(
                Write(path, executable, before, data, describe_change(path, before, data))
            )

    def _existing(
        self, parent: int, path: str, name: str
    ) -> tuple[bytes | None, os.stat_result | None]:
        try:
            fd = self._open(parent, name, READ)
        except FileNotFoundError:
            return None, None
        with closing_fd(fd):
            like = _regular(os.fstat(fd), path)
            # A rename needs no permission on the file itself; respect a read-only file all the
            # same.
            if not os.access(name, os.W_OK, dir_fd=parent, effective_ids=_EFFECTIVE):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            before = (
                read_regular(fd, MAX_REPLACED_BYTES) if like.st_size <= MAX_REPLACED_BYTES else None
            )
        if before is None:
            raise ToolFailure(
                f"{quoted(path)} has {like.st_size:,} bytes, too many to replace; write another"
                " file."
            )
        return before, like

    def _normal(self, path: str) -> str:
        """The normalized path, which is checked, opened and shown. ToolFailure if unusable."""
        if "\0" in path:
            raise ToolFailure(f"{quoted(path)} contains a NUL character, which no file name can.")
        if not path.isascii():
            try:
                os.fsencode(path)
            except UnicodeEncodeError:
                raise ToolFailure(f"{quoted(path)} is not valid Unicode.") from None
        if len(path) > MAX_PATH_CHARS:
            raise ToolFailure(f"{quoted(path)} is too long for a path.")
        normal = self.inside(path)
        if normal is None:
            raise ToolFailure(
                f"{quoted(path)} leads outside the workspace. Use a path relative to it."
            )
        _refuse_protected(normal)
        return normal

    def _list_files(self, under: str, glob: str | None) -> tuple[Iterator[str], bool]:
        under = self._normal(under)
        # Links are not followed, so that each file has one path in the results.
        with self._explained(under), closing_fd(self._open(self._fd, under, READ)) as fd:
            folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        if not folder:
            wanted = not self._hides(under) and (glob is None or matcher(glob)(under))
            return iter([under] if wanted else []), True
        listing = list_files(
            self._repository or find_repository(self._root), self._fd, self._open, under
        )
        if self._protected.unreadable:
            listing.paths[:] = [path for path in listing.paths if not self._hides(path)]
        if glob is None:
            return iter(listing.paths), listing.complete
        matches = matcher(glob)
        skip = 0 if under == "." else len(under) + 1
        # Models write globs relative to the searched folder, or relative to the root.
        return (
            p for p in listing.paths if matches(p[skip:]) or (skip and matches(p))
        ), listing.complete

    def _hides(self, path: str) -> bool:
        return self._protected.hides(self._mount_point or self._root, path)

    def _refuse_unreadable(self, path: str) -> None:
        """ToolFailure for a path that may not be read, also if a link leads there."""
        _refuse_protected(path)
        if self._hides(path):
            raise ToolFailure(f"The user's rules forbid to read {quoted(path)}.")

    def _searchable(self, path: str) -> bytes | None:
        try:
            with closing_fd(self._open(self._fd, path, READ)) as fd:
                is_regular = stat.S_ISREG(os.fstat(fd).st_mode)
                return read_regular(fd, MAX_FILE_BYTES) if is_regular else None
        except OSError:
            return None

    @contextmanager
    def _opened(self, path: str, flags: int, visit: OnPath) -> Iterator[int]:
        """Open a path; links are followed within the root."""
        with (
            self._explained(path),
            closing_fd(self._open(self._fd, path, flags, visit=visit)) as fd,
        ):
            yield fd

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        """Turn an OSError about `path` into a ToolFailure that the model can act on."""
        try:
            yield
        except OSError as error:
            found = self._explanation(error, path)
            raise (ToolFailure(found) if isinstance(found, str) else found) from error

    def _explanation(self, error: OSError, path: str) -> str | ToolFailure:
        name = quoted(path)
        match error.errno:
            case errno.ENOENT:
                return self._missing(path)
            case errno.EXDEV:
                return f"{name} leads outside the workspace."
            case errno.EISDIR:
                shown = f"{name} is a directory."
                return ToolFailure(f"{name} is a directory; use list_dir.", shown=shown)
            case errno.ELOOP | errno.ENOTDIR:
                return self._link(path) or self._not_a_folder(path)
            case errno.EACCES | errno.EPERM:
                return f"No permission for {name}."
            case errno.ENAMETOOLONG:
                return f"{name} is too long for a path."
            case errno.ENXIO | errno.EOPNOTSUPP:
                return f"{name} is not a regular file."
            case errno.EROFS:
                return f"{name} cannot be written: the file system is read-only."
            case errno.ENOSPC | errno.EDQUOT:
                return f"{name} cannot be written: no space is left."
            case _:
                return f"{name}: {error.strerror}."

    def _missing(self, path: str) -> str | ToolFailure:
        """Which part of `path` is missing, and a similar name that exists."""
        parts = path.split("/")
        for depth in range(len(parts)):
            folder = "/".join(parts[:depth]) or "."
            names = self._names(folder)
            if parts[depth] in names:
                continue
            missing = "/".join(parts[: depth + 1])
            where = "" if missing == path else f": there is no {quoted(missing)}"
            found = f"No file {quoted(path)}{where}."
            close = difflib.get_close_matches(parts[depth], names, n=1, cutoff=_LIKE)
            if close:
                return f"{found} Did you mean {quoted('/'.join([*parts[:depth], close[0]]))}?"
            advice = "Use list_dir or find_files to see what is there."
            return ToolFailure(f"{found} {advice}", shown=found)
        return f"No file {quoted(path)}: it is a link to nothing, or was just removed."

    def _names(self, folder: str) -> builtins.list[str]:
        names: builtins.list[str] = []
        with (
            suppress(OSError, ToolFailure),
            closing_fd(self._open(self._fd, folder, DIRECTORY, visit=_refuse_protected)) as fd,
            os.scandir(fd) as entries,
        ):
            for entry in entries:
                if not protected_name(entry.name):
                    names.append(entry.name)
                if len(names) == _MAX_HINT_NAMES:
                    break
        return names

    def _link(self, path: str) -> str | None:
        """A message that says which part of `path` is a link; None if no part is."""
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            link = "/".join(parts[:depth])
            try:
                target = os.readlink(link, dir_fd=self._fd)
            except OSError:
                continue
            rest = "/".join(parts[depth:])
            meant = inside(posixpath.join(posixpath.dirname(link), target, rest), self._root)
            if target.startswith("/") or meant is None:
                return f"{quoted(path)} leads outside the workspace."
            _refuse_protected(meant)
            if meant == path:
                return f"{quoted(path)} is a link to itself."
            return f"{quoted(link)} is a link; use {quoted(meant)} instead."
        return None

    def _not_a_folder(self, path: str) -> str | ToolFailure:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            try:
                os.close(self._open(self._fd, folder, TRAVERSE, visit=_refuse_protected))
            except (OSError, ToolFailure):
                return f"{quoted(folder)} is a file, so {quoted(path)} cannot exist."
        shown = f"{quoted(path)} is a file."
        return ToolFailure(f"{quoted(path)} is a file; use read_file.", shown=shown)


_EFFECTIVE = os.access in os.supports_effective_ids


def _refuse_protected(path: str) -> None:
    name = protected_name(path)
    if name is not None:
        raise ToolFailure(f"{quoted(path)} is off limits: file tools do not enter {quoted(name)}.")


def _regular(found: os.stat_result, path: str) -> os.stat_result:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise ToolFailure(f"{quoted(path)} is not a regular file.")
    return found


def _entries(fd: int, path: str) -> list[DirEntry]:
    found: list[tuple[str, DirEntry]] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if protected_name(entry.name):
                continue
            if len(found) == MAX_ENTRIES:
                found_many = f"{quoted(path)} has more than {MAX_ENTRIES:,} entries"
                raise ToolFailure(
                    f"{found_many}; use find_files with a pattern.", shown=f"{found_many}."
                )
            found.append((entry.name, _entry(entry)))
    found.sort(key=itemgetter(0))
    return [entry for _, entry in found]


def _entry(entry: os.DirEntry[str]) -> DirEntry:
    name = printable(entry.name)
    if entry.is_file(follow_symlinks=False):
        try:
            return DirEntry(name, "file", entry.stat(follow_symlinks=False).st_size)
        except OSError:
            return DirEntry(name, "file")
    if entry.is_dir(follow_symlinks=False):
        return DirEntry(name, "dir")
    return DirEntry(name, "link" if entry.is_symlink() else "other")
