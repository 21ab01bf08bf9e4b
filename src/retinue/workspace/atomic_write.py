"""Replacing a file atomically: readers see the old content or the new, never a part of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat

from retinue.workspace.safe_open import DIRECTORY, SAFE_FLAGS, TRAVERSE, Opener

_PREFIX, _SUFFIX = ".retinue-", ".tmp"


def read_regular(fd: int, max_bytes: int) -> bytes | None:
    """All bytes of an open file; None if there are more than `max_bytes`, whatever stat says."""
    chunks: list[bytes] = []
    left = max_bytes + 1
    while left > 0:
        # Small files take two calls; a huge sparse file is never requested at once.
        chunk = os.read(fd, min(left, 1 << 16 if not chunks else 1 << 20))
        if not chunk:
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.append(chunk)
        left -= len(chunk)
    return None


def replace_file(directory_fd: int, name: str, data: bytes, like: os.stat_result | None) -> None:
    """Write `data` to `name`, with the mode and owner of `like`, the file that it replaces."""
    temporary = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | SAFE_FLAGS
    fd = os.open(temporary, flags, 0o666, dir_fd=directory_fd)
    try:
        try:
            if like is not None:
                copy_owner_and_mode(fd, like)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except BaseException:
        os.unlink(temporary, dir_fd=directory_fd)
        raise


def remove_leftovers(directory_fd: int) -> None:
    """Remove temporary files of processes that were killed during `replace_file`."""
    # Opened again: `directory_fd` may be for traversal only, which cannot be listed.
    listed = os.open(".", DIRECTORY, dir_fd=directory_fd)
    try:
        names = os.listdir(listed)
    finally:
        os.close(listed)
    for name in names:
        if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
            pid = name.removeprefix(_PREFIX).partition("-")[0]
            if pid.isdecimal() and not _is_alive(int(pid)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory_fd)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def copy_owner_and_mode(fd: int, like: os.stat_result) -> None:
    """Give an open file the owner and the mode of another."""
    own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
        # Only root can change the owner; otherwise the new file belongs to the writer.
        with contextlib.suppress(PermissionError):
            os.fchown(fd, like.st_uid, like.st_gid)
    # Without set-uid bits: new content must not get the old file's privileges.
    os.fchmod(fd, stat.S_IMODE(like.st_mode) & 0o777)


def open_or_make_folder(opening: Opener, root_fd: int, folder: str) -> int:
    """Open a folder beneath the root; missing folders are made. A link on the way is an error."""
    try:
        return opening(root_fd, folder, TRAVERSE)
    except FileNotFoundError:
        here = os.dup(root_fd)
    for name in folder.split("/"):
        try:
            # The folder may exist, or another process may make it at this moment.
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=here)
            below = opening(here, name, TRAVERSE)
        finally:
            os.close(here)
        here = below
    return here
