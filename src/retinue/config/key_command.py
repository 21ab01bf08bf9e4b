"""Keys that a command prints, for providers whose keys last an hour."""

from __future__ import annotations

import asyncio
import shlex

from retinue.config.environment import Environment
from retinue.errors import ConfigError
from retinue.executables import path_outside
from retinue.processes.child import ProcessSpec, run_process

_TIMEOUT_S = 30.0
_MAX_OUTPUT_BYTES = 64 * 1024
_SHOWN_CHARS = 200


class KeyCommand:
    """Runs the user's command, and keeps the key that it prints until a server refuses the key.

    The command runs without a shell, in the home directory, with the user's variables. Its PATH
    has no folders inside `project`, where agents may write programs.
    """

    def __init__(self, command: str, environment: Environment, project: str) -> None:
        self._command = command
        self._environment = environment
        self._project = project
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
                self._key = await self._run()
            return self._key

    async def _run(self) -> str:
        variables, home = dict(self._environment.variables), str(self._environment.home)
        if "PATH" in variables:
            variables["PATH"] = path_outside(self._project, variables["PATH"], home=home)
        try:
            done = await run_process(
                ProcessSpec(argv=shlex.split(self._command), environment=variables, directory=home),
                timeout_s=_TIMEOUT_S,
                max_output_bytes=_MAX_OUTPUT_BYTES,
                errors_apart=True,
            )
        except (OSError, ValueError) as error:
            raise self._failed(f"cannot be run: {error}") from None
        if done.timed_out:
            raise self._failed(f"did not end within {_TIMEOUT_S:g} s")
        if done.exit_code:
            said = " ".join(done.errors.split())[-_SHOWN_CHARS:]
            raise self._failed(f"ended with {done.exit_code}{f': {said}' if said else ''}")
        key = done.output.strip()
        if not key or not key.isascii() or not key.isprintable():
            raise self._failed("printed no key on its standard output")
        return key

    def _failed(self, why: str) -> ConfigError:
        return ConfigError(
            f"The key_command {self._command!r} {why.rstrip('.')}. Correct key_command under"
            ' [servers."ADDRESS"] in your settings, or log in to the provider.'
        )
