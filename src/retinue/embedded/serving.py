"""One server for all processes of a user: who serves, where, and until when.

Two locked files say all of it, since the kernel lets go of a lock whatever becomes of its process.
The server holds SERVING alone; what ADDRESS says is true while somebody does. Everybody who uses it
has a share of USERS. A server that gets USERS for itself, and keeps it, has no users and will get
none, so that it can end: who comes then waits, and starts the next one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

SERVER_LOCK = "serving.lock"
USERS_LOCK = "users.lock"
ADDRESS_FILE = "address.json"
LOG_FILE = "server.log"

POLL_S = 0.05
IDLE_POLL_S = 0.5


class RunningServer(msgspec.Struct, frozen=True, kw_only=True):
    """Where it is served. The key keeps other users of the machine out."""

    url: str
    key: str
    pid: int

    def __repr__(self) -> str:
        return f"Address(url={self.url!r}, pid={self.pid})"


def running_server(folder: Path) -> RunningServer | None:
    """Where the model is served now; None if nobody serves it, or not yet."""
    try:
        data = (folder / ADDRESS_FILE).read_bytes()
        with (folder / SERVER_LOCK).open("rb") as file:
            if try_lock(file.fileno(), fcntl.LOCK_SH):
                return None
        return msgspec.json.decode(data, type=RunningServer)
    except (OSError, msgspec.DecodeError):
        return None


def serve(
    folder: Path, start: Callable[[], RunningServer], *, ready: Callable[[], None], idle_s: float
) -> None:
    """Start a server and wait until it has had no users for `idle_s`; or find that there is one.

    `ready` is called when there is an address.
    """
    serving = os.open(folder / SERVER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    users = os.open(folder / USERS_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while not try_lock(serving, fcntl.LOCK_EX):
        if running_server(folder) is not None:
            ready()
            return
        time.sleep(POLL_S)
    (folder / ADDRESS_FILE).unlink(missing_ok=True)
    _publish(folder, start())
    ready()
    idle_since = time.monotonic()
    while True:
        time.sleep(IDLE_POLL_S)
        if not try_lock(users, fcntl.LOCK_EX):
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since < idle_s:
            fcntl.flock(users, fcntl.LOCK_UN)
        else:
            # Both locks go with the process.
            (folder / ADDRESS_FILE).unlink(missing_ok=True)
            return


def try_lock(file: int, kind: int) -> bool:
    """Take a lock if that can be had at once."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _publish(folder: Path, address: RunningServer) -> None:
    path = folder / f"{ADDRESS_FILE}.new"
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(msgspec.json.encode(address))
    os.replace(path, folder / ADDRESS_FILE)
