"""File trees: the user's project and the working copies of agents; merges and undo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from retinue.domain.result import Conflict, FileChange
from retinue.ports.sandbox import Sandbox
from retinue.ports.workspace import Workspace


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a child in its working copy.

    `paths` are the changed paths, relative to the child's directory; those outside begin with `..`.
    `problems` say why some of the changes can never be merged.
    """

    commit: str
    files: tuple[FileChange, ...] = ()
    paths: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class MergeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The merge of two commits; files with conflicts have conflict markers."""

    commit: str
    conflicts: tuple[Conflict, ...] = ()


class ApplyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of applying changes. If some are `refused`, none was applied."""

    files: tuple[FileChange, ...] = ()
    refused: tuple[str, ...] = ()
    forbidden: bool = False
    """Whether no agent may write the refused paths. Otherwise they were changed since."""


class ChangeRecorder(Protocol):
    """Numbers and records the changes of the user's files. Safe in any thread."""

    @property
    def run_id(self) -> str: ...

    @property
    def agent_id(self) -> str: ...

    def next_number(self) -> int:
        """The number of the run's next change."""
        ...

    def record(self, number: int, commit: str, files: tuple[FileChange, ...]) -> None:
        """Record that the change was applied; `commit` holds it for undo."""
        ...


class RecordedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded change of the user's files, applied or not.

    The `name` of `steps` (applied) and `undone` changes is a number. `kept` is the work of an agent
    that failed, and `made` is such work that the user applied later; their `name` is the agent's
    id.
    """

    run_id: str
    kind: str
    name: str
    commit: str
    title: str = ""
    agent_id: str = ""
    """The agent that made it; "" for changes of earlier versions."""

    @property
    def number(self) -> int | None:
        return int(self.name) if self.kind in ("steps", "undone") else None


class ChangeHistory(Protocol):
    """The recorded changes of the user's files: to show, undo and redo."""

    async def changes(self, run_id: str) -> Sequence[RecordedChange]:
        """All changes of a run, in the order in which they were applied."""
        ...

    async def patch(self, change: RecordedChange) -> str:
        """The change as a unified diff."""
        ...

    async def files(self, change: RecordedChange) -> tuple[FileChange, ...]:
        """The files that were changed."""
        ...

    async def undo(self, changes: Sequence[RecordedChange]) -> ApplyResult:
        """Revert these changes, the last first: all or none. Later edits stay, or are refused.

        `redo` too applies all or none. To undo or redo a second time changes nothing.
        """
        ...

    async def redo(self, changes: Sequence[RecordedChange]) -> ApplyResult: ...

    async def restored(
        self, without: Sequence[RecordedChange], added: Sequence[RecordedChange]
    ) -> str:
        """Commit the current files without some changes, and with others. Nothing is written.

        Raises WorkspaceError if later edits are in the way.
        """
        ...

    async def check_kept(self, commits: Sequence[str]) -> None:
        """Raise WorkspaceError if one of the commits was cleaned away."""
        ...

    async def mark(self, changes: Sequence[RecordedChange], *, undone: bool) -> None:
        """Mark the changes as undone, or as applied."""
        ...


class TreeLocation(msgspec.Struct, frozen=True):
    """Where other processes of this machine find a tree. `folder` is "" for the user's own."""

    folder: str = ""
    base: str = ""
    """The commit that a copy was made of."""


class ProjectFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a machine needs to make working copies of a project's commits."""

    id: str
    """Names the project's repository, on any machine."""
    top: str
    """The top of the user's tree."""
    is_repository: bool
    object_format: str
    settings: tuple[str, ...]
    """Settings that say how git reads files."""
    exclude_patterns: bytes
    """The user's patterns of ignored files, besides those in .gitignore files."""
    shallow: bytes
    """The commits whose parents were not cloned."""
    problem: str = ""
    """Why its commits cannot be sent; "" if they can."""


class FileTree(Protocol):
    """The files of the user's project, or of one agent's copy of it. Children's work is merged
    here.

    Commits are made in a private repository; the user's is only read. Failures raise
    WorkspaceError.
    """

    def workspace(self, directory: str) -> Workspace:
        """A directory of the project, in this tree."""
        ...

    @property
    def location(self) -> TreeLocation: ...

    async def why_no_copies(self) -> str:
        """Why children cannot have working copies; "" if they can."""
        ...

    async def snapshot(self, after: str | None) -> str:
        """Commit the current files; returns `after` if nothing has changed since that commit."""
        ...

    async def copy(
        self,
        base: str,
        *,
        name: str,
        directory: str,
        content: str = "",
        on_progress: Callable[[str], None] | None = None,
    ) -> WorkingCopy:
        """Make a copy of the commit `base` for an agent to work in.

        With `content`, the copy has the files of that commit, and its work is what differs from
        `base`. `on_progress` is told how far a long one is.
        """
        ...

    async def reopen(self, base: str, *, name: str, directory: str) -> WorkingCopy:
        """Open the copy of that name that another process left."""
        ...

    async def check_unused(self, names: Sequence[str]) -> None:
        """Raise WorkspaceError if another process uses one of the copies of these names."""
        ...

    async def discard(self, names: Sequence[str]) -> None:
        """Remove the copies of these names that another process left."""
        ...

    async def facts(self) -> ProjectFacts:
        """The facts that another machine needs to make copies of commits."""
        ...

    async def history(self) -> Mapping[str, str]:
        """The user's commits, by the names that the user has given them."""
        ...

    async def make_bundle(self, refs: Mapping[str, str], have: Sequence[str]) -> str:
        """Write commits into a file, for a repository that has the commits `have`.

        Returns the path of the file, in a folder of its own that the caller removes.
        """
        ...

    async def read_bundle(self, path: str) -> Mapping[str, str]:
        """Store the commits of a bundle; returns them by the names that it gives them."""
        ...

    async def merge(self, head: str, commit: str, *, base: str, message: str) -> MergeResult:
        """Merge the changes from `base` to `commit` into `head`."""
        ...

    async def diff(self, base: str, commit: str) -> str:
        """The changes from `base` to `commit` as a unified diff."""
        ...

    async def commit_resolution(self, commit: str, *, parents: Sequence[str], message: str) -> str:
        """Commit the merge of `parents` with the files of `commit`, which resolve the conflicts."""
        ...

    async def apply(
        self, base: str, commit: str, recorder: ChangeRecorder | None, *, message: str
    ) -> ApplyResult:
        """Apply the changes from `base` to `commit`; edits of others meanwhile stay."""
        ...

    async def keep_unmerged(
        self, base: str, commit: str, *, run_id: str, agent_id: str, message: str
    ) -> None:
        """Record work that was not merged, so that the user can look at it or apply it."""
        ...

    async def with_unmerged(self, head: str, *, run_id: str, agent_id: str) -> MergeResult | None:
        """The commit `head` with the work that `keep_unmerged` recorded; None if there is none."""
        ...

    def with_recording(
        self, directory: str, sandbox: Sandbox | None, recorder: ChangeRecorder | None
    ) -> tuple[Workspace, Sandbox | None]:
        """The workspace of a directory and the sandbox; writes and commands record changes."""
        ...


class WorkingCopy(FileTree, Protocol):
    """An agent's own copy of the files. It is locked until it is removed or released."""

    async def propose(self, *, message: str) -> Proposal:
        """Everything that has changed in the copy, by any tool, command or process."""
        ...

    async def update(self, commit: str, merged: str, *, base: str) -> tuple[FileChange, ...]:
        """Change the files, which are those of `commit`, to those of `merged`.

        From then on, the work in the copy is what differs from `base`. Returns what has changed.
        """
        ...

    async def advance(self, before: str, after: str, *, base: str) -> None:
        """Change the files by what differs between two commits, whatever it is.

        From then on, the work in the copy is what differs from `base`. Raises WorkspaceError if the
        files were changed meanwhile where the commits differ.
        """
        ...

    async def remove(self, on_progress: Callable[[str], None] | None = None) -> None: ...

    def release(self) -> None:
        """Unlock the copy, for a process that reopens it."""
        ...

    def leave_to_user(self) -> str:
        """Keep the copy for the user, because its work cannot be saved elsewhere; its path."""
        ...
