"""Sockets of other programs that lie among files, where no network namespace keeps commands off."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from retinue.errors import WorkspaceError

_LISTING = "/proc/net/unix"


class SocketMonitor:
    """That nobody puts a socket into one of these folders while a command can speak to it."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = places

    def check(self) -> None:
        """Raise WorkspaceError when somebody has. The next command gets no such sockets."""
        if has_sockets(self._places, if_unsure=False):
            raise WorkspaceError(
                "The command was ended: another program has made a socket among the files that it"
                " could see. Run it again: it will have no unix sockets then."
            )


def has_sockets(places: Iterable[str], *, if_unsure: bool = True) -> bool:
    """Has a program of this machine a socket with a name in one of these folders?

    Where that cannot be told, the answer is `if_unsure`. What is in another network namespace (a
    container that shares the folder) is not listed.
    """
    try:
        with open(_LISTING, "rb") as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return if_unsure
    folders = tuple(f"{_realpath(place)}/" for place in places)
    for line in lines:
        fields = line.split(None, 7)
        # Without a name there is no such field; one that begins with @ is no file.
        if len(fields) == 8 and not fields[7].startswith(b"@"):
            path = _socket_path(fields[6].decode(), os.fsdecode(fields[7]))
            if if_unsure if path is None else path.startswith(folders):
                return True
    return False


@lru_cache(4096)
def _realpath(path: str) -> str:
    return os.path.realpath(path)


@lru_cache(4096)
def _socket_path(inode: str, name: str) -> str | None:
    """Where a socket is. One that was named from where its program was is looked for there."""
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
    """Where the programs are that have a socket open, as far as we may look."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with os.scandir(f"/proc/{pid}/fd") as listing:
                if any(os.readlink(entry.path) == f"socket:[{inode}]" for entry in listing):
                    yield os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            continue
