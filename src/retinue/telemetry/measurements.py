"""The numbers of finished spans: tokens, cost, durations, failures.

The names follow the GenAI conventions where these have one. `prometheus` and `exporter` show the
same metrics, so a dashboard works with both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from retinue.telemetry import spans
from retinue.telemetry.spans import Span


class Metric(NamedTuple):
    """A metric. With `buckets` (upper bounds) it is a histogram, without a counter."""

    name: str
    unit: str
    description: str
    buckets: tuple[float, ...] = ()


_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_LONG = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600)
_TOKENS = tuple(4.0**n for n in range(14))

TOKENS = Metric("gen_ai.client.token.usage", "{token}", "Tokens of a model call.", _TOKENS)
CALL_TIME = Metric("gen_ai.client.operation.duration", "s", "How long a model call took.", _SECONDS)
FIRST_TOKEN = Metric(
    "gen_ai.client.operation.time_to_first_chunk", "s", "How long the first token took.", _SECONDS
)
QUEUE_TIME = Metric(
    "retinue.queue.duration", "s", "How long a model call waited for a free slot.", _SECONDS
)
COST = Metric("retinue.cost", "USD", "Cost of model calls, where prices are known.")
CALL_FAILURES = Metric("retinue.model.failures", "{call}", "Model calls that failed.")
AGENT_TIME = Metric("retinue.agent.duration", "s", "How long an agent took, by its status.", _LONG)
RUN_TIME = Metric("retinue.run.duration", "s", "How long a run took, by its status.", _LONG)
TOOL_TIME = Metric("retinue.tool.duration", "s", "How long a tool call took.", _SECONDS)
CACHE_HITS = Metric("retinue.cache.hits", "{agent}", "Agents whose result came from the cache.")

METRICS = (
    *(TOKENS, CALL_TIME, FIRST_TOKEN, QUEUE_TIME, COST, CALL_FAILURES),
    *(AGENT_TIME, RUN_TIME, TOOL_TIME, CACHE_HITS),
)

ACTIVE = Metric("retinue.agents.active", "{agent}", "Children at work now.")
BUDGET_LEFT = Metric("retinue.budget.remaining", "{token}", "Tokens left to an open run.")
DROPPED = Metric("retinue.telemetry.dropped", "{span}", "Spans that no collector took.")


class Measurement(NamedTuple):
    metric: Metric
    value: float
    labels: Mapping[str, str]


def measurements(span: Span) -> Iterator[Measurement]:
    """The measurements that a finished span adds to the metrics."""
    took_s = max(0.0, span.end - span.start)
    found = span.attributes
    match span.operation:
        case spans.CHAT:
            names = (spans.PROVIDER, spans.MODEL, spans.ADDRESS, spans.PORT)
            labels = {spans.OPERATION: spans.CHAT}
            labels |= {name: str(found[name]) for name in names if name in found}
            counts = {
                "input": found.get(spans.TOKENS_IN),
                "output": found.get(spans.TOKENS_OUT),
                "cache_read": found.get(spans.TOKENS_CACHED),
            }
            for kind, count in counts.items():
                if isinstance(count, int):
                    yield Measurement(TOKENS, count, labels | {"gen_ai.token.type": kind})
            if isinstance(cost := found.get(spans.COST), float):
                yield Measurement(COST, cost, labels)
            if spans.ERROR in found:
                yield Measurement(CALL_FAILURES, 1, labels)
                labels = labels | {spans.ERROR: str(found[spans.ERROR])}
            yield Measurement(CALL_TIME, took_s, labels)
            for metric, name in ((QUEUE_TIME, spans.QUEUED), (FIRST_TOKEN, spans.FIRST_TOKEN)):
                if isinstance(seconds := found.get(name), float):
                    yield Measurement(metric, seconds, labels)
        case spans.TOOL:
            labels = {spans.TOOL_NAME: span.subject}
            if spans.ERROR in found:
                labels[spans.ERROR] = str(found[spans.ERROR])
            yield Measurement(TOOL_TIME, took_s, labels)
        case spans.AGENT | spans.WORKFLOW if spans.STATUS in found:
            labels = {spans.STATUS: str(found[spans.STATUS])}
            if span.operation == spans.WORKFLOW:
                yield Measurement(RUN_TIME, took_s, labels | {"retinue.run.kind": span.subject})
                return
            labels[spans.AGENT_NAME] = span.subject
            yield Measurement(AGENT_TIME, took_s, labels)
            if spans.CACHED in found:
                yield Measurement(CACHE_HITS, 1, {spans.AGENT_NAME: span.subject})
