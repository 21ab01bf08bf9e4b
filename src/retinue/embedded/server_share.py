"""A share in the one server: as long as somebody has one, it goes on."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from retinue.embedded.serving import LOG, POLL_S, USERS, Address, locked, published
from retinue.errors import ProviderError

_TRIES = 3
_LAST_CHARS = 300


class Lease:
    """`command` starts a server in the background, and ends when there is one: with 0, or not."""

    def __init__(self, folder: Path, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._folder = folder
        self._command = command
        self._variables = variables
        self._users: int | None = None

    async def take(self, alive: Callable[[], None] = lambda: None) -> Address:
        """Where it is served; it is started if it is not. `alive` is called while that takes.

        ProviderError if it cannot be started.
        """
        try:
            await self._share(alive)
            for _ in range(_TRIES):
                if (address := published(self._folder)) is not None:
                    return address
                await self._start(alive)
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

    async def _share(self, alive: Callable[[], None]) -> None:
        if self._users is not None:
            return
        users = os.open(self._folder / USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not locked(users, fcntl.LOCK_SH):  # One is just ending.
                alive()
                await asyncio.sleep(POLL_S)
        except BaseException:
            os.close(users)
            raise
        self._users = users

    async def _start(self, alive: Callable[[], None]) -> None:
        with (self._folder / LOG).open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env=dict(self._variables),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            ended = asyncio.ensure_future(process.wait())
            while not (await asyncio.wait([ended], timeout=POLL_S))[0]:
                alive()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode != 0:
            raise self._failed()

    def _failed(self) -> ProviderError:
        with suppress(OSError):
            said = (self._folder / LOG).read_text("utf-8", "replace").strip()
            if said:
                return ProviderError(
                    f"The embedded model could not be started: …{said[-_LAST_CHARS:]}"
                )
        return ProviderError("The embedded model could not be started, and did not say why.")
