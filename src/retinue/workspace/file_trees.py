"""The project and the working copies of agents: adapters of `FileTree` and `WorkingCopy`."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import msgspec

from retinue.domain.cleanup_report import Chore
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
from retinue.workspace.apply import Refused, apply, left_behind, recover
from retinue.workspace.changes import changes, contents, described, problems
from retinue.workspace.cleanup import (
    COPIES_S,
    OBJECTS_S,
    STEPS_S,
    clean_copies,
    clean_objects,
    clean_steps,
    sweep_daily,
)
from retinue.workspace.copies import WorkingCopy, discard_copy, make_copy, reopen_copy
from retinue.workspace.directory import DirectoryWorkspace
from retinue.workspace.names import quoted, shown
from retinue.workspace.private_git import Depot, Seal, is_foreign, set_aside
from retinue.workspace.recorded import Ledger, Look, RecordedSandbox, RecordedTree
from retinue.workspace.snapshot import Recent, Snapshot, take, unseen, users_tree
from retinue.workspace.source import find_source
from retinue.workspace.steps import (
    again,
    keep,
    kept,
    kept_ref,
    patch,
    renamed,
    step_ref,
    without,
)

# Somebody may be writing the tree: a change that meets another is worked out anew.
_TRIES = 3
_UNDONE = {"steps": "undone", "made": "kept"}


class Site(msgspec.Struct, frozen=True):
    """A tree on disk: how to look at it, and how to be the only one of us who writes it.

    `beside` is a folder on the same file system that no agent can write.
    """

    depot: Depot
    top: str
    beside: str
    take: Callable[[], Snapshot]
    alone: Callable[[], AbstractContextManager[None]]


class _GitFileTree(ABC):
    """What the user's tree and a copy of it have in common. Public methods are the port's."""

    def __init__(self, project: str, worktrees: str) -> None:
        """`project` is the directory as agents know it; copies are made below `worktrees`."""
        self._project = project
        self._worktrees = worktrees
        self._ledger = Ledger()

    @abstractmethod
    def _site(self) -> Site:
        """Blocks the first time."""

    @abstractmethod
    def workspace(self, directory: str) -> Workspace: ...

    async def why_no_copies(self) -> str:
        return await in_thread(lambda: self._site().depot.source.why_not)

    async def snapshot(self, after: str | None) -> str:
        return await in_thread(partial(self._state, after))

    def _state(self, after: str | None) -> str:
        site = self._site()
        with site.alone():
            tree = site.take().tree
        if after is None:
            return site.depot.commit(tree)
        same = tree == site.depot.tree_of(after)
        return after if same else site.depot.commit(tree, parents=[after])

    async def copy(self, base: str, *, name: str, directory: str) -> AgentWorkingCopy:
        return await in_thread_shielded(partial(self._copy, base, name, directory))

    def _copy(self, base: str, name: str, directory: str) -> AgentWorkingCopy:
        copy = make_copy(self._site().depot, os.path.join(self._worktrees, name), base)
        return AgentWorkingCopy(copy, self._project, self._worktrees, directory)

    async def reopen(self, base: str, *, name: str, directory: str) -> AgentWorkingCopy:
        return await in_thread(partial(self._reopen, base, name, directory))

    def _reopen(self, base: str, name: str, directory: str) -> AgentWorkingCopy:
        copy = reopen_copy(self._site().depot, os.path.join(self._worktrees, name), base)
        return AgentWorkingCopy(copy, self._project, self._worktrees, directory)

    async def discard(self, names: Sequence[str]) -> None:
        await in_thread_shielded(partial(self._discard, names))

    def _discard(self, names: Sequence[str]) -> None:
        for name in names:
            discard_copy(os.path.join(self._worktrees, name))

    async def merge(self, head: str, commit: str, *, base: str, message: str) -> MergeResult:
        return await in_thread(partial(self._merge, head, commit, base, message))

    def _merge(self, head: str, commit: str, base: str, message: str) -> MergeResult:
        depot = self._site().depot
        merged = _brought(depot, base, commit, depot.tree_of(head))
        made = depot.commit(merged.tree, parents=[head, commit], message=message)
        return MergeResult(
            commit=made,
            conflicts=tuple(
                Conflict(path=self._called(side.path), ours=side.ours, theirs=side.theirs)
                for side in merged.conflicts
            ),
        )

    def _called(self, path: str) -> str:
        """A path from the top, as it is called in the project."""
        return shown(_from(self._within(self._project), path))

    async def commit_resolution(self, commit: str, *, parents: Sequence[str], message: str) -> str:
        return await in_thread(partial(self._settle, commit, parents, message))

    def _settle(self, commit: str, parents: Sequence[str], message: str) -> str:
        depot = self._site().depot
        return depot.commit(depot.tree_of(commit), parents=parents, message=message)

    async def keep_unmerged(
        self, base: str, commit: str, *, run_id: str, agent_id: str, message: str
    ) -> None:
        ref = kept_ref(run_id, agent_id)
        await in_thread_shielded(partial(self._keep, base, commit, ref, message))

    def _keep(self, base: str, commit: str, ref: str, message: str) -> None:
        depot = self._site().depot
        keep(depot, ref, changes(depot, base, commit), message)

    async def apply(
        self, base: str, commit: str, recorder: ChangeRecorder | None, *, message: str
    ) -> ApplyResult:
        def wanted(depot: Depot, now: str) -> merges.Merged:
            return _brought(depot, base, commit, now)

        return await in_thread_shielded(partial(self._change, wanted, recorder, message))

    def _change(
        self,
        wanted: Callable[[Depot, str], merges.Merged],
        recorder: ChangeRecorder | None,
        message: str,
    ) -> ApplyResult:
        """Make of the tree what `wanted` makes of its present state, as a step."""
        done = change(self._site(), wanted, self._called, recorder, message)
        self._ledger.changed(done.paths)
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
            tree = RecordedTree(workspace, lambda: self._site().depot, recorder, self._ledger)
        if sandbox is not None:
            sandbox = RecordedSandbox(
                sandbox, partial(self._look, directory), self._ledger, recorder
            )
        return tree, sandbox

    def _look(self, directory: str) -> Look:
        site = self._site()
        with site.alone():
            taken = site.take()
        unseen = frozenset((*taken.nested, *taken.left_out))
        return Look(site.depot, taken.tree, partial(_from, self._within(directory)), unseen)

    def _within(self, directory: str) -> str:
        """Where a directory of the project is, from the top of the tree."""
        return os.path.relpath(directory, self._site().depot.source.top)


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
        self._news: list[str] = []
        self._home = home
        self._config_home = config_home
        self._opening = threading.Lock()
        self._opened: Site | None = None
        self._trees: dict[str, DirectoryWorkspace] = {}

    def workspace(self, directory: str) -> DirectoryWorkspace:
        if directory not in self._trees:
            self._trees[directory] = DirectoryWorkspace(directory)
        return self._trees[directory]

    def _site(self) -> Site:
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
                sweep_daily(self._opened.depot, self._worktrees)
        return self._opened

    def _open(self) -> Site:
        """What a process that was killed has left half done in the tree is put back."""
        source = find_source(self._project, home=self._home, config_home=self._config_home)
        kind = "git" if source.object_format == "sha1" else f"git-{source.object_format}"
        path = os.path.join(self._state_folder, kind)
        if away := set_aside(path, self._seal):
            self._news.append(
                f"the history of files was not made by you on this machine, and is in {away} now"
            )
        depot = Depot(path, source, seal=self._seal)
        beside = os.path.join(depot.path, "tmp")
        with depot.locked():
            found = recover(depot, beside)
        if found.paths:
            paths = ", ".join(map(self._called_from(source.top), found.paths))
            self._news.append(f"a change that was cut off was taken back: {paths}")
        for folder in found.rescued:
            self._news.append(f"files that could not be put back are in {folder}")
        return Site(depot, source.top, beside, partial(users_tree, depot, Recent()), depot.locked)

    def _called_from(self, top: str) -> Callable[[str], str]:
        within = os.path.relpath(self._project, top)
        return lambda path: shown(_from(within, path))

    async def news(self) -> tuple[str, ...]:
        """What an earlier process has left in disorder, and what has become of it; in words."""
        return await in_thread_shielded(self._looked_for_news)

    def _looked_for_news(self) -> tuple[str, ...]:
        for kind in ("git", "git-sha256"):
            path = os.path.join(self._state_folder, kind)
            if left_behind(os.path.join(path, "tmp")) or is_foreign(path, self._seal):
                self._site()
        return tuple(self._news)

    async def clean(self, older_s: float | None, *, look: bool) -> list[Chore]:
        """See `housekeeping`: what there was, and what of it has gone."""

        def work() -> list[Chore]:
            depot, ages = self._site().depot, (COPIES_S, STEPS_S, OBJECTS_S)
            copies_s, steps_s, objects_s = ages if older_s is None else (older_s,) * 3
            return [
                clean_copies(self._worktrees, older_s=copies_s, look=look),
                clean_steps(depot, older_s=steps_s, look=look),
                clean_objects(depot, older_s=objects_s, look=look),
            ]

        return await in_thread_shielded(work)

    # The port History

    async def changes(self, run_id: str) -> list[RecordedChange]:
        return await in_thread(lambda: kept(self._site().depot, run_id))

    async def patch(self, change: RecordedChange) -> str:
        found = await in_thread(lambda: patch(self._site().depot, change.commit))
        return found.decode("utf-8", "replace")

    async def undo(self, changes: Sequence[RecordedChange]) -> ApplyResult:
        wanted = partial(reverted, [change.commit for change in changes])
        return await in_thread_shielded(partial(self._change, wanted, None, ""))

    async def redo(self, changes: Sequence[RecordedChange]) -> ApplyResult:
        wanted = partial(repeated, [change.commit for change in changes])
        return await in_thread_shielded(partial(self._change, wanted, None, ""))

    async def mark(self, changes: Sequence[RecordedChange], *, undone: bool) -> None:
        kinds = _UNDONE if undone else {after: before for before, after in _UNDONE.items()}
        await in_thread_shielded(lambda: renamed(self._site().depot, kinds, changes))


class AgentWorkingCopy(_GitFileTree):
    """An agent's own copy of a tree; the work of its children goes into it."""

    def __init__(self, copy: WorkingCopy, project: str, worktrees: str, directory: str) -> None:
        super().__init__(project, worktrees)
        self._copied = copy
        self._directory = directory
        self._writing = threading.Lock()
        self._trees: dict[str, DirectoryWorkspace] = {}

    def _site(self) -> Site:
        copy = self._copied
        return Site(copy.depot, copy.top, copy.folder, partial(take, copy.where), self._alone)

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
                known_as=directory,
                known_to=msgspec.structs.replace(self._copied.where, folder=folder),
                readable=self._copied.borrowed,
                lent=self._copied.lent(folder, directory),
            )
        return self._trees[directory]

    async def propose(self, *, message: str) -> Proposal:
        return await in_thread_shielded(partial(self._propose, message))

    def _propose(self, message: str) -> Proposal:
        copy, depot = self._copied, self._copied.depot
        with self._writing:
            taken = take(copy.where)
            unknown = unseen(copy.where)
        found = changes(depot, copy.base, taken.tree)
        blobs = contents(depot, found)
        within = self._within(self._directory)
        wrong = problems(found, blobs)
        wrong += [f"{quoted(path)} is a repository inside the copy" for path in taken.nested]
        wrong += [f"{quoted(path)} is too large, or no file" for path in taken.left_out]
        wrong += [
            f"{quoted(path)} was written, but is a submodule or left out of your sparse checkout"
            for path in unknown
        ]
        return Proposal(
            commit=depot.commit(taken.tree, parents=[copy.base], message=message),
            files=described(found, blobs, partial(_from, within)),
            paths=tuple(_from(within, change.path) for change in found),
            problems=tuple(wrong),
        )

    async def remove(self) -> None:
        await in_thread_shielded(self._copied.remove)

    def release(self) -> None:
        self._copied.release()

    def leave_to_user(self) -> str:
        return self._copied.leave_to_user()


class Changed(msgspec.Struct, frozen=True):
    applied: ApplyResult
    paths: tuple[str, ...] = ()


def change(
    site: Site,
    wanted: Callable[[Depot, str], merges.Merged],
    called: Callable[[str], str],
    recorder: ChangeRecorder | None,
    message: str,
) -> Changed:
    """Make of a tree what `wanted` makes of its present state. `called` names a path in words."""
    depot = site.depot
    refused: tuple[str, ...] = ()
    for _ in range(_TRIES):
        with site.alone():
            now = site.take().tree
            merged = wanted(depot, now)
            if merged.conflicts:
                return Changed(ApplyResult(refused=tuple(called(s.path) for s in merged.conflicts)))
            found = changes(depot, now, merged.tree)
            if not found:
                return Changed(ApplyResult())
            blobs = contents(depot, found)
            if wrong := problems(found, blobs):
                return Changed(ApplyResult(refused=tuple(wrong)))
            number = None if recorder is None else recorder.next_number()
            ref = None if recorder is None or number is None else step_ref(recorder.run_id, number)
            try:
                commit = apply(depot, site.top, found, beside=site.beside, ref=ref, message=message)
            except Refused as error:
                refused = (str(error),)
                if error.rescued:
                    break  # Another try would not tell of it.
                continue
        files, paths = described(found, blobs, called), tuple(c.path for c in found)
        if recorder is not None and number is not None and commit is not None:
            recorder.record(number, commit, files)
        return Changed(ApplyResult(commit=commit or "", files=files), paths)
    return Changed(ApplyResult(refused=refused))


def reverted(commits: Sequence[str], depot: Depot, tree: str) -> merges.Merged:
    """`tree` without these steps, the last taken back first; the first conflict ends it."""
    merged = merges.Merged(tree)
    for commit in reversed(commits):
        merged = without(depot, commit, merged.tree)
        if merged.conflicts:
            break
    return merged


def repeated(commits: Sequence[str], depot: Depot, tree: str) -> merges.Merged:
    """`tree` with these changes once more, in their order; the first conflict ends it."""
    merged = merges.Merged(tree)
    for commit in commits:
        merged = again(depot, commit, merged.tree)
        if merged.conflicts:
            break
    return merged


def _brought(depot: Depot, base: str, commit: str, tree: str) -> merges.Merged:
    """`tree` with what `commit` has over `base`."""
    before, after = depot.tree_of(base), depot.tree_of(commit)
    if tree == before:
        return merges.Merged(after)
    return merges.merge_trees(depot, base=before, ours=tree, theirs=after)


def _from(within: str, path: str) -> str:
    """A path from the top, as it is called in a folder."""
    return path if within == "." else os.path.relpath(path, within)
