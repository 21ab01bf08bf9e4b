"""Reads runs for the page and the API: lists, contracts, diffs, and the stream of changes.

Everything comes from the journal of the project; no route serves a file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from retinue.config.environment import Environment
from retinue.domain.events import Event
from retinue.domain.messages import Usage
from retinue.domain.run_state import RunState
from retinue.errors import UsageError
from retinue.interfaces.view.run_status import row_status
from retinue.interfaces.web.run_changes import Change, RunFold, phase
from retinue.ports.store import RunRow, Store
from retinue.project import has_journal, open_journal, open_run, open_run_locks, user_file_tree
from retinue.run_statistics import add_runs, read_statistics
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.session import user_runs
from retinue.runtime.history.undo import ChangePatch, load_changes
from retinue.telemetry.journal_metrics import JournalMetrics
from retinue.telemetry.statistics import PROJECT, Row, Statistics

PAGE_EVENTS = 1_000
LIVE_POLL_S = 0.1
IDLE_POLL_S = 0.5
KEEP_ALIVE_S = 15.0
MAX_RUNS = 1_000
STATISTICS_RUNS = 500


class RunItem(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the overview."""

    id: str
    kind: str
    task: str
    session: str | None
    status: str
    live: bool
    """Whether a process works on the run."""
    waits_for_person: bool
    sealed: bool
    """Whether this user has started the run. Other runs are read-only."""
    pruned: bool
    agents: int
    events: int
    started_at: float
    finished_at: float | None
    tokens: int
    cost_usd: float


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    project: str
    read_only: bool
    runs: tuple[RunItem, ...]


class AgentEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The contract of an agent, and its events."""

    contract: msgspec.Raw
    events: tuple[Event, ...]


class Text(msgspec.Struct, frozen=True):
    """The next piece of text that an agent's model is writing; `start` marks the first piece."""

    agent: str
    text: str
    start: bool


Texts = Mapping[str, Mapping[str, str]]
"""Text that models are writing now, by run and agent."""


class Live(msgspec.Struct, frozen=True):
    """Whether a process works on the run."""

    live: bool


class RunReader:
    """Reads the runs of one project, or of one exported file.

    Every request opens the journal anew: it may be created, replaced or locked meanwhile.
    """

    def __init__(self, directory: Path, environment: Environment, exported: str | None) -> None:
        self.directory = directory
        self.environment = environment
        self._exported = exported
        self.run_locks = open_run_locks(directory, environment)
        self._usage: dict[str, tuple[int, Usage]] = {}
        self._active: dict[str, RunState] = {}
        self._metrics = JournalMetrics()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Store]:
        if self._exported is None:
            async with open_journal(self.directory, self.environment) as store:
                yield store
        else:
            async with open_run(self.directory, self._exported) as (exported, _):
                yield exported

    async def _has_runs(self) -> bool:
        return self._exported is not None or await has_journal(self.directory, self.environment)

    async def runs(self, limit: int) -> tuple[RunItem, ...]:
        """The latest runs, those at work first."""
        if not await self._has_runs():
            return ()
        async with self.open() as store:
            items = [await self._item(store, row) for row in await user_runs(store, limit=limit)]
        self._active = {item.id: self._active[item.id] for item in items if item.id in self._active}
        return tuple(sorted(items, key=lambda item: not item.live))

    async def metrics(self) -> str:
        """Metrics of all runs, in Prometheus' format."""
        if not await self._has_runs():
            return ""
        async with self.open() as store:
            return await self._metrics.text(store, self.run_locks.is_held)

    async def statistics(self, by: str) -> list[Row]:
        """Sums over the latest runs; by project, of all projects of this user."""
        if by == PROJECT and self._exported is None:
            directory, environment = self.directory, self.environment
            return await read_statistics(by, directory, environment, limit=STATISTICS_RUNS)
        found = Statistics(by)
        if await self._has_runs():
            async with self.open() as store:
                await add_runs(found, store, STATISTICS_RUNS, self._exported or "")
        return found.rows

    async def run(self, run_id: str) -> RunItem:
        """A run by its id, or its first letters. An exported file has one run, whatever the id."""
        async with self.open() as store:
            if run_id == self._exported:
                (row,) = await store.runs(limit=1)
            else:
                row = await store.run(run_id)
            return await self._item(store, row)

    async def _item(self, store: Store, row: RunRow) -> RunItem:
        live = row.status is None and self.is_live(row.id)
        head, usage = self._usage.get(row.id, (-1, Usage()))
        if head != row.head_seq:
            usage = await store.usage(row.id)
            self._usage[row.id] = (row.head_seq, usage)
        return RunItem(
            id=row.id,
            kind=row.kind,
            task=row.task,
            session=row.session,
            status=await row_status(store, row, active=live),
            live=live,
            waits_for_person=live and await self._waits_for_person(store, row.id),
            sealed=row.sealed,
            pruned=row.pruned,
            agents=row.agents,
            events=row.head_seq,
            started_at=row.started_at,
            finished_at=row.finished_at,
            tokens=usage.tokens,
            cost_usd=usage.cost_usd,
        )

    async def _waits_for_person(self, store: Store, run_id: str) -> bool:
        state = self._active.setdefault(run_id, RunState())
        for event in await read_all(store, run_id, after=state.last_seq):
            state.apply(event)
        return any(phase(agent) == "person" for agent in state.agents.values())

    def is_live(self, run_id: str) -> bool:
        return self._exported is None and self.run_locks.is_held(run_id)

    async def agent(self, run_id: str, agent_id: str, after: int) -> AgentEvents:
        async with self.open() as store:
            row = await store.run(run_id)
            contracts = {a.id: a.context_json for a in await store.agents(row.id)}
            if agent_id not in contracts:
                raise UsageError(
                    f"Run {row.id} was cleaned away; only its outcome is left."
                    if row.pruned
                    else f"No agent {agent_id!r} in run {row.id}."
                )
            events = await store.agent_events(row.id, agent_id)
        return AgentEvents(
            contract=msgspec.Raw(contracts[agent_id].encode()),
            events=tuple(event for event in events if event.seq > after),
        )

    async def diff(self, run_id: str, agent: str | None) -> list[ChangePatch]:
        if self._exported is not None:
            raise UsageError("An exported run does not contain diffs; they stay in its project.")
        async with self.open() as store:
            file_tree = user_file_tree(self.directory, self.environment)
            return await (await load_changes(store, file_tree, run_id)).diff(agent)

    async def changes(
        self, run_id: str, after: int, *, payload: bool, texts: Texts
    ) -> AsyncIterator[list[Change] | Live | Text | None]:
        """Changes by the events after number `after`, in batches; waits for new events for ever.

        Also yields whether a process works on the run, when that changes; what models are writing,
        from `texts`; and None when nothing has happened for a while.
        """
        fold, seen, live, quiet_s = RunFold(), 0, None, 0.0
        sent: dict[str, str] = {}
        async with self.open() as store:
            row = await store.run(run_id)
            while True:
                is_live = self.is_live(row.id)
                page = await store.events(row.id, after=seen, limit=PAGE_EVENTS)
                if page:
                    seen, quiet_s = page[-1].seq, 0.0
                    batch = [
                        msgspec.structs.replace(change, payload=event.payload)
                        if payload
                        else change
                        for event in page
                        if (change := fold.apply(event)).seq > after
                    ]
                    if batch:
                        yield batch
                    # Let other requests proceed while a long journal is folded.
                    await asyncio.sleep(0)
                    continue
                if is_live != live:
                    live = is_live
                    yield Live(live)
                written = dict(texts.get(row.id, {}))
                for agent, text in written.items():
                    start = not (before := sent.get(agent, "")) or not text.startswith(before)
                    if text != before:
                        yield Text(agent, text if start else text[len(before) :], start)
                sent = written
                pause_s = LIVE_POLL_S if live else IDLE_POLL_S
                await asyncio.sleep(pause_s)
                quiet_s += pause_s
                if quiet_s >= KEEP_ALIVE_S:
                    quiet_s = 0.0
                    yield None
