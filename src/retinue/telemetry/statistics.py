"""Statistics of roles, models, tools and projects, summed up from the spans of many runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from retinue.domain.events import Event
from retinue.domain.result import Status
from retinue.telemetry import spans
from retinue.telemetry.spans import Span, SpanFold

PROJECT = "project"
DIMENSIONS = ("role", "model", "tool", "kind", PROJECT)
_LIMITS = (Status.BUDGET_EXCEEDED, Status.TIMEOUT)


class Row(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One role, model, tool, kind of run, or project."""

    name: str
    count: int = 0
    """Agents, or runs by kind, or calls by tool."""
    ok: int = 0
    conflicts: int = 0
    limits: int = 0
    """Agents or runs that a limit ended."""
    cached: int = 0
    """Results that came from the cache."""
    denied: int = 0
    """Tool calls that were not allowed."""
    replies: int = 0
    retries: int = 0
    """Model calls that failed."""
    tokens_in: int = 0
    tokens_cached: int = 0
    """Input tokens that the server had in its cache."""
    tokens_out: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    """Durations added up."""

    @property
    def success(self) -> float | None:
        return self.ok / self.count if self.count else None

    @property
    def cache_share(self) -> float | None:
        return self.tokens_cached / self.tokens_in if self.tokens_in else None


class Statistics:
    """Sums by one dimension. Agents that are still at work are left out."""

    def __init__(self, dimension: str) -> None:
        self._dimension = dimension
        self._project = ""
        self._rows: dict[str, Row] = {}

    @property
    def rows(self) -> list[Row]:
        """The largest first."""
        return sorted(self._rows.values(), key=lambda row: (-row.count, row.name))

    def add_run(self, events: Sequence[Event], project: str = "") -> None:
        """Add a run, from all its events."""
        self._project = project
        fold = SpanFold()
        for event in events:
            self.add(fold.apply(event))

    def add(self, found: Iterable[Span]) -> None:
        for span in found:
            name = self._name(span)
            if name is None or spans.UNFINISHED in span.attributes:
                continue
            row = self._rows.get(name)
            if row is None:
                row = self._rows[name] = Row(name=name)
            if span.operation == spans.CHAT:
                _add_call(row, span)
            else:
                _add_end(row, span)

    def _name(self, span: Span) -> str | None:
        """The row that a span counts for; None if it counts for none."""
        attributes = span.attributes
        match self._dimension, span.operation:
            case (dimension, spans.AGENT | spans.CHAT) if dimension == PROJECT:
                return self._project
            case ("role", spans.AGENT | spans.CHAT):
                return str(attributes[spans.AGENT_NAME])
            case ("model", spans.AGENT | spans.CHAT):
                return str(attributes[spans.FULL_MODEL])
            case ("tool", spans.TOOL) | ("kind", spans.WORKFLOW):
                return span.subject
        return None


def _add_call(row: Row, span: Span) -> None:
    def number(name: str) -> int:
        value = span.attributes.get(name, 0)
        return value if isinstance(value, int) else 0

    if spans.ERROR in span.attributes:
        row.retries += 1
    else:
        row.replies += 1
    row.tokens_in += number(spans.TOKENS_IN)
    row.tokens_cached += number(spans.TOKENS_CACHED)
    row.tokens_out += number(spans.TOKENS_OUT)
    cost = span.attributes.get(spans.COST, 0.0)
    row.cost_usd += cost if isinstance(cost, float) else 0.0


def _add_end(row: Row, span: Span) -> None:
    error = span.attributes.get(spans.ERROR)
    row.count += 1
    row.ok += error is None
    row.conflicts += error == Status.CONFLICT
    row.limits += error in _LIMITS
    row.denied += error == spans.DENIED
    row.cached += spans.CACHED in span.attributes
    row.seconds += max(0.0, span.end - span.start)
