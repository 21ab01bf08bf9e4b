"""The metrics of all runs in a journal, for `retinue metrics` and `/metrics`."""

from __future__ import annotations

from collections.abc import Callable

from retinue.domain.agent_state import ROOT_ID
from retinue.domain.contract import decode_contract
from retinue.ports.store import RunRow, Store
from retinue.telemetry.measurements import ACTIVE, BUDGET_LEFT, measurements
from retinue.telemetry.prometheus import MetricTotals
from retinue.telemetry.spans import RUN_ID, SpanFold

MAX_RUNS = 100_000


class JournalMetrics:
    """Adds up the runs of a journal. Each call of `text` reads only what is new since the last."""

    def __init__(self) -> None:
        self._totals = MetricTotals()
        self._seen: dict[str, int] = {}
        self._folds: dict[str, SpanFold] = {}
        self._tokens_left = TokensLeft()

    async def text(self, store: Store, is_active: Callable[[str], bool]) -> str:
        """The metrics in Prometheus' format. `is_active`: does a process work on that run?"""
        rows = await store.runs(limit=MAX_RUNS)
        for row in rows:
            await self._read(store, row)
        active = [row for row in rows if row.status is None and is_active(row.id)]
        children = sum(self._folds[row.id].active for row in active)
        budgets = [
            (BUDGET_LEFT, {RUN_ID: row.id}, left)
            for row in active
            if (left := await self._tokens_left.of(store, row.id)) is not None
        ]
        return self._totals.text([(ACTIVE, {}, children), *budgets])

    async def _read(self, store: Store, row: RunRow) -> None:
        while self._seen.get(row.id, 0) < row.head_seq and not row.pruned:
            fold = self._folds.setdefault(row.id, SpanFold())
            events = await store.events(row.id, after=self._seen.get(row.id, 0))
            if not events:
                break
            for event in events:
                for span in fold.apply(event):
                    for measurement in measurements(span):
                        self._totals.add(measurement)
            self._seen[row.id] = events[-1].seq
        if row.status is not None:
            self._folds.pop(row.id, None)


async def token_limit(store: Store, run_id: str) -> int | None:
    """Tokens that a run may use; None if they are not limited."""
    agents = await store.agents(run_id)
    root = next((agent for agent in agents if agent.id == ROOT_ID), None)
    if root is None:
        return None
    return decode_contract(root.context_json).execution.budget.max_tokens


class TokensLeft:
    """Tokens that runs may still use. Reads the contract of a run once."""

    def __init__(self) -> None:
        self._limits: dict[str, int | None] = {}

    async def of(self, store: Store, run_id: str) -> int | None:
        """None if the tokens of the run are not limited."""
        if run_id not in self._limits:
            self._limits[run_id] = await token_limit(store, run_id)
        limit = self._limits[run_id]
        return None if limit is None else max(0, limit - (await store.usage(run_id)).tokens)
