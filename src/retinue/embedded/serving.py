"""One server of the embedded model for all processes of a user, coordinated by two lock files.

The kernel releases a lock however its process ends. The server holds SERVER_LOCK exclusively, and
ADDRESS_FILE is valid while it does. Every user of the server holds USERS_LOCK shared. A server that
gets USERS_LOCK exclusively has no users and will get none, so it can end: a process that comes then
waits for the lock and starts the next server.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from retinue.errors import EndpointUnusable
from retinue.processes.child import ProcessSpec, child_process

SERVER_LOCK = "serving.lock"
USERS_LOCK = "users.lock"
ADDRESS_FILE = "address.json"
LOG_FILE = "server.log"
PROBLEM = "retinue: "
"""Begins the last line of a start that failed for a reason that is known."""

POLL_S = 0.05
IDLE_POLL_S = 0.5
_TRIES = 3
_LAST_CHARS = 300


class RunningServer(msgspec.Struct, frozen=True, kw_only=True):
    """Address of a server. The key keeps out other users of the machine."""

    url: str
    key: str
    pid: int

    def __repr__(self) -> str:
        return f"Address(url={self.url!r}, pid={self.pid})"


def running_server(folder: Path) -> RunningServer | None:
    """The server that runs now; None if there is none, or none yet."""
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
    """Start a server, and return when it had no users for `idle_s`, or when another one runs.

    `ready` is called as soon as a server has published its address.
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
            # The end of the process releases both locks.
            (folder / ADDRESS_FILE).unlink(missing_ok=True)
            return


def try_lock(file: int, kind: int) -> bool:
    """Take a lock without waiting. Return whether that succeeded."""
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


class ServerShare:
    """A share of one process. `command` starts a server in the background, and exits with 0."""

    def __init__(self, folder: Path, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._folder = folder
        self._command = command
        self._variables = variables
        self._users: int | None = None

    async def acquire(self, on_wait: Callable[[], None] = lambda: None) -> RunningServer:
        """Return the running server, and start one if there is none.

        `on_wait` is called repeatedly meanwhile. EndpointUnusable if it cannot be started.
        """
        try:
            with suppress(FileExistsError):
                self._folder.mkdir(parents=True)
            await self._lock_users(on_wait)
            for _ in range(_TRIES):
                if (address := running_server(self._folder)) is not None:
                    return address
                await self._start(on_wait)
        except OSError as error:
            raise EndpointUnusable(
                f"The embedded model cannot be served from {self._folder}: {error.strerror}. Set"
                " XDG_CACHE_HOME to a folder that you can write to."
            ) from error
        raise self._failed()

    def release(self) -> None:
        if self._users is not None:
            os.close(self._users)
            self._users = None

    async def _lock_users(self, on_wait: Callable[[], None]) -> None:
        if self._users is not None:
            return
        users = os.open(self._folder / USERS_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not try_lock(users, fcntl.LOCK_SH):  # A server is just ending.
                on_wait()
                await asyncio.sleep(POLL_S)
        except BaseException:
            os.close(users)
            raise
        self._users = users

    async def _start(self, on_wait: Callable[[], None]) -> None:
        with (self._folder / LOG_FILE).open("wb") as log:
            spec = ProcessSpec(argv=self._command, environment=self._variables)
            async with child_process(spec, stdout=log.fileno(), stderr=log.fileno()) as starter:
                await starter.wait(monitors=[on_wait], every_s=POLL_S)
        if starter.exit_code != 0:
            raise self._failed()

    def _failed(self) -> EndpointUnusable:
        with suppress(OSError):
            log_text = (self._folder / LOG_FILE).read_text("utf-8", "replace").strip()
            last = log_text.rpartition("\n")[2]
            if last.startswith(PROBLEM):
                return EndpointUnusable(last.removeprefix(PROBLEM))
            if log_text:
                return EndpointUnusable(
                    f"The embedded model could not be started: …{log_text[-_LAST_CHARS:]}"
                )
        return EndpointUnusable("The embedded model could not be started, and gave no reason.")
