"""The project and the working copies of agents: adapters of `FileTree` and `CopyFolder`."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import msgspec

from retinue.domain.cleanup_report import CleanupReport
from retinue.domain.result import Conflict
from retinue.ports.file_tree import (
    ApplyResult,
    ChangeRecorder,
    MergeResult,
    Proposal,
    RecordedChange,
)
from retinue.ports.sandbox import Sandbox
from retinue.ports.workspace import Workspace
from retinue.threads import in_thread, in_thread_shielded
from retinue.workspace import merge as merges
from retinue.workspace.apply import ApplyRefused, apply, has_interrupted, recover_interrupted
from retinue.workspace.change_recording import (
    ConcurrentChanges,
    RecordingSandbox,
    RecordingWorkspace,
    TreeState,
)
from retinue.workspace.cleanup import clean_daily, clean_files
from retinue.workspace.copies import CopyFolder, discard_copy, make_copy, reopen_copy
from retinue.workspace.directory import DirectoryWorkspace
from retinue.workspace.file_names import printable, quoted
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

# Somebody may be writing the tree: a change that meets another is worked out anew.
_ATTEMPTS = 3
_UNDONE = {"steps": "undone", "made": "kept"}


class TreeOnDisk(msgspec.Struct, frozen=True):
    """A tree on disk: how to tree_state at it, and how to be the only one of us who writes it.

    `staging_parent` is a folder on the same file system that no agent can write.
    """

    private_git: PrivateGit
    top: str
    staging_parent: str
    take_snapshot: Callable[[], Snapshot]
    lock: Callable[[], AbstractContextManager[None]]


class _GitFileTree(ABC):
    """What the user's tree and a copy of it have in common. Public methods are the port's."""

    def __init__(self, project: str, worktrees: str) -> None:
        """`project` is the directory as agents know it; copies are made below `worktrees`."""
        self._project = project
        self._worktrees = worktrees
        self._concurrent_changes = ConcurrentChanges()

    @abstractmethod
    def _on_disk(self) -> TreeOnDisk:
        """Blocks the first time."""

    @abstractmethod
    def workspace(self, directory: str) -> Workspace: ...

    async def why_no_copies(self) -> str:
        return await in_thread(lambda: self._on_disk().private_git.user_repository.why_no_copies)

    async def snapshot(self, after: str | None) -> str:
        return await in_thread(partial(self._state, after))

    def _state(self, after: str | None) -> str:
        on_disk = self._on_disk()
        with on_disk.lock():
            tree = on_disk.take_snapshot().tree
        if after is None:
            return on_disk.private_git.commit(tree)
        same = tree == on_disk.private_git.tree_of(after)
        return after if same else on_disk.private_git.commit(tree, parents=[after])

    async def copy(self, base: str, *, name: str, directory: str) -> AgentWorkingCopy:
        return await in_thread_shielded(partial(self._copy, base, name, directory))

    def _copy(self, base: str, name: str, directory: str) -> AgentWorkingCopy:
        copy = make_copy(self._on_disk().private_git, os.path.join(self._worktrees, name), base)
        return AgentWorkingCopy(copy, self._project, self._worktrees, directory)

    async def reopen(self, base: str, *, name: str, directory: str) -> AgentWorkingCopy:
        return await in_thread(partial(self._reopen, base, name, directory))

    def _reopen(self, base: str, name: str, directory: str) -> AgentWorkingCopy:
        copy = reopen_copy(self._on_disk().private_git, os.path.join(self._worktrees, name), base)
        return AgentWorkingCopy(copy, self._project, self._worktrees, directory)

    async def discard(self, names: Sequence[str]) -> None:
        await in_thread_shielded(partial(self._discard, names))

    def _discard(self, names: Sequence[str]) -> None:
        for name in names:
            discard_copy(os.path.join(self._worktrees, name))

    async def merge(self, head: str, commit: str, *, base: str, message: str) -> MergeResult:
        return await in_thread(partial(self._merge, head, commit, base, message))

    def _merge(self, head: str, commit: str, base: str, message: str) -> MergeResult:
        private_git = self._on_disk().private_git
        merged = _merge_change(private_git, base, commit, private_git.tree_of(head))
        made = private_git.commit(merged.tree, parents=[head, commit], message=message)
        return MergeResult(
            commit=made,
            conflicts=tuple(
                Conflict(path=self._called(side.path), ours=side.ours, theirs=side.theirs)
                for side in merged.conflicts
            ),
        )

    def _called(self, path: str) -> str:
        """A path from the top, as it is called in the project."""
        return printable(_relative(self._within(self._project), path))

    async def commit_resolution(self, commit: str, *, parents: Sequence[str], message: str) -> str:
        return await in_thread(partial(self._settle, commit, parents, message))

    def _settle(self, commit: str, parents: Sequence[str], message: str) -> str:
        private_git = self._on_disk().private_git
        return private_git.commit(private_git.tree_of(commit), parents=parents, message=message)

    async def keep_unmerged(
        self, base: str, commit: str, *, run_id: str, agent_id: str, message: str
    ) -> None:
        ref = unmerged_ref(run_id, agent_id)
        await in_thread_shielded(partial(self._keep, base, commit, ref, message))

    def _keep(self, base: str, commit: str, ref: str, message: str) -> None:
        private_git = self._on_disk().private_git
        record_diff(private_git, ref, diff_trees(private_git, base, commit), message)

    async def apply(
        self, base: str, commit: str, recorder: ChangeRecorder | None, *, message: str
    ) -> ApplyResult:
        def wanted(private_git: PrivateGit, now: str) -> merges.MergedTree:
            return _merge_change(private_git, base, commit, now)

        return await in_thread_shielded(partial(self._change, wanted, recorder, message))

    def _change(
        self,
        wanted: Callable[[PrivateGit, str], merges.MergedTree],
        recorder: ChangeRecorder | None,
        message: str,
    ) -> ApplyResult:
        """Make of the tree what `wanted` makes of its present state, as a step."""
        done = change_tree(self._on_disk(), wanted, self._called, recorder, message)
        self._concurrent_changes.changed(done.paths)
        return done.applied

    def with_recording(
        self,
        workspace: Workspace,
        sandbox: Sandbox | None,
        directory: str,
        recorder: ChangeRecorder | None,
    ) -> tuple[Workspace, Sandbox | None]:
        tree = workspace
        if recorder is not None:
            tree = RecordingWorkspace(
                workspace, lambda: self._on_disk().private_git, recorder, self._concurrent_changes
            )
        if sandbox is not None:
            sandbox = RecordingSandbox(
                sandbox, partial(self._tree_state, directory), self._concurrent_changes, recorder
            )
        return tree, sandbox

    def _tree_state(self, directory: str) -> TreeState:
        on_disk = self._on_disk()
        with on_disk.lock():
            taken = on_disk.take_snapshot()
        unseen = frozenset((*taken.nested, *taken.left_out))
        return TreeState(
            on_disk.private_git, taken.tree, partial(_relative, self._within(directory)), unseen
        )

    def _within(self, directory: str) -> str:
        """Where a directory of the project is, from the top of the tree."""
        return os.path.relpath(directory, self._on_disk().private_git.top)


class UserFileTree(_GitFileTree):
    """The user's own tree. Nothing is looked at or made before it is needed."""

    def __init__(
        self,
        project: str,
        *,
        state_folder: str,
        worktrees: str,
        home: str,
        config_home: str,
        seal: Seal,
    ) -> None:
        """`state_folder` is `.retinue`; git finds its settings in `home` and `config_home`."""
        super().__init__(project, worktrees)
        self._state_folder = state_folder
        self._seal = seal
        self._recovery_notes: list[str] = []
        self._home = home
        self._config_home = config_home
        self._opening = threading.Lock()
        self._opened: TreeOnDisk | None = None
        self._trees: dict[str, DirectoryWorkspace] = {}

    def workspace(self, directory: str) -> DirectoryWorkspace:
        if directory not in self._trees:
            self._trees[directory] = DirectoryWorkspace(directory)
        return self._trees[directory]

    def _on_disk(self) -> TreeOnDisk:
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
                clean_daily(self._opened.private_git, self._worktrees)
        return self._opened

    def _open(self) -> TreeOnDisk:
        """What a process that was killed has left half done in the tree is put back."""
        source = find_user_repository(self._project, home=self._home, config_home=self._config_home)
        kind = "git" if source.object_format == "sha1" else f"git-{source.object_format}"
        path = os.path.join(self._state_folder, kind)
        if away := move_foreign_aside(path, self._seal):
            self._recovery_notes.append(
                f"the history of files was not made by you on this machine, and is in {away} now"
            )
        private_git = PrivateGit(path, source, seal=self._seal)
        staging_parent = os.path.join(private_git.path, "tmp")
        with private_git.lock():
            found = recover_interrupted(private_git, staging_parent)
        if found.paths:
            paths = ", ".join(map(self._called_from(source.top), found.paths))
            self._recovery_notes.append(f"a change that was cut off was taken back: {paths}")
        for folder in found.rescued:
            self._recovery_notes.append(f"files that could not be put back are in {folder}")
        return TreeOnDisk(
            private_git,
            source.top,
            staging_parent,
            partial(snapshot_user_tree, private_git, SnapshotCache()),
            private_git.lock,
        )

    def _called_from(self, top: str) -> Callable[[str], str]:
        within = os.path.relpath(self._project, top)
        return lambda path: printable(_relative(within, path))

    async def recovery_notes(self) -> tuple[str, ...]:
        """What an earlier process has left in disorder, and what has become of it; in words."""
        return await in_thread_shielded(self._find_recovery_notes)

    def _find_recovery_notes(self) -> tuple[str, ...]:
        for kind in ("git", "git-sha256"):
            path = os.path.join(self._state_folder, kind)
            if has_interrupted(os.path.join(path, "tmp")) or is_foreign(path, self._seal):
                self._on_disk()
        return tuple(self._recovery_notes)

    async def clean(self, older_s: float | None, *, dry_run: bool) -> list[CleanupReport]:
        """Clean copies, recorded changes and git objects; see `workspace.cleanup`."""

        def work() -> list[CleanupReport]:
            private_git = self._on_disk().private_git
            return clean_files(private_git, self._worktrees, older_s=older_s, dry_run=dry_run)

        return await in_thread_shielded(work)

    # The port History

    async def changes(self, run_id: str) -> list[RecordedChange]:
        return await in_thread(lambda: list_changes(self._on_disk().private_git, run_id))

    async def patch(self, change: RecordedChange) -> str:
        found = await in_thread(lambda: unified_diff(self._on_disk().private_git, change.commit))
        return found.decode("utf-8", "replace")

    async def undo(self, changes: Sequence[RecordedChange]) -> ApplyResult:
        wanted = partial(revert_all, [change.commit for change in changes])
        return await in_thread_shielded(partial(self._change, wanted, None, ""))

    async def redo(self, changes: Sequence[RecordedChange]) -> ApplyResult:
        wanted = partial(reapply_all, [change.commit for change in changes])
        return await in_thread_shielded(partial(self._change, wanted, None, ""))

    async def mark(self, changes: Sequence[RecordedChange], *, undone: bool) -> None:
        kinds = _UNDONE if undone else {after: before for before, after in _UNDONE.items()}
        await in_thread_shielded(lambda: move_refs(self._on_disk().private_git, kinds, changes))


class AgentWorkingCopy(_GitFileTree):
    """An agent's own copy of a tree; the work of its children goes into it."""

    def __init__(self, copy: CopyFolder, project: str, worktrees: str, directory: str) -> None:
        super().__init__(project, worktrees)
        self._copied = copy
        self._directory = directory
        self._writing = threading.Lock()
        self._trees: dict[str, DirectoryWorkspace] = {}

    def _on_disk(self) -> TreeOnDisk:
        copy = self._copied
        return TreeOnDisk(
            copy.private_git,
            copy.top,
            copy.folder,
            partial(take_snapshot, copy.repository),
            self._alone,
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._writing:
            yield

    async def why_no_copies(self) -> str:
        return ""

    def workspace(self, directory: str) -> DirectoryWorkspace:
        if directory not in self._trees:
            folder = os.path.normpath(os.path.join(self._copied.top, self._within(directory)))
            # A folder without files that git knows is in no commit.
            os.makedirs(folder, exist_ok=True)
            self._trees[directory] = DirectoryWorkspace(
                folder,
                alias_root=directory,
                repository=msgspec.structs.replace(self._copied.repository, folder=folder),
                readable=self._copied.object_links,
                shared_folders=self._copied.share_dependencies(folder, directory),
            )
        return self._trees[directory]

    async def propose(self, *, message: str) -> Proposal:
        return await in_thread_shielded(partial(self._propose, message))

    def _propose(self, message: str) -> Proposal:
        copy, private_git = self._copied, self._copied.private_git
        with self._writing:
            taken = take_snapshot(copy.repository)
            unknown = find_unseen_writes(copy.repository)
        found = diff_trees(private_git, copy.base, taken.tree)
        blobs = read_blobs(private_git, found)
        within = self._within(self._directory)
        wrong = find_problems(found, blobs)
        wrong += [f"{quoted(path)} is a repository inside the copy" for path in taken.nested]
        wrong += [f"{quoted(path)} is too large, or no file" for path in taken.left_out]
        wrong += [
            f"{quoted(path)} was written, but is a submodule or left out of your sparse checkout"
            for path in unknown
        ]
        return Proposal(
            commit=private_git.commit(taken.tree, parents=[copy.base], message=message),
            files=describe_changes(found, blobs, partial(_relative, within)),
            paths=tuple(_relative(within, change.path) for change in found),
            problems=tuple(wrong),
        )

    async def remove(self) -> None:
        await in_thread_shielded(self._copied.remove)

    def release(self) -> None:
        self._copied.release()

    def leave_to_user(self) -> str:
        return self._copied.leave_to_user()


class TreeChange(msgspec.Struct, frozen=True):
    applied: ApplyResult
    paths: tuple[str, ...] = ()


def change_tree(
    on_disk: TreeOnDisk,
    wanted: Callable[[PrivateGit, str], merges.MergedTree],
    called: Callable[[str], str],
    recorder: ChangeRecorder | None,
    message: str,
) -> TreeChange:
    """Make of a tree what `wanted` makes of its present state. `called` names a path in words."""
    private_git = on_disk.private_git
    refused: tuple[str, ...] = ()
    for _ in range(_ATTEMPTS):
        with on_disk.lock():
            now = on_disk.take_snapshot().tree
            merged = wanted(private_git, now)
            if merged.conflicts:
                return TreeChange(
                    ApplyResult(refused=tuple(called(s.path) for s in merged.conflicts))
                )
            found = diff_trees(private_git, now, merged.tree)
            if not found:
                return TreeChange(ApplyResult())
            blobs = read_blobs(private_git, found)
            if wrong := find_problems(found, blobs):
                return TreeChange(ApplyResult(refused=tuple(wrong)))
            number = None if recorder is None else recorder.next_number()
            ref = (
                None if recorder is None or number is None else change_ref(recorder.run_id, number)
            )
            try:
                commit = apply(
                    private_git,
                    on_disk.top,
                    found,
                    staging_parent=on_disk.staging_parent,
                    ref=ref,
                    message=message,
                )
            except ApplyRefused as error:
                refused = (str(error),)
                if error.rescued:
                    break  # Another try would not tell of it.
                continue
        files, paths = describe_changes(found, blobs, called), tuple(c.path for c in found)
        if recorder is not None and number is not None and commit is not None:
            recorder.record(number, commit, files)
        return TreeChange(ApplyResult(commit=commit or "", files=files), paths)
    return TreeChange(ApplyResult(refused=refused))


def revert_all(commits: Sequence[str], private_git: PrivateGit, tree: str) -> merges.MergedTree:
    """`tree` without these steps, the last taken back first; the first conflict ends it."""
    merged = merges.MergedTree(tree)
    for commit in reversed(commits):
        merged = revert(private_git, commit, merged.tree)
        if merged.conflicts:
            break
    return merged


def reapply_all(commits: Sequence[str], private_git: PrivateGit, tree: str) -> merges.MergedTree:
    """`tree` with these changes once more, in their order; the first conflict ends it."""
    merged = merges.MergedTree(tree)
    for commit in commits:
        merged = reapply(private_git, commit, merged.tree)
        if merged.conflicts:
            break
    return merged


def _merge_change(private_git: PrivateGit, base: str, commit: str, tree: str) -> merges.MergedTree:
    """`tree` with what `commit` has over `base`."""
    before, after = private_git.tree_of(base), private_git.tree_of(commit)
    if tree == before:
        return merges.MergedTree(after)
    return merges.merge_trees(private_git, base=before, ours=tree, theirs=after)


def _relative(within: str, path: str) -> str:
    """A path from the top, as it is called in a folder."""
    return path if within == "." else os.path.relpath(path, within)
