"""Looking at what a run has done to the files, taking it back, and making it again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from retinue.domain.events import Event, FilesChanged
from retinue.domain.lifecycle import State
from retinue.domain.projection import RunView, fold
from retinue.domain.result import FileChange
from retinue.errors import RunError
from retinue.ports import Applied, History, KeptChange, Posts, Store
from retinue.runtime.audit import read_all

IN_PLACE = ("steps", "made")


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
        history: History,
        view: RunView,
        events: Sequence[Event],
        changes: Sequence[KeptChange],
    ) -> None:
        self._history = history
        self._view = view
        self._changes = changes
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
            for one in self._of(agent, self._changes)
        ]

    async def undo(self, agent: str | None = None, *, to: int | None = None) -> Rewritten:
        """Take changes back; with `to`, those after that step. RunError if there are none."""
        chosen = [one for one in self._of(agent, self._changes) if one.kind in IN_PLACE]
        if to is not None:
            chosen = [one for one in chosen if one.number is None or one.number > to]
        if not chosen:
            raise RunError(f"There is nothing to undo {self._where(agent)}.")
        return self._told(chosen, await self._history.undo(chosen))

    async def redo(self, agent: str | None = None) -> Rewritten:
        """Make changes again that were taken back; of an agent that failed, those never made."""
        chosen = [one for one in self._of(agent, self._changes) if one.kind == "undone"]
        if not chosen and agent is not None:
            chosen = [one for one in self._of(agent, self._changes) if one.kind == "kept"]
        if not chosen:
            raise RunError(f"There is nothing to redo {self._where(agent)}.")
        return self._told(chosen, await self._history.redo(chosen))

    def _where(self, agent: str | None) -> str:
        return f"in run {self._view.id}" if agent is None else f"of {agent} in run {self._view.id}"

    def _of(self, agent: str | None, changes: Sequence[KeptChange]) -> list[KeptChange]:
        if agent is None:
            return list(changes)
        wanted = self._below(self._view.agent(agent).id)
        return [one for one in changes if self._author(one) in wanted]

    def _below(self, agent_id: str) -> set[str]:
        children = self._view.agents[agent_id].children
        return {agent_id}.union(*map(self._below, children))

    def _author(self, one: KeptChange) -> str:
        return one.name if one.number is None else self._whose.get(one.commit, "")

    def _path(self, one: KeptChange) -> str:
        found = self._view.agents.get(self._author(one))
        return "" if found is None else found.path

    def _told(self, chosen: Sequence[KeptChange], applied: Applied) -> Rewritten:
        """What happened, and who else has changed the files that stand in the way."""
        first = min(self._changes.index(one) for one in chosen)
        since: dict[str, str] = {}
        for one in self._changes[first:]:
            if one not in chosen and one.kind in IN_PLACE:
                since.update(dict.fromkeys(self._paths.get(one.commit, ()), self._author(one)))
        refused = tuple(
            f"{path} (changed since by {since[path]})" if path in since else path
            for path in applied.refused
        )
        return Rewritten(files=applied.files, refused=refused)


async def past(
    store: Store,
    history: History,
    posts: Posts,
    run_id: str,
    *,
    agent: str | None = None,
    change: bool = False,
) -> Past:
    """What a run has done; with `change`, RunError if it may still do more."""
    row = await store.run(run_id)
    events = await read_all(store, row.id)
    view = fold(events)
    # What has ended can be taken back while others are at work, as the user could do it.
    ended = agent is not None and view.agent(agent).state is State.CLOSED
    if change and not ended and row.status is None and posts.held(row.id):
        raise RunError(
            f"Run {row.id} is still at work; wait for it, stop it by `retinue cancel {row.id}`,"
            " or name an agent that has ended."
        )
    return Past(history, view, events, await history.kept(row.id))
