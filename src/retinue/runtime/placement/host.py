"""The port `Host`: a place that runs the attempts of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from retinue.errors import RetinueError
from retinue.runtime.placement.messages import Command, HostInfo, Item


class HostLost(RetinueError):
    """A host has ended, or does not answer. The state of its requests in flight is unknown."""


class FileChannel(Protocol):
    """Passes files on to the other side, the run or a host. Each file has a name of its own."""

    async def send_file(self, name: str, path: str) -> None:
        """Send a file. Messages that are sent after this returns arrive after the file.

        Raises OSError if the file cannot be read or the other side is gone.
        """
        ...

    def received(self, name: str) -> str:
        """The path of a file that the other side has sent; the caller removes it.

        Raises WorkspaceError if it could not be stored.
        """
        ...


class Host(Protocol):
    """One host, seen from the run."""

    @property
    def name(self) -> str: ...

    @property
    def info(self) -> HostInfo: ...

    @property
    def resources(self) -> Mapping[str, float]:
        """The resources that it has reserved on its node."""
        ...

    @property
    def files(self) -> FileChannel: ...

    def send(self, command: Command) -> None:
        """Send a command, without waiting. Commands arrive in order; to a lost host, none do."""
        ...

    async def poll(self, after: int) -> Sequence[Item]:
        """Wait for reports with a number above `after`, and return them in order.

        Raises HostLost.
        """
        ...

    async def end(self) -> None:
        """End the host. If it can be ended, nothing of it runs when this returns."""
        ...
