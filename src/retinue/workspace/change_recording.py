"""Records each change of the files by a file tool or a command, so that it can be undone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from retinue.domain.grant import Access
from retinue.domain.result import FileChange
from retinue.domain.scope import NOWHERE
from retinue.errors import WorkspaceError
from retinue.ports.file_tree import ChangeRecorder
from retinue.ports.sandbox import CommandResult, Sandbox, ShellCommand
from retinue.threads import in_thread, in_thread_shielded
from retinue.workspace.directory import Write
from retinue.workspace.file_names import quoted
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.recorded_changes import FileState, change_ref, record_diff, record_files
from retinue.workspace.tree_diff import describe_changes, diff_trees, read_blobs


class ConcurrentChanges:
    """Paths that others change while a command runs, so that they are not credited to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watching: list[set[str]] = []

    @contextmanager
    def collect(self) -> Iterator[set[str]]:
        """A set to which the paths that are changed inside the block are added."""
        paths: set[str] = set()
        with self._lock:
            self._watching.append(paths)
        try:
            yield paths
        finally:
            with self._lock:
                self._watching = [found for found in self._watching if found is not paths]

    def add(self, paths: Sequence[str]) -> None:
        with self._lock:
            for collected in self._watching:
                collected.update(paths)


class TreeState(msgspec.Struct, frozen=True):
    """The state of a file tree. `from_directory` makes a path relative to the agent's directory.

    `unseen` are nested repositories and files that are too large: their changes are not recorded.
    """

    private_git: PrivateGit
    tree: str
    from_directory: Callable[[str], str]
    unseen: frozenset[str] = frozenset()


def record_write(
    private_git: PrivateGit,
    root: str,
    recorder: ChangeRecorder,
    concurrent: ConcurrentChanges,
    write: Write,
) -> None:
    """Record a write of a file tool in the workspace at `root`."""
    from_top = os.path.relpath(os.path.join(root, write.path), private_git.top)
    mode = 0o100755 if write.executable else 0o100644
    before = [] if write.before is None else [FileState(from_top, mode, write.before)]
    after = [FileState(from_top, mode, write.after)]
    number = recorder.next_number()
    ref, message = change_ref(recorder.run_id, number), f"write {write.change.path}"
    commit = record_files(private_git, ref, before, after, message, agent_id=recorder.agent_id)
    concurrent.add([from_top])
    recorder.record(number, commit, (write.change,))


class RecordingSandbox:
    """A Sandbox that compares the tree before and after each command, and reports what changed.

    With a `recorder`, the changes are recorded. If no snapshot can be taken, the command runs all
    the same, and its output says so once.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        tree_state: Callable[[], TreeState],
        concurrent: ConcurrentChanges,
        recorder: ChangeRecorder | None,
        before_write: Callable[[], None],
    ) -> None:
        """`before_write` is called before each command that may write."""
        self._sandbox = sandbox
        self.tier, self.relocates = sandbox.tier, sandbox.relocates
        self._before_write = before_write
        self._tree_state = tree_state
        self._concurrent = concurrent
        self._recorder = recorder
        self._warned = False

    async def run(self, command: ShellCommand) -> CommandResult:
        if command.access.write_scope != NOWHERE or self.tier == "none":
            await in_thread(self._before_write)
        run = partial(self._sandbox.run, command)
        try:
            before = await in_thread(self._tree_state)
        except WorkspaceError as error:
            return self._with_warning(await run(), error)
        changed: tuple[FileChange, ...] = ()
        unseen: Sequence[str] = ()
        failure: WorkspaceError | None = None
        with self._concurrent.collect() as others:
            try:
                done = await run()
            finally:
                # After a cancellation too: the command may have changed something before.
                try:
                    record = partial(self._record, before, others, command.text, command.access)
                    changed, unseen = await in_thread_shielded(record)
                except WorkspaceError as error:
                    # Not raised: it would replace a cancellation, or the command's own error.
                    failure = error
        done = msgspec.structs.replace(done, changed=changed)
        if unseen:
            paths = ", ".join(map(quoted, unseen))
            note = f"[A repository, or too large, so it is neither undone nor merged: {paths}]"
            done = msgspec.structs.replace(done, output=f"{done.output}\n{note}")
        return done if failure is None else self._with_warning(done, failure)

    def _record(
        self, before: TreeState, others: set[str], command: str, access: Access
    ) -> tuple[tuple[FileChange, ...], Sequence[str]]:
        """The changes of the command, and new paths that no snapshot includes."""
        after = self._tree_state()
        unseen = [after.from_directory(path) for path in sorted(after.unseen - before.unseen)]
        diff = diff_trees(after.private_git, before.tree, after.tree)
        found = [entry for entry in diff if entry.path not in others]
        if self.tier != "none":
            # The command could not write other paths: someone else did, such as the user.
            found = [e for e in found if access.may_write(after.from_directory(e.path))]
        if not found:
            return (), unseen
        files = describe_changes(found, read_blobs(after.private_git, found), after.from_directory)
        if self._recorder is not None:
            number = self._recorder.next_number()
            ref = change_ref(self._recorder.run_id, number)
            agent_id = self._recorder.agent_id
            commit = record_diff(after.private_git, ref, found, f"run {command}", agent_id=agent_id)
            self._concurrent.add([entry.path for entry in found])
            self._recorder.record(number, commit, files)
        return files, unseen

    def _with_warning(self, done: CommandResult, error: WorkspaceError) -> CommandResult:
        if self._warned:
            return done
        self._warned = True
        return msgspec.structs.replace(
            done, output=f"{done.output}\n[What commands change here cannot be undone: {error}]"
        )
