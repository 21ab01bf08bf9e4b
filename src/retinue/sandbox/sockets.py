"""Sockets of other programs that lie among files, where no network namespace keeps commands off."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache

_LISTING = "/proc/net/unix"


def sockets_in(places: Iterable[str]) -> bool:
    """Has a program of this machine a socket with a name in one of these folders?

    One that was named by a relative path may be anywhere, and counts. What is in another network
    namespace (a container that shares the folder) is not listed.
    """
    try:
        with open(_LISTING, "rb") as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return True
    folders = tuple(f"{_real(place)}/" for place in places)
    for line in lines:
        fields = line.split(None, 7)
        # Without a name there is no such field; one that begins with @ is no file.
        if len(fields) == 8 and not fields[7].startswith(b"@"):
            name = os.fsdecode(fields[7])
            if not name.startswith("/") or _real(name).startswith(folders):
                return True
    return False


@lru_cache(4096)
def _real(path: str) -> str:
    return os.path.realpath(path)
