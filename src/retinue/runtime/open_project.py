"""An open project: its settings, its files, and the journals of its runs. No agent works here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from retinue.domain.budget import Budget
from retinue.domain.events import Event
from retinue.domain.grant import Mode
from retinue.domain.role import Role
from retinue.domain.server_info import EndpointLoad
from retinue.domain.slash_command import SlashCommand
from retinue.errors import UsageError
from retinue.ports.sandbox import Sandbox
from retinue.runtime.history.follow import follow as follow_journal
from retinue.runtime.history.undo import (
    ChangePatch,
    UndoRedo,
    UndoResult,
    Write,
    load_changes,
    open_undo,
)
from retinue.runtime.services import Services


class OpenProject:
    """The part of a `Runtime` for which no agent works."""

    def __init__(self, services: Services, at_work: Callable[[str], Write | None]) -> None:
        self._policy = services.policy
        self._services = services
        self._at_work = at_work

    @property
    def directory(self) -> str:
        """The project that agents work in, as an absolute path."""
        return self._policy.directory

    @property
    def model(self) -> str:
        """The name of the model of all agents for which no other is chosen."""
        return self._policy.model

    @property
    def mode(self) -> Mode:
        """How much agents may do without asking."""
        return self._policy.mode

    @property
    def budget(self) -> Budget:
        """The limits of each run as a whole."""
        return self._policy.budget

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user about this runtime, a line each."""
        return self._policy.notes

    @property
    def roles(self) -> Mapping[str, Role]:
        """The roles and profiles that children can have, by name."""
        return self._services.roles

    @property
    def commands(self) -> Mapping[str, SlashCommand]:
        """The slash commands of the user and the project, by name."""
        return self._services.commands

    @property
    def attended(self) -> bool:
        """Whether a person can be asked to approve something."""
        return self._policy.attended

    @property
    def sandbox(self) -> Sandbox | None:
        """Where shell commands run; None if agents have no shell."""
        return self._services.sandbox

    @property
    def loads(self) -> Sequence[EndpointLoad]:
        """How busy the model endpoints are."""
        return self._services.models.loads()

    @property
    def window(self) -> int | None:
        """Tokens that fit into one request of the default model, if its server says."""
        served = self._services.models.known(self.model)
        return None if served is None else served.window

    # Files and journals

    async def files(self, glob: str, *, limit: int = 1_000) -> list[str]:
        """The files of the project that match a glob, sorted, without those that git ignores.

        Raises UsageError if there are more than `limit`.
        """
        workspace = self._services.file_tree.workspace(self._policy.directory)
        found, more = await asyncio.to_thread(workspace.find, glob, under=".", limit=limit)
        if more:
            raise UsageError(f"More than {limit:,} files match {glob!r}; choose fewer.")
        return list(found)

    async def events(self, run_id: str, *, follow: bool = False) -> AsyncIterator[Event]:
        """The events of a run; with `follow`, also new ones until no process works on the run.

        Another process may be running it.

        ```python
        run = await rt.run("Look around.")
        types = [event.type async for event in rt.events(run.id)]
        assert types[-1] == "run.finished"
        ```
        """
        storage, clock = self._services.storage, self._services.clock
        is_active = storage.run_locks.is_held if follow else None
        async for event in follow_journal(storage.store, clock, run_id, is_active=is_active):
            yield event

    async def diff(
        self, run_id: str, agent: str | None = None, *, numbers: Collection[int] | None = None
    ) -> list[ChangePatch]:
        """The changes of a run, or of an agent and its descendants, to the files, one by one.

        With `numbers`, only the changes with these numbers.
        """
        found = await load_changes(self._services.storage.store, self._services.history, run_id)
        return await found.diff(agent, numbers=numbers)

    async def undo(
        self, run_id: str, agent: str | None = None, *, to: int | None = None
    ) -> UndoResult:
        """Undo the changes of a run, or of one agent, to the files: all of them or none.

        With `to`, undo the changes after that step. Later changes by others stay; if that is
        impossible, nothing is changed and `refused` says why. Raises RunError if there is nothing
        to undo, or if the agents are still running.

        ```python
        model = ScriptedModel([call("write_file", path="b.txt", content="x"), say("Written.")])
        async with retinue.open(".", model=model, mode="auto") as rt:
            run = await rt.run("Write b.txt.")
            undone = await rt.undo(run.id)
            assert [change.path for change in undone.files] == ["b.txt"]
        ```
        """
        async with self._open_undo(run_id, agent) as found:
            return await found.undo(agent, to=to)

    async def redo(self, run_id: str, agent: str | None = None) -> UndoResult:
        """Redo what was undone. For an agent that failed, merge the work that was kept."""
        async with self._open_undo(run_id, agent) as found:
            return await found.redo(agent)

    def _open_undo(self, run_id: str, agent: str | None) -> AbstractAsyncContextManager[UndoRedo]:
        services = self._services
        return open_undo(
            services.storage.store,
            services.history,
            services.storage.run_locks,
            services.clock,
            run_id,
            agent=agent,
            at_work=self._at_work,
            by=services.person.origin,
        )
