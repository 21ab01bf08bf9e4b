"""The changes that a run made to the user's files: show, undo and redo them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from retinue.domain.events import ChangesRedone, ChangesUndone, Fact
from retinue.domain.lifecycle import State
from retinue.domain.result import FileChange
from retinue.domain.run_state import RunState, fold
from retinue.errors import RunError
from retinue.ports.clock import Clock
from retinue.ports.file_tree import ApplyResult, ChangeHistory, RecordedChange
from retinue.ports.store import RunLocks, Store
from retinue.runtime.core.journal import record_in_stopped_run
from retinue.runtime.core.task_group import run_to_completion
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.recovery import check_sealed

APPLIED = ("steps", "made")
"""Kinds of recorded changes that are in the files now."""

Write = Callable[[Fact], Awaitable[None]]
"""Records a fact in the journal of a run, and returns when it is durable."""


class ChangePatch(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the files. `agent_id` is "" if the journal does not say who made it.

    `state` is "made", "undone", or "kept" for the work of a child that failed.

    ```python
    run = await rt.run("Look around.")
    for change in await rt.diff(run.id):
        print(change.number, change.path, change.patch)
    ```
    """

    state: str
    number: int | None
    agent_id: str
    path: str
    title: str
    patch: str


class UndoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The files that an undo or redo has changed. If paths are `refused`, it changed none.

    ```python
    undone = retinue.UndoResult(refused=("a.txt: changed later by a3",))
    assert not undone.ok
    ```
    """

    files: tuple[FileChange, ...] = ()
    refused: tuple[str, ...] = ()
    """The paths whose later changes conflict, and who made those changes."""
    forbidden: bool = False
    """Whether no agent may write the `refused` paths. Otherwise they were changed since."""

    @property
    def ok(self) -> bool:
        """Whether the files were changed."""
        return not self.refused

    def check(self, done: str) -> None:
        """Raise RunError if nothing was changed; `done` is "undone" or "redone"."""
        if self.forbidden:
            raise RunError(f"Nothing was {done}: {'; '.join(self.refused).rstrip('.')}.")
        if self.refused:
            raise RunError(
                f"Nothing was {done}: later changes conflict with it: {', '.join(self.refused)}."
                " Undo them first, or edit the files yourself."
            )


class RunChanges:
    """The changes of one run."""

    def __init__(
        self, history: ChangeHistory, state: RunState, changes: Sequence[RecordedChange]
    ) -> None:
        """`state` is detailed; `changes` are all changes of the run, in their order."""
        self.state = state
        self._history = history
        self._changes = changes
        self._recorded = {fact.commit: (agent, fact) for agent, fact in state.file_changes}

    async def diff(
        self, agent: str | None = None, *, numbers: Collection[int] | None = None
    ) -> list[ChangePatch]:
        """All changes, or those of one agent and its descendants, or those with `numbers`."""
        return [
            ChangePatch(
                state="made" if change.kind in APPLIED else change.kind,
                number=change.number,
                agent_id=self._author_id(change),
                path=self._author_path(change),
                title=change.title,
                patch=await self._history.patch(change),
            )
            for change in self.of(agent)
            if numbers is None or change.number in numbers
        ]

    def of(self, agent: str | None, *kinds: str) -> list[RecordedChange]:
        """Changes of the run, or of one agent and its descendants; of these kinds, or of any."""
        authors = None if agent is None else self._with_descendants(self.state.agent(agent).id)
        return [
            change
            for change in self._changes
            if (authors is None or self._author_id(change) in authors)
            and (not kinds or change.kind in kinds)
        ]

    def _with_descendants(self, agent_id: str) -> set[str]:
        children = self.state.agents[agent_id].children
        return {agent_id}.union(*map(self._with_descendants, children))

    def _author_id(self, change: RecordedChange) -> str:
        if change.number is None:
            return change.name
        agent, _ = self._recorded.get(change.commit, (None, None))
        return "" if agent is None else agent.id

    def _author_path(self, change: RecordedChange) -> str:
        author = self.state.agents.get(self._author_id(change))
        return "" if author is None else author.path

    def result(self, chosen: Sequence[RecordedChange], applied: ApplyResult) -> UndoResult:
        """The result of an undo or redo, with the names of others who changed refused files."""
        first = min(self._changes.index(change) for change in chosen)
        changed_by: dict[str, str] = {}
        for change in self._changes[first:]:
            if change not in chosen and change.kind in APPLIED and change.commit in self._recorded:
                agent, fact = self._recorded[change.commit]
                changed_by.update((file.path, agent.id) for file in fact.files)
        refused = tuple(
            f"{path} (changed since by {changed_by[path]})" if path in changed_by else path
            for path in applied.refused
        )
        return UndoResult(files=applied.files, refused=refused, forbidden=applied.forbidden)


class UndoRedo:
    """Undoes and redoes changes of one run, and records that in its journal."""

    def __init__(
        self, changes: RunChanges, history: ChangeHistory, write: Write, by: str = ""
    ) -> None:
        """`by` says where the user is, if not at a terminal; it is recorded."""
        self._by = by
        self._changes = changes
        self._history = history
        self._write = write

    async def undo(self, agent: str | None = None, *, to: int | None = None) -> UndoResult:
        """Undo changes; with `to`, only those after that number. RunError if there are none."""
        chosen = self._changes.of(agent, *APPLIED)
        if to is not None:
            chosen = [one for one in chosen if one.number is None or one.number > to]
        return await self._rewrite(agent, chosen, undo=True)

    async def redo(self, agent: str | None = None) -> UndoResult:
        """Redo changes that were undone. Without any, apply the kept work of a failed agent."""
        chosen = self._changes.of(agent, "undone")
        if not chosen and agent is not None:
            chosen = self._changes.of(agent, "kept")
        return await self._rewrite(agent, chosen, undo=False)

    async def _rewrite(
        self, agent: str | None, chosen: Sequence[RecordedChange], *, undo: bool
    ) -> UndoResult:
        state = self._changes.state
        if not chosen:
            whose = "" if agent is None else f"of {agent} "
            what = "undo" if undo else "redo"
            raise RunError(f"There is nothing to {what} {whose}in run {state.id}.")
        kind = ChangesUndone if undo else ChangesRedone
        work = self._history.undo if undo else self._history.redo

        async def rewrite() -> ApplyResult:
            applied = await work(chosen)
            if not applied.refused:
                fact = kind(
                    files=applied.files,
                    numbers=tuple(one.number for one in chosen if one.number is not None),
                    kept=tuple(one.name for one in chosen if one.number is None),
                    agent="" if agent is None else state.agent(agent).id,
                    by=self._by,
                )
                # If the process is killed before `mark`, the user repeats the undo, which finds
                # nothing left to change. So it may be recorded twice, but never not at all.
                await self._write(fact)
                await self._history.mark(chosen, undone=undo)
            return applied

        return self._changes.result(chosen, await run_to_completion(rewrite()))


async def load_changes(store: Store, history: ChangeHistory, run_id: str) -> RunChanges:
    """The changes of a run so far."""
    row = await store.run(run_id)
    state = fold(await read_all(store, row.id), detailed=True)
    return RunChanges(history, state, await history.changes(row.id))


@asynccontextmanager
async def open_undo(
    store: Store,
    history: ChangeHistory,
    run_locks: RunLocks,
    clock: Clock,
    run_id: str,
    *,
    agent: str | None = None,
    at_work: Callable[[str], Write | None] = lambda _: None,
    by: str = "",
) -> AsyncIterator[UndoRedo]:
    """Hold a run, to undo and redo its changes.

    RunError if it may still change more, or if it is not the user's own.

    `at_work` returns the writer of a run that this process works on. The changes of its closed
    agents can be undone meanwhile. No other process may write the journal.
    """
    row = await store.run(run_id)
    check_sealed(row)
    write = at_work(row.id)
    if write is not None:
        changes = await load_changes(store, history, row.id)
        if agent is None or changes.state.agent(agent).state is not State.CLOSED:
            raise RunError(
                f"Run {row.id} is still at work; wait for it, stop it by `retinue cancel {row.id}`,"
                " or name an agent that has ended."
            )
        yield UndoRedo(changes, history, write, by)
        return
    lock = run_locks.acquire(row.id)
    try:
        changes = await load_changes(store, history, row.id)
        write = partial(record_in_stopped_run, store, clock, row.id)
        yield UndoRedo(changes, history, write, by)
    finally:
        lock.release()
