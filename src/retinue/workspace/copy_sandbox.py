"""Runs commands in a copy of the files, and applies what they changed if the rules allow all of it.

A rule about names (`*.pem`) cannot be enforced while a command works on the user's own files: no
mount and no Landlock rule covers a file that does not exist yet.
"""

from __future__ import annotations

import secrets

import msgspec

from retinue.domain.scope import NOWHERE
from retinue.errors import ToolFailure
from retinue.ports.file_tree import ChangeRecorder, FileTree
from retinue.ports.sandbox import CommandResult, Sandbox, ShellCommand


class CopySandbox:
    """A Sandbox for one directory. Files that git ignores are neither copied nor applied."""

    def __init__(
        self,
        sandbox: Sandbox,
        file_tree: FileTree,
        directory: str,
        recorder: ChangeRecorder | None,
    ) -> None:
        self._sandbox = sandbox
        self.tier, self.relocates = sandbox.tier, sandbox.relocates
        self._file_tree = file_tree
        self._directory = directory
        self._recorder = recorder

    async def run(self, command: ShellCommand) -> CommandResult:
        tree, message, access = self._file_tree, f"run {command.text}", command.access
        if access.write_scope == NOWHERE:
            return await self._sandbox.run(command)
        if why := await tree.why_no_copies():
            raise ToolFailure(
                "The user's rules deny paths by their names, so commands have to work in a copy,"
                f" and no copy can be made: {why}"
            )
        base = await tree.snapshot(None)
        name = f"command-{secrets.token_hex(8)}"
        copy = await tree.copy(base, name=name, directory=self._directory)
        try:
            workspace = copy.workspace(self._directory)
            own = workspace.access(access.write_scope, access.network)
            done = await self._sandbox.run(msgspec.structs.replace(command, access=own))
            proposal = await copy.propose(message=message)
            refused = proposal.problems
            if not refused:
                applied = await tree.apply(base, proposal.commit, self._recorder, message=message)
                refused = applied.refused
                done = msgspec.structs.replace(done, changed=applied.files)
        finally:
            await copy.remove()
        if refused:
            note = f"[Nothing that the command changed was kept: {'; '.join(refused)}.]"
            done = msgspec.structs.replace(done, output=f"{done.output}\n{note}")
        return done
