"""Holds a command of bubblewrap back until its resource limits are set, and it would die with us.

Bubblewrap reports the pid of the process that will start the command, and waits for a byte. We set
the limits of that process, which the command inherits, and write the byte. The command's shell
waits for one more line, which we write when that process has asked the kernel to end it with its
parent. If we are killed before, the shell reads an end of file and exits: no command starts without
a process that can end it. If we are killed even before bubblewrap has mapped the user of its child,
that child waits for ever: an idle process of bubblewrap, without a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

import msgspec

from retinue.sandbox.limits import set_limits

_POLL_S = 0.002

SHELL_PREFIX = "read -r _ || exit; exec </dev/null; "
"""Goes before the command, on its first line, so that line numbers in errors stay right."""


class _Status(msgspec.Struct, rename="kebab"):
    child_pid: int


class StartBarrier:
    """`stdin`, `fds` and `options` are for bubblewrap; inside `opened` the command may start."""

    def __init__(self, stack: contextlib.AsyncExitStack, limits: dict[str, int]) -> None:
        self._limits = limits
        self._status = b""
        self._opened = False
        self._polling: asyncio.TimerHandle | None = None
        self.failure = ""
        self._status_fd, self._status_write_fd = os.pipe()
        self.stdin, go = os.pipe()
        self._go = stack.enter_context(os.fdopen(go, "wb", buffering=0))
        self._block_fd = os.dup(self.stdin)
        for fd in (self._status_fd, self._status_write_fd, self.stdin, self._block_fd):
            stack.callback(os.close, fd)
        os.set_blocking(self._status_fd, False)

    @property
    def fds(self) -> tuple[int, ...]:
        return (self._block_fd, self._status_write_fd)

    @property
    def options(self) -> tuple[str, ...]:
        return ("--block-fd", str(self._block_fd), "--json-status-fd", str(self._status_write_fd))

    @property
    def command_ended(self) -> bool:
        """Whether bubblewrap has reported an exit code. If not, the sandbox itself failed."""
        self._read_status()
        return not self.failure and b"exit-code" in self._status

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._status_fd, self._read_status)
        try:
            yield
        finally:
            loop.remove_reader(self._status_fd)
            if self._polling is not None:
                self._polling.cancel()

    def _read_status(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._status += os.read(self._status_fd, 4096)
        first, newline, _ = self._status.partition(b"\n")
        if self._opened or not newline:
            return
        self._opened = True
        try:
            pid = msgspec.json.decode(first, type=_Status).child_pid
            set_limits(pid, self._limits)
            before = _seccomp_filters(pid)
            self._go.write(b"\n")
        except (OSError, ValueError) as error:
            self.failure = f"resource limits cannot be set: {error}"
            self._go.close()
        else:
            self._release_shell(pid, before)

    def _release_shell(self, pid: int, before: int | None) -> None:
        """Let the shell start the command, as soon as process `pid` would die with its parent.

        Bubblewrap asks for that just before it installs its seccomp filter, which can be seen.
        """
        try:
            if before is None or _seccomp_filters(pid) != before:
                self._go.write(b"\n")
                return
        except OSError:
            return  # The process has ended, and so has the shell.
        loop = asyncio.get_running_loop()
        self._polling = loop.call_later(_POLL_S, self._release_shell, pid, before)


def _seccomp_filters(pid: int) -> int | None:
    """How many seccomp filters a process has; None if the kernel does not say (before 5.9)."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name == "Seccomp_filters":
                return int(value)
    return None
