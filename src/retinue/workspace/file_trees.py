"""The user's project and the working copies of agents: adapters of `FileTree` and `WorkingCopy`."""

from __future__ import annotations

import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

import msgspec

from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.result import Conflict, FileChange
from retinue.errors import WorkspaceError
from retinue.ports.file_tree import (
    ApplyResult,
    ChangeRecorder,
    MergeResult,
    ProjectFacts,
    Proposal,
    TreeLocation,
)
from retinue.ports.sandbox import Sandbox
from retinue.ports.workspace import Workspace
from retinue.processes.removal import remove_folder
from retinue.threads import in_thread_shielded, threaded, threaded_shielded
from retinue.workspace.apply import ApplyRefused, apply
from retinue.workspace.bundles import (
    check_commit_ids,
    read_bundle,
    users_refs,
    write_bundle,
)
from retinue.workspace.change_recording import (
    ConcurrentChanges,
    RecordingSandbox,
    TreeState,
    record_write,
)
from retinue.workspace.copies import (
    CopyFolder,
    check_unused,
    discard_copy,
    lock_writes,
    make_copy,
    reopen_copy,
)
from retinue.workspace.copy_progress import OnProgress, copying, removing, reported
from retinue.workspace.directory import DirectoryWorkspace, Write
from retinue.workspace.file_names import printable, quoted
from retinue.workspace.git import git_output, run_git
from retinue.workspace.git_history import GitHistory, TreeHistory
from retinue.workspace.merge import MergedTree, merge_work
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.recorded_changes import (
    change_ref,
    list_changes,
    reapply,
    record_diff,
    unified_diff,
    unmerged_ref,
)
from retinue.workspace.snapshot import (
    Snapshot,
    find_unseen_writes,
    take_snapshot,
)
from retinue.workspace.tree_diff import describe_changes, diff_trees, find_problems, read_blobs
from retinue.workspace.user_repository import read_or_empty

# The user may edit files meanwhile: an update that finds such an edit is computed again.
_ATTEMPTS = 3


class TreeOnDisk(msgspec.Struct, frozen=True):
    """A file tree on disk: how to take a snapshot of it, and how to lock it against our own writes.

    `staging_parent` is a folder that no agent can write, best on the same file system.
    """

    private_git: PrivateGit
    top: str
    staging_parent: str
    take_snapshot: Callable[[], Snapshot]
    lock: Callable[[], AbstractContextManager[object]]


class GitFileTree(ABC):
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

    @threaded
    def facts(self) -> ProjectFacts:
        private_git = self._on_disk().private_git
        user = private_git.user_repository
        named = dict(setting.split("=", 1) for setting in user.settings)
        named.pop("core.excludesFile", None)
        # Not a file that the repository's settings name: it could be any file of the user.
        excludes = b""
        with suppress(OSError):
            excludes = Path(user.excludes_file).read_bytes() + b"\n"
        kind = "partial clone" if user.is_partial else "sparse checkout" if user.is_sparse else ""
        return ProjectFacts(
            id=private_git.name,
            top=user.top,
            is_repository=user.index_file is not None,
            object_format=user.object_format,
            settings=tuple(f"{name}={value}" for name, value in named.items()),
            exclude_patterns=excludes + user.exclude_patterns,
            shallow=read_or_empty(user.shallow_file),
            problem=f"the repository is a {kind}, which cannot be sent" if kind else "",
        )

    @threaded
    def history(self) -> dict[str, str]:
        return users_refs(self._on_disk().private_git)

    @threaded_shielded
    def make_bundle(self, refs: Mapping[str, str], have: Sequence[str]) -> str:
        private_git = self._on_disk().private_git
        folder = tempfile.mkdtemp(prefix="bundle-", dir=os.path.join(private_git.path, "tmp"))
        path = os.path.join(folder, "bundle")
        try:
            write_bundle(private_git, path, refs, have=have)
        except BaseException:
            remove_folder(folder)
            raise
        return path

    @threaded_shielded
    def read_bundle(self, path: str) -> dict[str, str]:
        return read_bundle(self._on_disk().private_git, path)

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
            return ApplyResult(files=files)
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
        relative = partial(relative_path, self._from_top(directory))
        return TreeState(on_disk.private_git, taken.tree, relative, unseen)

    def _display_path(self, path: str) -> str:
        """A path from the top of the tree, relative to the project and printable."""
        return printable(relative_path(self._from_top(self._project), path))

    def _from_top(self, directory: str) -> str:
        """A directory of the project, relative to the top of the tree."""
        return os.path.relpath(directory, self._on_disk().private_git.top)


class AgentWorkingCopy(GitFileTree):
    """An agent's own copy of a tree. The work of its children is merged into it."""

    def __init__(
        self,
        copy: CopyFolder,
        project: str,
        worktrees: str,
        protected: ProtectedPaths,
        directory: str,
        *,
        since: str | None = None,
        before_history: Callable[[], None] = lambda: None,
    ) -> None:
        """`since` is the commit that the history compares with, by default that of the copy.

        `before_history` is called before the history is read.
        """
        super().__init__(project, worktrees, protected)
        self._copy_folder = copy
        self._directory = directory
        self._since = since
        self._before_history = before_history

    def _on_disk(self) -> TreeOnDisk:
        copy = self._copy_folder
        snapshot = partial(take_snapshot, copy.repository)
        return TreeOnDisk(
            copy.private_git, copy.top, copy.folder, snapshot, partial(lock_writes, copy.folder)
        )

    @property
    def location(self) -> TreeLocation:
        # On a host, such a copy stands for the user's own tree.
        folder = "" if self._since == "" else self._copy_folder.folder
        return TreeLocation(folder, self._base)

    async def why_no_copies(self) -> str:
        return ""

    def _make_workspace(self, directory: str) -> DirectoryWorkspace:
        copy = self._copy_folder
        folder = os.path.normpath(os.path.join(copy.top, self._from_top(directory)))
        top = os.path.realpath(copy.top)
        if os.path.commonpath([top, os.path.realpath(folder)]) != top:
            raise WorkspaceError(f"{directory} leads out of the working copy, by a link.")
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
        return self._copy_folder.base if self._since is None else self._since

    def _tree_history(self) -> TreeHistory:
        self._before_history()
        return super()._tree_history()

    @threaded_shielded
    def advance(self, before: str, after: str, *, base: str) -> None:
        copy, private_git = self._copy_folder, self._copy_folder.private_git
        check_commit_ids(before, after)
        with lock_writes(copy.folder):
            # Without a merge, the files are those of `before` and git sees it in one step.
            if not run_git(copy.repository, ["read-tree", "-m", "-u", before, after]).ok:
                current = take_snapshot(copy.repository).tree
                merged = merge_work(before, after, private_git, current)
                if merged.conflicts:
                    paths = ", ".join(self._display_path(one.path) for one in merged.conflicts)
                    raise WorkspaceError(
                        f"The copy was changed at two places at once, which do not fit: {paths}."
                    )
                git_output(copy.repository, ["read-tree", "-m", "-u", current, merged.tree])
        copy.base = base

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
            files=describe_changes(diff, blobs, partial(relative_path, directory)),
            paths=tuple(relative_path(directory, entry.path) for entry in diff),
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


def relative_path(directory: str, path: str) -> str:
    """`path` relative to `directory`, both from the top of the tree."""
    return path if directory == "." else os.path.relpath(path, directory)
