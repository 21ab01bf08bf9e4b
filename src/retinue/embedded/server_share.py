"""A share in the user's server of the embedded model. The server runs while a share is held."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from retinue.embedded.serving import (
    LOG_FILE,
    POLL_S,
    USERS_LOCK,
    RunningServer,
    running_server,
    try_lock,
)
from retinue.errors import ProviderError
from retinue.processes.child import ProcessSpec, child_process

_TRIES = 3
_LAST_CHARS = 300


class ServerShare:
    """A share of one process. `command` starts a server in the background, and exits with 0."""

    def __init__(self, folder: Path, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._folder = folder
        self._command = command
        self._variables = variables
        self._users: int | None = None

    async def acquire(self, on_wait: Callable[[], None] = lambda: None) -> RunningServer:
        """Return the running server, and start one if there is none.

        `on_wait` is called repeatedly meanwhile. ProviderError if it cannot be started.
        """
        try:
            await self._lock_users(on_wait)
            for _ in range(_TRIES):
                if (address := running_server(self._folder)) is not None:
                    return address
                await self._start(on_wait)
        except OSError as error:
            raise ProviderError(
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

    def _failed(self) -> ProviderError:
        with suppress(OSError):
            said = (self._folder / LOG_FILE).read_text("utf-8", "replace").strip()
            if said:
                return ProviderError(
                    f"The embedded model could not be started: …{said[-_LAST_CHARS:]}"
                )
        return ProviderError("The embedded model could not be started, and gave no reason.")
