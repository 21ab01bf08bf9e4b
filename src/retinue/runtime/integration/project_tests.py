"""Runs the project's own tests for an agent, in the sandbox and without network."""

from __future__ import annotations

import secrets

from retinue.domain.grant import Access
from retinue.domain.scope import ANYWHERE, NOWHERE
from retinue.domain.tests_command import command_for_tests
from retinue.errors import ToolFailure
from retinue.ports.file_tree import FileTree
from retinue.ports.sandbox import Sandbox, ShellCommand
from retinue.ports.tool import SuiteRun
from retinue.runtime.integration.checks import FindSandbox, temporary_copy

TIMEOUT_S = 600.0
MAX_OUTPUT_BYTES = 200_000


class ProjectTests:
    """The tests of one agent. An agent that may write runs them on its own files.

    For others they run in a copy that is removed afterwards, so that nobody needs to be asked: the
    user chose the command, and what it writes is lost.
    """

    def __init__(
        self,
        setting: str,
        find_sandbox: FindSandbox,
        file_tree: FileTree,
        directory: str,
        own: tuple[Access, Sandbox] | None,
    ) -> None:
        """`own` are the access and the sandbox of an agent that may write without asking."""
        self._setting = setting
        self._find_sandbox = find_sandbox
        self._file_tree = file_tree
        self._directory = directory
        self._own = own

    async def run(self, selector: str) -> SuiteRun:
        command = command_for_tests(self._setting, selector)
        if self._own is not None:
            access, sandbox = self._own
            return await _run(command, sandbox, access)
        confined = await self._find_sandbox()
        if confined is None:
            why = "The tests cannot run: no sandbox is available here."
            advised = f"{why} Say in your answer that they were not run."
            raise ToolFailure(advised, shown=why)
        tree = self._file_tree
        if why := await tree.why_no_copies():
            # Read-only is the next best thing to a copy.
            access = tree.workspace(self._directory).access(NOWHERE)
            note = f"[The tests ran without the right to write, because {why}.]"
            return await _run(command, confined, access, note=note)
        name = f"tests-{secrets.token_hex(8)}"
        base = await tree.snapshot(None)
        async with temporary_copy(tree, base, name=name, directory=self._directory) as copy:
            access = copy.workspace(self._directory).access(ANYWHERE)
            return await _run(command, confined, access)


async def _run(command: str, sandbox: Sandbox, access: Access, *, note: str = "") -> SuiteRun:
    done = await sandbox.run(ShellCommand(command, access, TIMEOUT_S, MAX_OUTPUT_BYTES))
    return SuiteRun(command=command, result=done, note=note)
