"""Trees of files: the user's project and the working copies of agents; merges and undo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from retinue.domain.result import Conflict, FileChange
from retinue.ports.sandbox import Sandbox
from retinue.ports.workspace import Workspace


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What a child has made of its copy.

    `paths` are those it has changed, from the directory that it works in; what lies outside begins
    with `..`. `problems` say why some of it can never be integrated.
    """

    commit: str
    files: tuple[FileChange, ...] = ()
    paths: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class MergeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Two commits made one; where they contradict each other, the files have markers."""

    commit: str
    conflicts: tuple[Conflict, ...] = ()


class ApplyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a tree. `commit` keeps it as a step; nothing was done if some is `refused`."""

    commit: str = ""
    files: tuple[FileChange, ...] = ()
    refused: tuple[str, ...] = ()


class ChangeRecorder(Protocol):
    """Where the changes of the user's tree are counted and put on record. Safe in any thread."""

    @property
    def run_id(self) -> str: ...

    def next_number(self) -> int:
        """The number of the next step of the run."""
        ...

    def record(self, number: int, commit: str, files: tuple[FileChange, ...]) -> None:
        """The step is in the tree, and `commit` keeps it."""
        ...


class RecordedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the user's files, whether it is in them or not.

    `kind` says so: `steps` were made and `undone` were taken back, and their `name` is a number;
    `kept` is the work of an agent that failed and `made` such work that the user wanted after all,
    and their `name` is the agent's id.
    """

    run_id: str
    kind: str
    name: str
    commit: str
    title: str = ""

    @property
    def number(self) -> int | None:
        return int(self.name) if self.kind in ("steps", "undone") else None


class ChangeHistory(Protocol):
    """The changes of the user's files, which can be looked at, taken back and made again."""

    async def changes(self, run_id: str) -> Sequence[RecordedChange]:
        """All changes of a run, in the order in which they were made."""
        ...

    async def patch(self, change: RecordedChange) -> str:
        """It as a unified diff."""
        ...

    async def undo(self, changes: Sequence[RecordedChange]) -> ApplyResult:
        """Take these out of the files, the last first. What others did since stays, or is refused.

        It is all of them or none. So is `redo`. Whoever does it a second time changes nothing.
        """
        ...

    async def redo(self, changes: Sequence[RecordedChange]) -> ApplyResult: ...

    async def mark(self, changes: Sequence[RecordedChange], *, undone: bool) -> None:
        """Keep them as undone from now on, or as made."""
        ...


class FileTree(Protocol):
    """A tree of files: the user's, or the copy of one agent. Its children's work goes into it.

    Commits are made in a private place; the user's repository is read and never written. What
    cannot be done raises WorkspaceError.
    """

    def workspace(self, directory: str) -> Workspace:
        """The files of a directory of the project, in this tree."""
        ...

    async def why_no_copies(self) -> str:
        """Why children cannot have copies of their own here; "" if they can."""
        ...

    async def snapshot(self, after: str | None) -> str:
        """A commit of the tree as it is now; `after` itself if that is the same."""
        ...

    async def copy(self, base: str, *, name: str, directory: str) -> WorkingCopy:
        """A copy of `base` for an agent to work in."""
        ...

    async def reopen(self, base: str, *, name: str, directory: str) -> WorkingCopy:
        """The copy of that name, as another process has left it."""
        ...

    async def discard(self, names: Sequence[str]) -> None:
        """Remove the copies of these names that another process has left."""
        ...

    async def merge(self, head: str, commit: str, *, base: str, message: str) -> MergeResult:
        """`head` with what `commit` has over `base`."""
        ...

    async def commit_resolution(self, commit: str, *, parents: Sequence[str], message: str) -> str:
        """The merge of `parents` as it is in `commit`, where somebody has settled its conflicts."""
        ...

    async def apply(
        self, base: str, commit: str, recorder: ChangeRecorder | None, *, message: str
    ) -> ApplyResult:
        """Bring what `commit` has over `base` into the tree, beside what others did meanwhile."""
        ...

    async def keep_unmerged(
        self, base: str, commit: str, *, run_id: str, agent_id: str, message: str
    ) -> None:
        """Keep work that was not integrated, for the user to look at."""
        ...

    def with_recording(
        self,
        workspace: Workspace,
        sandbox: Sandbox | None,
        directory: str,
        recorder: ChangeRecorder | None,
    ) -> tuple[Workspace, Sandbox | None]:
        """The same, but each change of the tree becomes a step, and commands tell of theirs."""
        ...


class WorkingCopy(FileTree, Protocol):
    """An agent's own copy. It is in use until it is removed."""

    async def propose(self, *, message: str) -> Proposal:
        """All that has changed in it, whoever or whatever did it."""
        ...

    async def remove(self) -> None: ...

    def release(self) -> None:
        """Leave it to whoever reopens it."""
        ...

    def leave_to_user(self) -> str:
        """Leave it to the user, since the work in it cannot be had otherwise; where it is."""
        ...
