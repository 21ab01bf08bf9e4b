"""Runs commands in a sandbox, to attack it from the inside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from retinue.domain.grant import Access, Network
from retinue.domain.scope import NOWHERE, Scope
from retinue.ports.sandbox import CommandResult, Sandbox, ShellCommand
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.sandbox.landlock import Landlock

UNCHANGED = "as it was\n"
"""Content of `outside/writable` and of `src/a.py` in the workspace, which no attack may change."""

ATTEMPT = """
import ctypes, fcntl, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, act, *arguments):
    try:
        found = act(*arguments)
    except OSError:
        return
    if not isinstance(found, int) or found >= 0:
        print("escaped", name)
"""
"""Beginning of an attack in Python: `attempt` prints `escaped` if a call succeeds."""


def try_all(commands: Sequence[str], **values: object) -> str:
    """A shell script that runs all commands, and prints `tried N` after each."""
    lines = (
        f"({command.format(**values)}) </dev/null\necho tried {number}"
        for number, command in enumerate(commands, 1)
    )
    return "\n".join(lines)


def with_environment(sandbox: Sandbox, environment: Mapping[str, str]) -> Sandbox:
    """A sandbox of the same kind for another user's environment."""
    if isinstance(sandbox, Bubblewrap):
        bwrap = shutil.which("bwrap")
        assert bwrap is not None
        return Bubblewrap(environment, bwrap=bwrap)
    return Landlock(environment)


class SandboxProbe(msgspec.Struct, frozen=True):
    """A sandbox, a workspace in it, and a folder outside that nothing in it may touch."""

    sandbox: Sandbox
    root: Path
    outside: Path

    @property
    def full(self) -> bool:
        return self.sandbox.tier == "full"

    @property
    def unchanged(self) -> bool:
        """Whether no command has changed the files outside of the write scope."""
        return (
            (self.outside / "writable").read_text() == UNCHANGED
            and sorted(os.listdir(self.outside)) == ["secret", "writable"]
            and (self.root / "src" / "a.py").read_text() == UNCHANGED
        )

    async def run(
        self,
        command: str,
        *,
        write: Scope = NOWHERE,
        network: Network = Network.NONE,
        timeout_s: float = 60,
        max_output_bytes: int = 20_000,
    ) -> CommandResult:
        return await self.sandbox.run(
            ShellCommand(
                command,
                access=Access(root=str(self.root), write_scope=write, network=network),
                timeout_s=timeout_s,
                max_output_bytes=max_output_bytes,
            )
        )

    async def python(
        self,
        code: str,
        *,
        write: Scope = NOWHERE,
        network: Network = Network.NONE,
        timeout_s: float = 60,
    ) -> CommandResult:
        """Write a Python program to the workspace and run it."""
        (self.root / "attack.py").write_text(code)
        return await self.run(
            "python3 attack.py", write=write, network=network, timeout_s=timeout_s
        )
