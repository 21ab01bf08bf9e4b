"""Keys that a command prints, for providers whose keys last an hour."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess

from retinue.config.environment import Environment
from retinue.errors import ConfigError
from retinue.programs import path_outside

_TIMEOUT_S = 30.0
_SHOWN_CHARS = 200


class KeyCommand:
    """Runs the user's command, and keeps the key that it prints until a server refuses the key.

    The command runs without a shell, in the home directory, with the user's variables. Its PATH
    has no folders inside the current directory, where agents may write programs.
    """

    def __init__(self, command: str, environment: Environment) -> None:
        self._command = command
        self._environment = environment
        self._key: str | None = None
        self._lock: asyncio.Lock | None = None

    def __repr__(self) -> str:
        return f"KeyCommand({self._command!r})"

    async def key(self, refused: str | None = None) -> str:
        """The key; a new one if the last is `refused`. Raises ConfigError if the command fails."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if self._key is None or self._key == refused:
                self._key = await asyncio.to_thread(self._run)
            return self._key

    def _run(self) -> str:
        variables, home = dict(self._environment.variables), str(self._environment.home)
        if "PATH" in variables:
            variables["PATH"] = path_outside(os.curdir, variables["PATH"], home=home)
        try:
            done = subprocess.run(
                shlex.split(self._command),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                cwd=home,
                env=variables,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self._failed(f"did not end within {_TIMEOUT_S:g} s") from None
        except (OSError, ValueError) as error:
            raise self._failed(f"cannot be run: {error}") from None
        if done.returncode:
            said = " ".join(done.stderr.decode("utf-8", "replace").split())[-_SHOWN_CHARS:]
            raise self._failed(f"ended with {done.returncode}{f': {said}' if said else ''}")
        key = done.stdout.decode("utf-8", "replace").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise self._failed("printed no key on its standard output")
        return key

    def _failed(self, why: str) -> ConfigError:
        return ConfigError(
            f"The key_command {self._command!r} {why.rstrip('.')}. Correct key_command under"
            ' [servers."ADDRESS"] in your settings, or log in to the provider.'
        )
