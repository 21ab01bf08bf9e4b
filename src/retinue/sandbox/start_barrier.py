"""What holds a command of bubblewrap's back until all that is to hold it is in place.

Bubblewrap tells the number of the process that is to start the command, waits for a byte, and goes
on. By then that process has its limits, and what it starts inherits them. The command's shell
waits for the rest of the line: if we are killed before there is one it ends, so that no command
begins which nobody is there to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

import msgspec

from retinue.sandbox.limits import set_limits

SHELL_PREFIX = "read -r _ || exit; exec </dev/null; "
"""For the command's shell, on the first line: those after it keep their numbers."""


class _Status(msgspec.Struct, rename="kebab"):
    child_pid: int


class StartBarrier:
    """`stdin` and `fds` are for bubblewrap, with `options`; open while one stands in it."""

    def __init__(self, held: contextlib.AsyncExitStack, limits: dict[str, int]) -> None:
        self._limits = limits
        self._said = b""
        self._opened = False
        self.failure = ""
        self._told, self._telling = os.pipe()
        self.stdin, go = os.pipe()
        self._go = held.enter_context(os.fdopen(go, "wb", buffering=0))
        self._blocked = os.dup(self.stdin)
        for fd in (self._told, self._telling, self.stdin, self._blocked):
            held.callback(os.close, fd)
        os.set_blocking(self._told, False)

    @property
    def fds(self) -> tuple[int, ...]:
        return (self._blocked, self._telling)

    @property
    def options(self) -> tuple[str, ...]:
        return ("--block-fd", str(self._blocked), "--json-status-fd", str(self._telling))

    @property
    def command_ended(self) -> bool:
        """Has bubblewrap told how the command ended? If not, it is the sandbox that did."""
        self._hear()
        return not self.failure and b"exit-code" in self._said

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._told, self._hear)
        try:
            yield
        finally:
            loop.remove_reader(self._told)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._said += os.read(self._told, 4096)
        first, whole, _ = self._said.partition(b"\n")
        if self._opened or not whole:
            return
        self._opened = True
        try:
            set_limits(msgspec.json.decode(first, type=_Status).child_pid, self._limits)
            self._go.write(b"\n\n")
        except (OSError, ValueError) as error:
            self.failure = f"no limits can be set: {error}"
            self._go.close()
