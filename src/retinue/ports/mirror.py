"""Mirrors: the commits of a project on a machine that does not see its disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from retinue.ports.file_tree import WorkingCopy


class Mirror(Protocol):
    """The commits of one project on this machine. Failures raise WorkspaceError."""

    async def has(self, commits: Sequence[str]) -> bool:
        """Whether the commits are here."""
        ...

    async def received(self) -> Sequence[str]:
        """The commits that bundles brought, the last first."""
        ...

    def locked(self) -> AbstractAsyncContextManager[None]:
        """Hold the lock under which bundles are asked for, so that each is asked for once."""
        ...

    async def store(self, path: str) -> None:
        """Store the commits of a bundle."""
        ...

    async def store_history(self, path: str) -> None:
        """Store the commits of a bundle, and their names as those that the user has given."""
        ...

    async def history(self) -> Mapping[str, str]:
        """The user's commits that are here, by the names that the user has given them."""
        ...

    async def copy(
        self,
        base: str,
        *,
        name: str,
        directory: str,
        content: str,
        since: str | None,
        before_history: Callable[[], None],
    ) -> WorkingCopy:
        """Make a working copy of `base` with the files of `content`.

        The history compares with `since`, by default with `base`; "" is the user's last commit.
        `before_history` is called, in a thread, before the history is read.
        """
        ...
