"""Confinement on macOS with `sandbox-exec`. Not tested on a Mac yet.

As for the other sandboxes, the self-test decides whether it is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from retinue.domain.grant import Access, Network
from retinue.domain.paths import PROTECTED_NAMES
from retinue.ports.sandbox import CommandResult, ShellCommand
from retinue.processes.child import ProcessSpec, kill_group
from retinue.processes.removal import remove_folder
from retinue.sandbox.command import run_in_process
from retinue.sandbox.toolchains import command_environment, toolchain_folders, venv_base_folders
from retinue.sandbox.writable_paths import closed_paths, writable_paths

_SYSTEM = ("/usr", "/bin", "/sbin", "/System", "/Library", "/opt", "/private/etc", "/dev")


class Seatbelt:
    """Tier reduced: files and network are confined; processes and memory are not."""

    tier = "reduced"
    relocates = False

    def __init__(self, environment: Mapping[str, str], *, readable: Sequence[str] = ()) -> None:
        self._environment = dict(environment)
        self._readable = tuple(readable)

    async def run(self, command: ShellCommand) -> CommandResult:
        return await run_in_process(self, command, self._environment)

    @contextlib.asynccontextmanager
    async def process(
        self, command: str, *, access: Access, environment: Mapping[str, str]
    ) -> AsyncIterator[ProcessSpec]:
        private = tempfile.mkdtemp(prefix="retinue-")
        try:
            profile = "\n".join(self._profile(access, private))
            yield ProcessSpec(
                argv=("/usr/bin/sandbox-exec", "-p", profile, "/bin/sh", "-c", command),
                environment=command_environment(
                    environment, access.root, home=private, temporary=private
                ),
                directory=access.root,
                stdin=subprocess.PIPE,
                kill_leftovers=kill_group,
            )
        finally:
            remove_folder(private)

    def _profile(self, access: Access, private: str) -> Iterator[str]:
        """The rules of sandbox-exec; later rules override earlier ones."""
        yield from ("(version 1)", "(deny default)", "(allow process*)", "(allow sysctl-read)")
        yield from ("(allow mach-lookup)", "(allow signal (target same-sandbox))")
        yield "(allow file-read-metadata)"
        shown = (
            *_SYSTEM,
            *toolchain_folders(self._environment),
            *venv_base_folders(access.root, self._environment.get("HOME", "")),
            *self._readable,
            *map(os.path.realpath, access.readable),
            access.root,
        )
        for path in shown:
            yield f"(allow file-read* (subpath {json.dumps(path)}))"
        yield '(allow file-write* (literal "/dev/null") (literal "/dev/tty"))'
        for path in (private, *writable_paths(access.root, access.write_scope)):
            yield f"(allow file-read* file-write* (subpath {json.dumps(path)}))"
        for name in sorted(PROTECTED_NAMES):
            yield f"(deny file-write* (subpath {json.dumps(f'{access.root}/{name}')}))"
        for path in closed_paths(access):
            yield f"(deny file-write* (subpath {json.dumps(path)}))"
            for folder in () if path == access.root else _folders_between(path, access.root):
                # A folder that is moved away takes the path along.
                yield f"(deny file-write-unlink (literal {json.dumps(folder)}))"
        if access.network is Network.ALL:
            yield "(allow network*)"


def _folders_between(path: str, root: str) -> Iterator[str]:
    """The folders that lead from `root` to `path`, without both."""
    while (path := os.path.dirname(path)) != root:
        yield path
