"""Shell commands, confined to what a contract allows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from retinue.domain.grant import Access
from retinue.domain.result import FileChange
from retinue.processes.child import ProcessResult, ProcessSpec


class ShellCommand(msgspec.Struct, frozen=True, gc=False):
    """A shell command: where it runs and what it may do, its limits, its own variables."""

    text: str
    access: Access
    timeout_s: float
    max_output_bytes: int
    variables: Mapping[str, str] = {}


class CommandResult(ProcessResult, frozen=True, gc=False, kw_only=True):
    changed: tuple[FileChange, ...] = ()
    """The files that the command changed, if the sandbox records changes."""


class Sandbox(Protocol):
    """Where the shell commands of agents run.

    ```python
    if rt.sandbox is None:
        print("Agents have no shell.")
    else:
        print(rt.sandbox.tier)
    ```
    """

    @property
    def tier(self) -> str:
        """How strong the confinement is: full, reduced or none."""
        ...

    @property
    def relocates(self) -> bool:
        """Whether commands see files at `Access.mount_point`, and `Access.shared_folders` too."""
        ...

    async def run(self, command: ShellCommand) -> CommandResult:
        """Run a shell command at the root of its access, confined to it.

        A non-zero exit is a result, never an exception; WorkspaceError if it cannot be confined.
        """
        ...


class ProcessSandbox(Sandbox, Protocol):
    """A sandbox that also runs programs that are talked to while they run, such as MCP servers."""

    def process(
        self, command: str, *, access: Access, environment: Mapping[str, str]
    ) -> AbstractAsyncContextManager[ProcessSpec]:
        """How to start a shell command, confined to `access`, with pipes for input and output.

        `environment` is all that it gets. It must have ended when the block ends. WorkspaceError
        if it cannot be confined.
        """
        ...
