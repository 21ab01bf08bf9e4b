"""Opening a path beneath a directory safely, while other processes change the tree.

Two functions have one contract. `open_with_openat2` lets the kernel resolve the path;
`open_by_walking` goes from descriptor to descriptor with O_NOFOLLOW and works everywhere. Neither
checks a path first and opens it afterwards, since its meaning can change in between.

Links are always resolved by walking, even where `openat2` could resolve them: a link may lead to a
protected name, and only a walk sees each name. `openat2` serves the usual case, a path without
links, in one call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_long, c_size_t
from functools import cache
from typing import Protocol

# An opened file must not block, become our terminal, or be inherited by a command.
SAFE_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
READ = os.O_RDONLY | SAFE_FLAGS
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | SAFE_FLAGS
# Traversing a directory needs no permission to list it.
TRAVERSE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC

_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE_CACHED = 0x20
_RESOLVE = _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS
_MAX_LINKS = 40
# One descriptor is held for each level while links are followed.
_MAX_DEPTH = 256

OnPath = Callable[[str], None]


class Opener(Protocol):
    def __call__(self, root_fd: int, path: str, flags: int, *, visit: OnPath | None = None) -> int:
        """Open `path`, which has no `..`, beneath the directory `root_fd`. OSError if that fails.

        Without `visit` a link anywhere in the path is an ELOOP. With `visit`, links are followed
        and `visit` is called with each path on the way, from the root and without links above it
        (it may raise); a link that leads outside is an EXDEV.
        """
        ...


def open_by_walking(root_fd: int, path: str, flags: int, *, visit: OnPath | None = None) -> int:
    try:
        return _walk(root_fd, path, flags, None)
    except OSError as error:
        if error.errno != errno.ELOOP or visit is None:
            raise
    return _walk(root_fd, path, flags, visit)


def _walk(root_fd: int, path: str, flags: int, visit: OnPath | None) -> int:
    pending = path.split("/")[::-1]
    held: list[int] = []
    names: list[str] = []
    links = 0
    try:
        while True:
            name = pending.pop()
            if name == "..":
                # Back to the directory we came from; `..` on disk may mean another one by now.
                if not held:
                    raise _os_error(errno.EXDEV, path)
                os.close(held.pop())
                names.pop()
            if name in ("", ".", ".."):
                if pending:
                    continue
                name = "."
            elif visit is not None:
                visit("/".join([*names, name]))
            here = held[-1] if held else root_fd
            try:
                if not pending:
                    return os.open(name, flags | os.O_NOFOLLOW, dir_fd=here)
                below = os.open(name, TRAVERSE | os.O_NOFOLLOW, dir_fd=here)
            except OSError as error:
                target = _link_target(error, name, here)
                if target is None:
                    raise
                links += 1
                if visit is None or links > _MAX_LINKS:
                    raise _os_error(errno.ELOOP, path) from None
                if target.startswith("/"):
                    raise _os_error(errno.EXDEV, path) from None
                pending.extend(reversed(target.split("/")))
            else:
                # Only a link can lead back up; without links the parents are not needed again.
                if visit is None and held:
                    os.close(held.pop())
                    names.pop()
                held.append(below)
                names.append(name)
                if len(held) > _MAX_DEPTH:
                    raise _os_error(errno.ENAMETOOLONG, path)
    finally:
        for fd in held:
            os.close(fd)


def open_with_openat2(root_fd: int, path: str, flags: int, *, visit: OnPath | None = None) -> int:
    how = _open_how(flags)
    while True:
        fd = _syscall()(_OPENAT2, root_fd, os.fsencode(path), how, len(how))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number == errno.ELOOP and visit is not None:
            return _walk(root_fd, path, flags, visit)
        if number not in (errno.EINTR, errno.EAGAIN):
            raise _os_error(number, path)


def open_if_cached(root_fd: int, path: str, flags: int) -> int | None:
    """Open a path without links if the kernel can resolve it from memory; otherwise None."""
    how = _open_how(flags, _RESOLVE | _RESOLVE_CACHED)
    # Every file system encoding is the same for ASCII, and this is faster.
    name = path.encode() if path.isascii() else os.fsencode(path)
    fd = _syscall_holding_gil()(_OPENAT2, root_fd, name, how, len(how))
    return fd if fd >= 0 else None


@cache
def best_opener() -> Opener:
    """`open_with_openat2` if the kernel has it and allows it, otherwise `open_by_walking`."""
    if not sys.platform.startswith("linux"):
        return open_by_walking
    here = os.open("/", TRAVERSE)
    try:
        os.close(open_with_openat2(here, ".", TRAVERSE))
    except OSError:
        # ENOSYS before Linux 5.6; EPERM from the seccomp profile of an older container engine.
        return open_by_walking
    finally:
        os.close(here)
    return open_with_openat2


def _link_target(error: OSError, name: str, dir_fd: int) -> str | None:
    """The target of the link that made an open fail; None if there was another reason."""
    # With O_DIRECTORY, a link is reported as "not a directory".
    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
        return None
    try:
        return os.readlink(name, dir_fd=dir_fd)
    except OSError:
        return None


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


@cache
def _open_how(flags: int, resolve: int = _RESOLVE) -> bytes:
    return struct.pack("=QQQ", flags, 0, resolve)


@cache
def _syscall() -> Callable[..., int]:
    return _typed_syscall(ctypes.CDLL(None, use_errno=True))


@cache
def _syscall_holding_gil() -> Callable[..., int]:
    """The same, but without releasing the interpreter lock: for a call that never blocks.

    Releasing the lock and taking it again takes longer than the call.
    """
    return _typed_syscall(ctypes.PyDLL(None))


def _typed_syscall(library: ctypes.CDLL) -> Callable[..., int]:
    syscall = library.syscall
    syscall.restype = c_long
    syscall.argtypes = (c_long, c_int, c_char_p, c_char_p, c_size_t)
    return syscall


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)
