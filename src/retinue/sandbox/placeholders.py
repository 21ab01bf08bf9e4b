"""Makes paths exist while a command runs, since a mount or a Landlock rule needs an existing path.

The paths are made without following links, and removed after the command if it wrote nothing there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator

# The number of running commands that need each path made here, and the time each file was made.
_users: Counter[str] = Counter()
_made_files: dict[str, int] = {}


@contextlib.contextmanager
def placeholders(root: str, folders: Iterable[str], files: Iterable[str] = ()) -> Iterator[None]:
    """Make these paths, relative to `root`, and the folders that lead to them, where missing."""
    held: list[str] = []
    try:
        for path in folders:
            _hold(root, path, held, is_file=False)
        for path in files:
            _hold(root, path, held, is_file=True)
        yield
    finally:
        for path in reversed(held):
            _release(path)


def _hold(root: str, path: str, held: list[str], *, is_file: bool) -> None:
    parts = path.split("/")
    here = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for depth, name in enumerate(parts, 1):
            at = os.path.join(root, *parts[:depth])
            is_last = depth == len(parts)
            if _make(name, here, at, is_file=is_file and is_last) or at in _users:
                _users[at] += 1
                held.append(at)
            if not is_last:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                below = os.open(name, flags, dir_fd=here)
                os.close(here)
                here = below
    except OSError:
        pass  # The command then finds the path as it is.
    finally:
        os.close(here)


def _make(name: str, folder: int, at: str, *, is_file: bool) -> bool:
    """Make a file or a folder; False if the name is taken."""
    with contextlib.suppress(FileExistsError):
        if not is_file:
            os.mkdir(name, dir_fd=folder)
            return True
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o666, dir_fd=folder)
        _made_files[at] = os.fstat(fd).st_mtime_ns
        os.close(fd)
        return True
    return False


def _release(path: str) -> None:
    _users[path] -= 1
    if _users[path]:
        return
    del _users[path]
    made = _made_files.pop(path, None)
    with contextlib.suppress(OSError):
        if made is None:
            os.rmdir(path)  # Fails if something is in it.
            return
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode) and (found.st_size, found.st_mtime_ns) == (0, made):
            os.unlink(path)
