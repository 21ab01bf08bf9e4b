"""Locks on runs: one process works on a run, and other processes send messages to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class RunLock(Protocol):
    """Held by the process that works on a run. Other processes send messages to it."""

    def received(self) -> Sequence[str]:
        """The messages that arrived since the last call."""
        ...

    def release(self) -> None: ...


class RunLocks(Protocol):
    """The locks on runs, shared by all processes that use one journal."""

    def acquire(self, run_id: str) -> RunLock:
        """Lock a run until the lock is released or this process ends.

        RunError if a living process holds the lock. Where the file system has no locks, the result
        receives no messages, and the journal alone keeps a second process out.
        """
        ...

    def is_held(self, run_id: str) -> bool:
        """Does a living process hold the lock?"""
        ...

    def send(self, run_id: str, message: str) -> bool:
        """Send a line to the process that holds the lock; False if there is none."""
        ...
