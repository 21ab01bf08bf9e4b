"""The user's project and the working copies of agents: adapters of `FileTree` and `WorkingCopy`."""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial

import msgspec

from retinue.domain.cleanup_report import DAY_S, CleanupReport
from retinue.domain.protected_paths import NOTHING_PROTECTED, ProtectedPaths
from retinue.domain.result import Conflict, FileChange
from retinue.errors import GitError, WorkspaceError
from retinue.ports.file_tree import (
    ApplyResult,
    ChangeRecorder,
    MergeResult,
    Proposal,
    RecordedChange,
    TreeLocation,
)
from retinue.ports.sandbox import Sandbox
from retinue.ports.workspace import Workspace
from retinue.threads import in_thread_shielded, threaded, threaded_shielded
from retinue.workspace.apply import ApplyRefused, apply, has_interrupted, recover_interrupted
from retinue.workspace.change_recording import (
    ConcurrentChanges,
    RecordingSandbox,
    TreeState,
    record_write,
)
from retinue.workspace.cleanup import OBJECTS_S, clean_daily, clean_files
from retinue.workspace.copies import (
    CopyFolder,
    check_unused,
    discard_copy,
    lock_writes,
    make_copy,
    reopen_copy,
)
from retinue.workspace.copy_progress import OnProgress, copying, removing, reported
from retinue.workspace.copy_sandbox import CopySandbox
from retinue.workspace.directory import DirectoryWorkspace, Write
from retinue.workspace.file_names import printable, quoted
from retinue.workspace.git_history import GitHistory, TreeHistory
from retinue.workspace.merge import MergedTree, merge_all, merge_work
from retinue.workspace.private_git import PrivateGit, Seal, is_foreign, move_foreign_aside
from retinue.workspace.recorded_changes import (
    change_ref,
    list_changes,
    move_refs,
    reapply,
    record_diff,
    revert,
    unified_diff,
    unmerged_ref,
)
from retinue.workspace.snapshot import (
    Snapshot,
    SnapshotCache,
    find_unseen_writes,
    snapshot_user_tree,
    take_snapshot,
)
from retinue.workspace.tree_diff import describe_changes, diff_trees, find_problems, read_blobs
from retinue.workspace.user_repository import find_user_repository

# The user may edit files meanwhile: an update that finds such an edit is computed again.
_ATTEMPTS = 3
GONE = "The files of that moment were cleaned away: those of copies are kept for {days} days."
_UNDONE = {"steps": "undone", "made": "kept"}
"""Kinds of recorded changes that are in the tree, and what they become when undone."""


class TreeOnDisk(msgspec.Struct, frozen=True):
    """A file tree on disk: how to take a snapshot of it, and how to lock it against our own writes.

    `staging_parent` is a folder that no agent can write, best on the same file system.
    """

    private_git: PrivateGit
    top: str
    staging_parent: str
    take_snapshot: Callable[[], Snapshot]
    lock: Callable[[], AbstractContextManager[object]]


class _GitFileTree(ABC):
    """Base of the user's tree and of working copies. Public methods implement the port."""

    def __init__(self, project: str, worktrees: str, protected: ProtectedPaths) -> None:
        """`project` is the directory that agents see; copies are made below `worktrees`."""
        self._project = project
        self._worktrees = worktrees
        self._protected = protected
        self._before_write: Callable[[], None] = lambda: None
        self._concurrent_changes = ConcurrentChanges()
        self._workspaces: dict[str, DirectoryWorkspace] = {}

    @abstractmethod
    def _on_disk(self) -> TreeOnDisk:
        """Blocks on the first call."""

    @abstractmethod
    def _make_workspace(self, directory: str) -> DirectoryWorkspace: ...

    def workspace(self, directory: str) -> DirectoryWorkspace:
        if directory not in self._workspaces:
            self._workspaces[directory] = self._make_workspace(directory)
        return self._workspaces[directory]

    def _history(self, directory: str) -> GitHistory:
        hides = partial(self._protected.hides, directory)
        # Weak, because a file tree keeps its workspaces: in a cycle, the descriptors of a finished
        # agent's workspaces would stay open until the garbage collector runs.
        tree = weakref.ref(self)

        def open_tree() -> TreeHistory:
            found = tree()
            assert found is not None, "an agent keeps its file tree while it works"
            return found._tree_history()

        return GitHistory(open_tree, directory, hides)

    def _tree_history(self) -> TreeHistory:
        on_disk = self._on_disk()

        def take_tree() -> str:
            with on_disk.lock():
                return on_disk.take_snapshot().tree

        return TreeHistory(on_disk.private_git, take_tree, self._base)

    @property
    def _base(self) -> str:
        """The commit that the tree was made of; "" for the user's own."""
        return ""

    @property
    def location(self) -> TreeLocation:
        return TreeLocation()

    @threaded
    def why_no_copies(self) -> str:
        return self._on_disk().private_git.user_repository.why_no_copies

    @threaded
    def snapshot(self, after: str | None) -> str:
        on_disk = self._on_disk()
        private_git = on_disk.private_git
        with on_disk.lock():  # Also for the commit: snapshots end in the order of their states.
            tree = on_disk.take_snapshot().tree
            if after is None:
                return private_git.commit(tree)
            same = tree == private_git.tree_of(after)
            return after if same else private_git.commit(tree, parents=[after])

    async def copy(
        self,
        base: str,
        *,
        name: str,
        directory: str,
        content: str = "",
        on_progress: OnProgress | None = None,
    ) -> AgentWorkingCopy:
        path = os.path.join(self._worktrees, name)
        async with reported(copying(path), on_progress):
            return await self._copy(base, path, directory, content)

    @threaded_shielded
    def _copy(self, base: str, path: str, directory: str, content: str) -> AgentWorkingCopy:
        folder = make_copy(self._on_disk().private_git, path, base, content)
        return AgentWorkingCopy(folder, self._project, self._worktrees, self._protected, directory)

    @threaded
    def reopen(self, base: str, *, name: str, directory: str) -> AgentWorkingCopy:
        folder = reopen_copy(self._on_disk().private_git, os.path.join(self._worktrees, name), base)
        return AgentWorkingCopy(folder, self._project, self._worktrees, self._protected, directory)

    @threaded
    def check_unused(self, names: Sequence[str]) -> None:
        for name in names:
            check_unused(os.path.join(self._worktrees, name))

    @threaded_shielded
    def discard(self, names: Sequence[str]) -> None:
        for name in names:
            discard_copy(os.path.join(self._worktrees, name))

    @threaded
    def merge(self, head: str, commit: str, *, base: str, message: str) -> MergeResult:
        private_git = self._on_disk().private_git
        merged = merge_work(base, commit, private_git, private_git.tree_of(head))
        return MergeResult(
            commit=private_git.commit(merged.tree, parents=[head, commit], message=message),
            conflicts=self._displayed(merged.conflicts),
        )

    @threaded
    def diff(self, base: str, commit: str) -> str:
        return unified_diff(self._on_disk().private_git, commit, base).decode("utf-8", "replace")

    @threaded
    def commit_resolution(self, commit: str, *, parents: Sequence[str], message: str) -> str:
        private_git = self._on_disk().private_git
        return private_git.commit(private_git.tree_of(commit), parents=parents, message=message)

    @threaded_shielded
    def keep_unmerged(
        self, base: str, commit: str, *, run_id: str, agent_id: str, message: str
    ) -> None:
        private_git = self._on_disk().private_git
        diff = diff_trees(private_git, base, commit)
        record_diff(private_git, unmerged_ref(run_id, agent_id), diff, message)

    @threaded
    def with_unmerged(self, head: str, *, run_id: str, agent_id: str) -> MergeResult | None:
        private_git = self._on_disk().private_git
        kept = [
            one
            for one in list_changes(private_git, run_id)
            if one.kind == "kept" and one.name == agent_id
        ]
        if not kept:
            return None
        merged = reapply(private_git, kept[0].commit, private_git.tree_of(head))
        return MergeResult(
            commit=private_git.commit(merged.tree, parents=[head], message=kept[0].title),
            conflicts=self._displayed(merged.conflicts),
        )

    def _displayed(self, conflicts: Iterable[Conflict]) -> tuple[Conflict, ...]:
        return tuple(
            msgspec.structs.replace(found, path=self._display_path(found.path))
            for found in conflicts
        )

    async def apply(
        self, base: str, commit: str, recorder: ChangeRecorder | None, *, message: str
    ) -> ApplyResult:
        return await self._update(partial(merge_work, base, commit), recorder, message)

    @threaded_shielded
    def _update(
        self,
        compute: Callable[[PrivateGit, str], MergedTree],
        recorder: ChangeRecorder | None = None,
        message: str = "",
    ) -> ApplyResult:
        """Replace the tree by what `compute` makes of its current snapshot.

        Conflicts and forbidden changes are refused: then nothing is changed, and the result names
        them.
        """
        on_disk = self._on_disk()
        private_git = on_disk.private_git
        refused: tuple[str, ...] = ()
        for _ in range(_ATTEMPTS):
            with on_disk.lock():
                current = on_disk.take_snapshot().tree
                merged = compute(private_git, current)
                if merged.conflicts:
                    paths = (self._display_path(conflict.path) for conflict in merged.conflicts)
                    return ApplyResult(refused=tuple(paths))
                diff = diff_trees(private_git, current, merged.tree)
                if not diff:
                    return ApplyResult()
                blobs = read_blobs(private_git, diff)
                if problems := find_problems(diff, blobs, self._protected, private_git.top):
                    return ApplyResult(refused=tuple(problems), forbidden=True)
                self._before_write()
                number = ref = None
                if recorder is not None:
                    number = recorder.next_number()
                    ref = change_ref(recorder.run_id, number)
                try:
                    commit = apply(
                        private_git,
                        on_disk.top,
                        diff,
                        staging_parent=on_disk.staging_parent,
                        ref=ref,
                        message=message,
                        agent_id="" if recorder is None else recorder.agent_id,
                    )
                except ApplyRefused as error:
                    refused = (str(error),)
                    if error.rescued:
                        break  # The message of another attempt would not name the rescued files.
                    continue
            self._concurrent_changes.add([entry.path for entry in diff])
            files = describe_changes(diff, blobs, self._display_path)
            if recorder is not None and number is not None and commit is not None:
                recorder.record(number, commit, files)
            return ApplyResult(commit=commit or "", files=files)
        return ApplyResult(refused=refused)

    def with_recording(
        self, directory: str, sandbox: Sandbox | None, recorder: ChangeRecorder | None
    ) -> tuple[Workspace, Sandbox | None]:
        workspace, concurrent = self.workspace(directory), self._concurrent_changes
        if sandbox is not None:
            tree_state = partial(self._tree_state, directory)
            sandbox = RecordingSandbox(
                sandbox, tree_state, concurrent, recorder, self._before_write
            )
        if recorder is None:
            return workspace, sandbox

        def record(write: Write) -> None:
            record_write(self._on_disk().private_git, workspace.root, recorder, concurrent, write)

        return workspace.recording(record), sandbox

    def _tree_state(self, directory: str) -> TreeState:
        on_disk = self._on_disk()
        with on_disk.lock():
            taken = on_disk.take_snapshot()
        unseen = frozenset((*taken.nested, *taken.left_out))
        relative = partial(_relative, self._from_top(directory))
        return TreeState(on_disk.private_git, taken.tree, relative, unseen)

    def _display_path(self, path: str) -> str:
        """A path from the top of the tree, relative to the project and printable."""
        return printable(_relative(self._from_top(self._project), path))

    def _from_top(self, directory: str) -> str:
        """A directory of the project, relative to the top of the tree."""
        return os.path.relpath(directory, self._on_disk().private_git.top)


class UserFileTree(_GitFileTree):
    """The user's own tree. It is opened when it is first needed."""

    def __init__(
        self,
        project: str,
        *,
        state_folder: str,
        worktrees: str,
        home: str,
        config_home: str,
        seal: Seal,
        protected: ProtectedPaths = NOTHING_PROTECTED,
        before_write: Callable[[], None] = lambda: None,
    ) -> None:
        """`state_folder` is `.retinue`; git finds its settings in `home` and `config_home`.

        `before_write` is called before each change of the files.
        """
        super().__init__(project, worktrees, protected)
        self._before_write = before_write
        self._state_folder = state_folder
        self._seal = seal
        self._recovery_notes: list[str] = []
        self._home = home
        self._config_home = config_home
        self._open_lock = threading.Lock()
        self._opened: TreeOnDisk | None = None

    def with_recording(
        self, directory: str, sandbox: Sandbox | None, recorder: ChangeRecorder | None
    ) -> tuple[Workspace, Sandbox | None]:
        if sandbox is None or not self._protected.has_rules_about_names:
            return super().with_recording(directory, sandbox, recorder)
        workspace, _ = super().with_recording(directory, None, recorder)
        return workspace, CopySandbox(sandbox, self, directory, recorder)

    def _make_workspace(self, directory: str) -> DirectoryWorkspace:
        return DirectoryWorkspace(
            directory,
            protected=self._protected,
            before_write=self._before_write,
            history=self._history(directory),
            index_folder=self._state_folder,
            index_seal=self._seal("code index"),
        )

    def _on_disk(self) -> TreeOnDisk:
        with self._open_lock:
            if self._opened is None:
                self._opened = self._open()
                clean_daily(self._opened.private_git, self._worktrees)
        return self._opened

    def _open(self) -> TreeOnDisk:
        """Open the private git dir, and put back what a killed process left half done."""
        user = find_user_repository(self._project, home=self._home, config_home=self._config_home)
        kind = "git" if user.object_format == "sha1" else f"git-{user.object_format}"
        path = os.path.join(self._state_folder, kind)
        if moved_to := move_foreign_aside(path, self._seal):
            self._recovery_notes.append(
                "the history of file changes was not written by you on this machine; it was moved"
                f" to {moved_to}"
            )
        private_git = PrivateGit(path, user, seal=self._seal)
        staging_parent = os.path.join(private_git.path, "tmp")
        with private_git.lock():
            found = recover_interrupted(private_git, staging_parent)
        if found.paths:
            project = os.path.relpath(self._project, user.top)
            paths = ", ".join(printable(_relative(project, path)) for path in found.paths)
            self._recovery_notes.append(f"a change that was interrupted was taken back: {paths}")
        for folder in found.rescued:
            self._recovery_notes.append(f"files that could not be put back are in {folder}")
        snapshot = partial(snapshot_user_tree, private_git, SnapshotCache())
        return TreeOnDisk(private_git, user.top, staging_parent, snapshot, private_git.lock)

    @threaded
    def opened(self, location: TreeLocation, directory: str) -> _GitFileTree:
        """The tree at `location`, for a process that works for the one that has it locked."""
        if not location.folder:
            return self
        copy = CopyFolder(self._on_disk().private_git, location.folder, location.base, lock=False)
        return AgentWorkingCopy(copy, self._project, self._worktrees, self._protected, directory)

    @threaded_shielded
    def recovery_notes(self) -> tuple[str, ...]:
        """Recover what an earlier process left half done; one sentence for each thing found."""
        for kind in ("git", "git-sha256"):
            path = os.path.join(self._state_folder, kind)
            if has_interrupted(os.path.join(path, "tmp")) or is_foreign(path, self._seal):
                self._on_disk()
        return tuple(self._recovery_notes)

    @threaded_shielded
    def clean(self, older_s: float | None, *, dry_run: bool) -> list[CleanupReport]:
        """Clean copies, recorded changes and git objects; see `workspace.cleanup`."""
        private_git = self._on_disk().private_git
        return clean_files(private_git, self._worktrees, older_s=older_s, dry_run=dry_run)

    # The port ChangeHistory

    @threaded
    def changes(self, run_id: str) -> list[RecordedChange]:
        return list_changes(self._on_disk().private_git, run_id)

    @threaded
    def patch(self, change: RecordedChange) -> str:
        diff = unified_diff(self._on_disk().private_git, change.commit)
        return diff.decode("utf-8", "replace")

    @threaded
    def files(self, change: RecordedChange) -> tuple[FileChange, ...]:
        private_git = self._on_disk().private_git
        diff = diff_trees(private_git, f"{change.commit}^", change.commit)
        return describe_changes(diff, read_blobs(private_git, diff), self._display_path)

    async def undo(self, changes: Sequence[RecordedChange]) -> ApplyResult:
        commits = [change.commit for change in reversed(changes)]
        return await self._update(partial(merge_all, revert, commits))

    async def redo(self, changes: Sequence[RecordedChange]) -> ApplyResult:
        commits = [change.commit for change in changes]
        return await self._update(partial(merge_all, reapply, commits))

    @threaded
    def restored(self, without: Sequence[RecordedChange], added: Sequence[RecordedChange]) -> str:
        on_disk = self._on_disk()
        with on_disk.lock():
            tree = on_disk.take_snapshot().tree
        steps = ((revert, list(reversed(without))), (reapply, added))
        for merge, changes in steps:
            commits = [change.commit for change in changes]
            merged = merge_all(merge, commits, on_disk.private_git, tree)
            if merged.conflicts:
                paths = ", ".join(c.path for c in self._displayed(merged.conflicts))
                raise WorkspaceError(
                    f"The files cannot be restored as they were: {paths} changed since."
                )
            tree = merged.tree
        return on_disk.private_git.commit(tree)

    @threaded
    def check_kept(self, commits: Sequence[str]) -> None:
        private_git = self._on_disk().private_git
        for commit in commits:
            try:
                private_git.tree_of(commit)
            except GitError as error:
                raise WorkspaceError(GONE.format(days=round(OBJECTS_S / DAY_S))) from error

    @threaded_shielded
    def mark(self, changes: Sequence[RecordedChange], *, undone: bool) -> None:
        kinds = _UNDONE if undone else {after: before for before, after in _UNDONE.items()}
        move_refs(self._on_disk().private_git, kinds, changes)


class AgentWorkingCopy(_GitFileTree):
    """An agent's own copy of a tree. The work of its children is merged into it."""

    def __init__(
        self,
        copy: CopyFolder,
        project: str,
        worktrees: str,
        protected: ProtectedPaths,
        directory: str,
    ) -> None:
        super().__init__(project, worktrees, protected)
        self._copy_folder = copy
        self._directory = directory

    def _on_disk(self) -> TreeOnDisk:
        copy = self._copy_folder
        snapshot = partial(take_snapshot, copy.repository)
        return TreeOnDisk(
            copy.private_git, copy.top, copy.folder, snapshot, partial(lock_writes, copy.folder)
        )

    @property
    def location(self) -> TreeLocation:
        return TreeLocation(self._copy_folder.folder, self._copy_folder.base)

    async def why_no_copies(self) -> str:
        return ""

    def _make_workspace(self, directory: str) -> DirectoryWorkspace:
        copy = self._copy_folder
        folder = os.path.normpath(os.path.join(copy.top, self._from_top(directory)))
        # A folder without tracked files is in no commit, so the copy lacks it.
        os.makedirs(folder, exist_ok=True)
        return DirectoryWorkspace(
            folder,
            alias_root=directory,
            repository=msgspec.structs.replace(copy.repository, folder=folder),
            readable=copy.object_links,
            shared_folders=copy.share_dependencies(folder, directory),
            protected=self._protected,
            history=self._history(directory),
            # Beside the private git dir: most files were parsed for the project already.
            index_folder=os.path.dirname(copy.private_git.path),
            index_seal=copy.private_git.seal("code index"),
        )

    @property
    def _base(self) -> str:
        return self._copy_folder.base

    @threaded_shielded
    def propose(self, *, message: str) -> Proposal:
        copy, private_git = self._copy_folder, self._copy_folder.private_git
        with lock_writes(copy.folder):
            taken = take_snapshot(copy.repository)
            unseen = find_unseen_writes(copy.repository)
        diff = diff_trees(private_git, copy.base, taken.tree)
        blobs = read_blobs(private_git, diff)
        directory = self._from_top(self._directory)
        problems = find_problems(diff, blobs, self._protected, private_git.top)
        problems += [f"{quoted(path)} is a repository inside the copy" for path in taken.nested]
        problems += [f"{quoted(path)} is too large, or no file" for path in taken.left_out]
        problems += [
            f"{quoted(path)} was written, but is a submodule or left out of your sparse checkout"
            for path in unseen
        ]
        return Proposal(
            commit=private_git.commit(taken.tree, parents=[copy.base], message=message),
            files=describe_changes(diff, blobs, partial(_relative, directory)),
            paths=tuple(_relative(directory, entry.path) for entry in diff),
            problems=tuple(problems),
        )

    async def update(self, commit: str, merged: str, *, base: str) -> tuple[FileChange, ...]:
        applied = await self._update(partial(merge_work, commit, merged))
        if applied.refused:
            raise WorkspaceError(f"The copy cannot be updated: {', '.join(applied.refused)}.")
        self._copy_folder.base = base
        return applied.files

    async def remove(self, on_progress: OnProgress | None = None) -> None:
        async with reported(removing(self._copy_folder.folder), on_progress):
            await in_thread_shielded(self._copy_folder.remove)

    def release(self) -> None:
        self._copy_folder.release()

    def leave_to_user(self) -> str:
        return self._copy_folder.leave_to_user()


def _relative(directory: str, path: str) -> str:
    """`path` relative to `directory`, both from the top of the tree."""
    return path if directory == "." else os.path.relpath(path, directory)
