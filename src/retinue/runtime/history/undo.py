"""Looking at what a run has done to the files, taking it back, and making it again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from retinue.domain.events import ChangesRedone, ChangesUndone, Event, Fact, FilesChanged
from retinue.domain.lifecycle import State
from retinue.domain.result import FileChange
from retinue.domain.run_state import RunState, fold
from retinue.errors import RunError
from retinue.ports.clock import Clock
from retinue.ports.file_tree import ApplyResult, ChangeHistory, RecordedChange
from retinue.ports.run_lock import RunLocks
from retinue.ports.store import RunRow, Store
from retinue.runtime.core.journal import Journal, JournalHead
from retinue.runtime.core.task_group import run_to_completion
from retinue.runtime.history.audit import read_all

IN_PLACE = ("steps", "made")

Write = Callable[[Fact], Awaitable[None]]
"""Put a fact in the journal of a run, and return when it is safe there."""


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the files. `agent_id` is "" where nobody has put on record whose it was.

    `state` is "made", "undone", or "kept" for the work of a child that failed.
    """

    state: str
    number: int | None
    agent_id: str
    path: str
    title: str
    patch: str


class Rewritten(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the files. If something is `refused`, nothing was touched: it says what."""

    files: tuple[FileChange, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.refused


class Past:
    """The changes of one run."""

    def __init__(
        self,
        history: ChangeHistory,
        view: RunState,
        events: Sequence[Event],
        changes: Sequence[RecordedChange],
    ) -> None:
        self._history = history
        self.view = view
        self.changes = changes
        self._whose: dict[str, str] = {}
        self._paths: dict[str, tuple[str, ...]] = {}
        for event in events:
            if isinstance(fact := event.fact, FilesChanged):
                self._whose[fact.commit] = event.agent_id
                self._paths[fact.commit] = tuple(file.path for file in fact.files)

    async def diff(self, agent: str | None = None) -> list[Changed]:
        """All of them, or those of one agent and of who worked for it."""
        return [
            Changed(
                state="made" if one.kind in IN_PLACE else one.kind,
                number=one.number,
                agent_id=self._author(one),
                path=self._path(one),
                title=one.title,
                patch=await self._history.patch(one),
            )
            for one in self.of(agent)
        ]

    def of(self, agent: str | None, *kinds: str) -> list[RecordedChange]:
        """The changes of the run, or of one agent and who worked for it; of any kind, or these."""
        wanted = None if agent is None else self._below(self.view.agent(agent).id)
        return [
            one
            for one in self.changes
            if (wanted is None or self._author(one) in wanted) and (not kinds or one.kind in kinds)
        ]

    def _below(self, agent_id: str) -> set[str]:
        children = self.view.agents[agent_id].children
        return {agent_id}.union(*map(self._below, children))

    def _author(self, one: RecordedChange) -> str:
        return one.name if one.number is None else self._whose.get(one.commit, "")

    def _path(self, one: RecordedChange) -> str:
        found = self.view.agents.get(self._author(one))
        return "" if found is None else found.path

    def told(self, chosen: Sequence[RecordedChange], applied: ApplyResult) -> Rewritten:
        """What happened, and who else has changed the files that stand in the way."""
        first = min(self.changes.index(one) for one in chosen)
        since: dict[str, str] = {}
        for one in self.changes[first:]:
            if one not in chosen and one.kind in IN_PLACE:
                since.update(dict.fromkeys(self._paths.get(one.commit, ()), self._author(one)))
        refused = tuple(
            f"{path} (changed since by {since[path]})" if path in since else path
            for path in applied.refused
        )
        return Rewritten(files=applied.files, refused=refused)


class Revision:
    """Changing what one run has done, with every change of it in its journal."""

    def __init__(self, past: Past, history: ChangeHistory, write: Write) -> None:
        self._past = past
        self._history = history
        self._write = write

    async def undo(self, agent: str | None = None, *, to: int | None = None) -> Rewritten:
        """Take changes back; with `to`, those after that step. RunError if there are none."""
        chosen = self._past.of(agent, *IN_PLACE)
        if to is not None:
            chosen = [one for one in chosen if one.number is None or one.number > to]
        return await self._rewritten(agent, chosen, undone=True)

    async def redo(self, agent: str | None = None) -> Rewritten:
        """Make changes again that were taken back; of an agent that failed, those never made."""
        chosen = self._past.of(agent, "undone")
        if not chosen and agent is not None:
            chosen = self._past.of(agent, "kept")
        return await self._rewritten(agent, chosen, undone=False)

    async def _rewritten(
        self, agent: str | None, chosen: Sequence[RecordedChange], *, undone: bool
    ) -> Rewritten:
        view = self._past.view
        if not chosen:
            whose = "" if agent is None else f"of {agent} "
            what = "undo" if undone else "redo"
            raise RunError(f"There is nothing to {what} {whose}in run {view.id}.")
        kind = ChangesUndone if undone else ChangesRedone
        work = self._history.undo if undone else self._history.redo

        async def through() -> ApplyResult:
            applied = await work(chosen)
            if not applied.refused:
                fact = kind(
                    files=applied.files,
                    steps=tuple(one.number for one in chosen if one.number is not None),
                    kept=tuple(one.name for one in chosen if one.number is None),
                    agent="" if agent is None else view.agent(agent).id,
                )
                # Whoever is killed before the last of these does all of it once more, and finds
                # nothing left to change: it may be told twice, and is never left untold.
                await self._write(fact)
                await self._history.mark(chosen, undone=undone)
            return applied

        return self._past.told(chosen, await run_to_completion(through()))


async def past(store: Store, history: ChangeHistory, run_id: str) -> Past:
    """What a run has done so far."""
    row = await store.run(run_id)
    return await _past(store, history, row)


async def _past(store: Store, history: ChangeHistory, row: RunRow) -> Past:
    events = await read_all(store, row.id)
    return Past(history, fold(events), events, await history.changes(row.id))


@asynccontextmanager
async def revision(
    store: Store,
    history: ChangeHistory,
    run_locks: RunLocks,
    clock: Clock,
    run_id: str,
    *,
    agent: str | None = None,
    at_work: Callable[[str], Write | None] = lambda _: None,
) -> AsyncIterator[Revision]:
    """What a run has done, to be changed. RunError if it may still do more.

    `at_work` finds the journal of a run that this process works on: what has ended there can be
    taken back while others are at work. Nobody else may write it meanwhile.
    """
    row = await store.run(run_id)
    write = at_work(row.id)
    if write is not None:
        found = await _past(store, history, row)
        if agent is None or found.view.agent(agent).state is not State.CLOSED:
            raise RunError(
                f"Run {row.id} is still at work; wait for it, stop it by `retinue cancel {row.id}`,"
                " or name an agent that has ended."
            )
        yield Revision(found, history, write)
        return
    run_lock = run_locks.acquire(row.id)
    try:
        found = await _past(store, history, await store.run(row.id))
        yield Revision(found, history, _Afterword(store, clock, found.view).write)
    finally:
        run_lock.release()


class _Afterword:
    """What is added to a journal that nobody writes any more, or nobody for now."""

    def __init__(self, store: Store, clock: Clock, view: RunState) -> None:
        self._store = store
        self._clock = clock
        self._view = view

    async def write(self, fact: Fact) -> None:
        row = await self._store.run(self._view.id)
        journal = Journal(self._store, self._clock, row.id, head=JournalHead.of(row), listener=None)
        assert self._view.root is not None, "what has changed files has a root"
        journal.record(fact, agent_id=self._view.root.id, parent_agent_id=None)
        await journal.durable()
