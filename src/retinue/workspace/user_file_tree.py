"""The user's own tree: an adapter of `FileTree`, with the history of recorded changes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial

from retinue.domain.cleanup_report import DAY_S, CleanupReport
from retinue.domain.protected_paths import NOTHING_PROTECTED, ProtectedPaths
from retinue.domain.result import FileChange
from retinue.errors import GitError, WorkspaceError
from retinue.ports.file_tree import (
    ApplyResult,
    ChangeRecorder,
    RecordedChange,
    TreeLocation,
)
from retinue.ports.sandbox import Sandbox
from retinue.ports.workspace import Workspace
from retinue.threads import threaded, threaded_shielded
from retinue.workspace.apply import has_interrupted, recover_interrupted
from retinue.workspace.cleanup import OBJECTS_S, clean_daily, clean_files
from retinue.workspace.copies import (
    CopyFolder,
)
from retinue.workspace.copy_sandbox import CopySandbox
from retinue.workspace.directory import DirectoryWorkspace
from retinue.workspace.file_names import printable
from retinue.workspace.file_trees import AgentWorkingCopy, GitFileTree, TreeOnDisk, relative_path
from retinue.workspace.merge import merge_all
from retinue.workspace.private_git import PrivateGit, Seal, is_foreign, move_foreign_aside
from retinue.workspace.recorded_changes import (
    list_changes,
    move_refs,
    reapply,
    revert,
    unified_diff,
)
from retinue.workspace.snapshot import (
    SnapshotCache,
    snapshot_user_tree,
)
from retinue.workspace.tree_diff import describe_changes, diff_trees, read_blobs
from retinue.workspace.user_repository import find_user_repository

GONE = "The files of that moment were cleaned away: those of copies are kept for {days} days."
_UNDONE = {"steps": "undone", "made": "kept"}
"""Kinds of recorded changes that are in the tree, and what they become when undone."""


class UserFileTree(GitFileTree):
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
            paths = ", ".join(printable(relative_path(project, path)) for path in found.paths)
            self._recovery_notes.append(f"a change that was interrupted was taken back: {paths}")
        for folder in found.rescued:
            self._recovery_notes.append(f"files that could not be put back are in {folder}")
        snapshot = partial(snapshot_user_tree, private_git, SnapshotCache())
        return TreeOnDisk(private_git, user.top, staging_parent, snapshot, private_git.lock)

    @threaded
    def opened(self, location: TreeLocation, directory: str) -> GitFileTree:
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
