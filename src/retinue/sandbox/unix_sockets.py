"""Finds named unix sockets of other programs: a network namespace does not block those in files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from retinue.errors import WorkspaceError

_LISTING = "/proc/net/unix"


def check_no_sockets(folders: Sequence[str]) -> None:
    """A monitor that ends a command when another program makes a socket in one of these folders."""
    if has_sockets(folders, if_unsure=False):
        raise WorkspaceError(
            "The command was ended: another program has made a socket among the files that it"
            " could see. Run it again: it will then have no unix sockets."
        )


def has_sockets(folders: Iterable[str], *, if_unsure: bool = True) -> bool:
    """Whether a program has a named unix socket in one of these folders.

    If that cannot be determined, the answer is `if_unsure`. Sockets of another network namespace
    (a container that shares the folder) are not seen.
    """
    try:
        with open(_LISTING, "rb") as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return if_unsure
    prefixes = tuple(f"{_realpath(folder)}/" for folder in folders)
    for line in lines:
        fields = line.split(None, 7)
        # An unnamed socket lacks this field; a name that begins with @ is not a file.
        if len(fields) == 8 and not fields[7].startswith(b"@"):
            path = _socket_path(fields[6].decode(), os.fsdecode(fields[7]))
            if if_unsure if path is None else path.startswith(prefixes):
                return True
    return False


@lru_cache(4096)
def _realpath(path: str) -> str:
    return os.path.realpath(path)


@lru_cache(4096)
def _socket_path(inode: str, name: str) -> str | None:
    """The path of a socket. A relative name is looked up from the folders of its programs."""
    if name.startswith("/"):
        return os.path.realpath(name)
    for folder in _working_folders(inode):
        path = os.path.realpath(os.path.join(folder, name))
        try:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                return path
        except OSError:
            continue
    return None


def _working_folders(inode: str) -> Iterator[str]:
    """The working directories of programs that have a socket open, as far as we may see."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with os.scandir(f"/proc/{pid}/fd") as listing:
                if any(os.readlink(entry.path) == f"socket:[{inode}]" for entry in listing):
                    yield os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            continue
