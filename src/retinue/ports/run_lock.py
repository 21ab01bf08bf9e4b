"""Which process works on a run, and messages to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class RunLock(Protocol):
    """Where the process that works on a run is reached."""

    def heard(self) -> Sequence[str]:
        """What others have said since this was asked last."""
        ...

    def leave(self) -> None: ...


class RunLocks(Protocol):
    """Who works on which run, of all processes that share a journal."""

    def take(self, run_id: str) -> RunLock:
        """Be the one who works on that run, for as long as this process lives or until it leaves.

        RunError if a living process does already. Where it cannot be made known who does, the post
        hears nothing, and the journal alone keeps a second one out.
        """
        ...

    def held(self, run_id: str) -> bool:
        """Does a living process work on that run?"""
        ...

    def send(self, run_id: str, words: str) -> bool:
        """Say a line to the process that works on a run; False if there is none."""
        ...
