"""Working in a tree so that each change of it is kept as a step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from retinue.domain.grant import Network
from retinue.domain.reach import Reach
from retinue.domain.result import FileChange
from retinue.domain.scope import Groups
from retinue.errors import WorkspaceError
from retinue.ports.file_tree import ChangeRecorder
from retinue.ports.sandbox import CommandResult, Sandbox
from retinue.ports.workspace import DirEntry, SearchMatch, Workspace, WriteResult
from retinue.threads import in_thread, in_thread_shielded
from retinue.workspace.changes import changes, contents, described
from retinue.workspace.names import quoted
from retinue.workspace.private_git import Depot
from retinue.workspace.steps import Entry as File
from retinue.workspace.steps import keep, step_ref, store


class Ledger:
    """Which paths of a tree were changed by whom: a command is not blamed for what others did."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[set[str]] = []

    def begin(self) -> set[str]:
        """From now on, collect what is changed by others."""
        others: set[str] = set()
        with self._lock:
            self._open.append(others)
        return others

    def end(self, others: set[str]) -> None:
        with self._lock:
            self._open = [found for found in self._open if found is not others]

    def changed(self, paths: Sequence[str]) -> None:
        with self._lock:
            for others in self._open:
                others.update(paths)


class Look(msgspec.Struct, frozen=True):
    """The state of a tree. `from_directory` says what a path is called where the agent works.

    `unseen` are repositories in it, and what is too large: no step has what is done to those.
    """

    depot: Depot
    tree: str
    from_directory: Callable[[str], str]
    unseen: frozenset[str] = frozenset()


class RecordedTree:
    """A Workspace whose writes become steps."""

    def __init__(
        self,
        tree: Workspace,
        depot: Callable[[], Depot],
        recorder: ChangeRecorder,
        ledger: Ledger,
    ) -> None:
        self._tree = tree
        self._depot = depot
        self._recorder = recorder
        self._ledger = ledger

    @property
    def root(self) -> str:
        return self._tree.root

    def reach(self, write_scope: Groups, network: Network = Network.NONE) -> Reach:
        return self._tree.reach(write_scope, network)

    def inside(self, path: str) -> str | None:
        return self._tree.inside(path)

    def read(self, path: str, *, max_bytes: int) -> bytes:
        return self._tree.read(path, max_bytes=max_bytes)

    def read_now(self, path: str, *, max_bytes: int) -> bytes | None:
        return self._tree.read_now(path, max_bytes=max_bytes)

    def list_now(self, path: str) -> Sequence[DirEntry] | None:
        return self._tree.list_now(path)

    def list(self, path: str) -> Sequence[DirEntry]:
        return self._tree.list(path)

    def find(self, pattern: str, *, under: str, limit: int) -> tuple[Sequence[str], bool]:
        return self._tree.find(pattern, under=under, limit=limit)

    def search(
        self, pattern: str, *, under: str, glob: str | None, limit: int
    ) -> tuple[Sequence[SearchMatch], bool]:
        return self._tree.search(pattern, under=under, glob=glob, limit=limit)

    def fingerprint(self, under: str) -> str:
        return self._tree.fingerprint(under)

    def write(self, path: str, data: bytes) -> WriteResult:
        written = self._tree.write(path, data)
        if written.before == data:
            return written
        depot = self._depot()
        from_top = os.path.relpath(os.path.join(self.root, written.path), depot.source.top)
        mode = 0o100755 if written.program else 0o100644
        before = [] if written.before is None else [File(from_top, mode, written.before)]
        number = self._recorder.next_number()
        commit = store(
            depot,
            step_ref(self._recorder.run_id, number),
            before,
            [File(from_top, mode, data)],
            f"write {written.change.path}",
        )
        self._ledger.changed([from_top])
        self._recorder.record(number, commit, (written.change,))
        return written


class RecordedSandbox:
    """A Sandbox that looks at the tree before and after each command, and tells what it changed.

    With `steps`, that becomes one. A tree that cannot be looked at stops no command: it is told.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        look: Callable[[], Look],
        ledger: Ledger,
        recorder: ChangeRecorder | None,
    ) -> None:
        self._sandbox = sandbox
        self._look = look
        self._ledger = ledger
        self._recorder = recorder
        self._told = False

    @property
    def tier(self) -> str:
        return self._sandbox.tier

    @property
    def relocates(self) -> bool:
        return self._sandbox.relocates

    async def run(
        self, command: str, *, reach: Reach, timeout_s: float, max_output_bytes: int
    ) -> CommandResult:
        try:
            before = await in_thread(self._look)
        except WorkspaceError as error:
            done = await self._sandbox.run(
                command, reach=reach, timeout_s=timeout_s, max_output_bytes=max_output_bytes
            )
            return self._with_a_word(done, error)
        others = self._ledger.begin()
        changed: tuple[FileChange, ...] = ()
        unseen: Sequence[str] = ()
        blind: WorkspaceError | None = None
        try:
            done = await self._sandbox.run(
                command, reach=reach, timeout_s=timeout_s, max_output_bytes=max_output_bytes
            )
        finally:
            # Also of one that was cancelled: it may have changed something until then.
            try:
                record = partial(self._record, before, others, command, reach)
                changed, unseen = await in_thread_shielded(record)
            except WorkspaceError as error:
                # What the command itself ended with, a cancellation above all, counts for more.
                blind = error
            finally:
                self._ledger.end(others)
        done = msgspec.structs.replace(done, changed=changed)
        if unseen:
            paths = ", ".join(map(quoted, unseen))
            word = f"[A repository, or too large, so it is neither undone nor merged: {paths}]"
            done = msgspec.structs.replace(done, output=f"{done.output}\n{word}")
        return done if blind is None else self._with_a_word(done, blind)

    def _record(
        self, before: Look, others: set[str], command: str, reach: Reach
    ) -> tuple[tuple[FileChange, ...], Sequence[str]]:
        """What the command has changed, and what it has made that cannot be looked at."""
        after = self._look()
        unseen = [after.from_directory(path) for path in sorted(after.unseen - before.unseen)]
        found = [c for c in changes(after.depot, before.tree, after.tree) if c.path not in others]
        if self.tier != "none":
            # What the sandbox has made impossible was somebody else, such as the user.
            found = [c for c in found if reach.may_write(after.from_directory(c.path))]
        if not found:
            return (), unseen
        files = described(found, contents(after.depot, found), after.from_directory)
        if self._recorder is not None:
            number = self._recorder.next_number()
            ref = step_ref(self._recorder.run_id, number)
            commit = keep(after.depot, ref, found, f"run {command}")
            self._ledger.changed([change.path for change in found])
            self._recorder.record(number, commit, files)
        return files, unseen

    def _with_a_word(self, done: CommandResult, error: WorkspaceError) -> CommandResult:
        if self._told:
            return done
        self._told = True
        return msgspec.structs.replace(
            done, output=f"{done.output}\n[What commands change here cannot be undone: {error}]"
        )
