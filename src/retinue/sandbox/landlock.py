"""Confinement by Landlock and seccomp, for where there are no namespaces: in most containers."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache

from retinue.domain.grant import Network
from retinue.domain.reach import Reach
from retinue.domain.scope import NOWHERE
from retinue.errors import ToolFailure, WorkspaceError
from retinue.ports import Completed
from retinue.sandbox import launcher
from retinue.sandbox.limits import Limits
from retinue.sandbox.openings import CLOSED, openings
from retinue.sandbox.process import run_process
from retinue.sandbox.seccomp import families_for, program
from retinue.sandbox.system import etc, programs
from retinue.sandbox.toolchains import homes, toolchains

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_SCOPED_SINCE, _WRITES_SINCE = 6, 3


@cache
def abi() -> int:
    """The version of Landlock that this kernel has; 0 for none."""
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return 0
    return max(0, int(syscall(ctypes.c_long(444), None, 0, 1)))


class Landlock:
    """Tier reduced: files, signals and system calls are confined; see `LEAKS` for what is not.

    A supervisor runs each command, and kills all that is left of it when it ends, when we ask for
    it, and when we die.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        limits: Limits | None = None,
        readable: Sequence[str] = (),
    ) -> None:
        """`environment` is all that commands get to see; `readable` are more folders to show."""
        self._outside = dict(environment)
        self._limits = limits or Limits()
        self._readable = tuple(readable)

    @property
    def tier(self) -> str:
        return "reduced"

    async def run(
        self, command: str, *, reach: Reach, timeout_s: float, max_output_bytes: int
    ) -> Completed:
        """Run a shell command. A non-zero exit is a result, never an exception."""
        if "\0" in command:
            raise ToolFailure("The command holds a NUL, which no command can.")
        if reach.write_scope != NOWHERE and abi() < _WRITES_SINCE:
            raise WorkspaceError(
                f"Landlock {abi()} of this kernel cannot confine writing; it needs Linux 6.2."
            )
        private = tempfile.mkdtemp(prefix="retinue-")
        try:
            done = await run_process(
                (
                    sys.executable,
                    "-I",
                    "-S",
                    launcher.__file__,
                    self._order(command, reach, private),
                ),
                directory="/",
                environment={},
                kill=_ask,
                timeout_s=timeout_s,
                max_output_bytes=max_output_bytes,
            )
        finally:
            shutil.rmtree(private, ignore_errors=True)
        if done.exit_code == launcher.FAILED and "sandbox failed: " in done.output:
            raise WorkspaceError(
                f"{done.output.strip().rpartition(chr(10))[2]}. See `retinue doctor`."
            )
        return done

    def _order(self, command: str, reach: Reach, private: str) -> str:
        shown = [*programs(), *etc(), *toolchains(self._outside, reach.root)]
        if reach.network is Network.ALL:
            shown.append("/etc/resolv.conf")
        return json.dumps(
            {
                "command": command,
                "directory": reach.root,
                "parent": os.getpid(),
                "scoped": abi() >= _SCOPED_SINCE,
                "network": reach.network is Network.ALL,
                "environment": {
                    **{k: v for k, v in self._outside.items() if k != "SHELL"},
                    **homes(self._outside),
                    "HOME": private,
                    "TMPDIR": private,
                },
                "read": [*map(os.path.realpath, shown), "/proc", *self._readable, reach.root],
                "devices": _DEVICES,
                "write": [private, *_writable(reach)],
                "limits": self._limits.of_a_process(),
                "filter": program(families=families_for(reach.network, namespaced=False)).hex(),
            }
        )


def _writable(reach: Reach) -> list[str]:
    found = openings(reach.root, reach.write_scope)
    names = os.listdir(reach.root)
    if found != [reach.root] or not any(name.casefold() in CLOSED for name in names):
        return found
    # Landlock can only add rights below, so what is closed must not be below what is opened. That a
    # command makes no new names in the root itself is the price; the file tools can.
    return [os.path.join(reach.root, n) for n in names if n.casefold() not in CLOSED]


def _ask(pid: int) -> None:
    """Have the supervisor bury everything; it is gone in a moment, or was already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)
