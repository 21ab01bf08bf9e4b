"""Sends spans and metrics to an OpenTelemetry collector, with the SDK.

The SDK reads its own `OTEL_…` variables. It sends from its own threads with bounded queues; lost
spans are counted. `telemetry_process` runs this module in a process of its own.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricExporter,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from retinue.domain.events import TYPES, Event, RunFinished, RunStarted
from retinue.domain.trace_context import TraceContext
from retinue.errors import RunError
from retinue.telemetry import spans
from retinue.telemetry.measurements import (
    ACTIVE,
    BUDGET_LEFT,
    DROPPED,
    METRICS,
    Metric,
    measurements,
)
from retinue.telemetry.spans import Span, SpanFold
from retinue.version import VERSION

FLUSH_S = 3.0
"""How long the end waits for the collector."""
BATCH = 512

# Without a handler, the SDK's warnings would appear in the middle of the screen. Programs that
# configure logging still get them.
logging.getLogger("opentelemetry").addHandler(logging.NullHandler())

_KINDS = {spans.CHAT: SpanKind.CLIENT}
_SCOPE = InstrumentationScope("retinue", VERSION, spans.SCHEMA_URL)
_STARTED, _FINISHED = TYPES[RunStarted], TYPES[RunFinished]


class Exporter:
    """Folds events into spans and metrics, and sends both."""

    def __init__(
        self,
        *,
        traces: SpanExporter | None,
        metrics: MetricExporter | None,
        new_fold: Callable[[], SpanFold] = SpanFold,
        queue: int = 20_000,
    ) -> None:
        self._new_fold = new_fold
        self._folds: dict[str, SpanFold] = {}
        self._resource = _resource()
        # Only for its sampler, which it makes as the variables say.
        self._sampler = TracerProvider(resource=self._resource, shutdown_on_exit=False).sampler
        self._queue = queue
        self._counted = _Counting(traces) if traces is not None else None
        self._processor = (
            None
            if self._counted is None
            else BatchSpanProcessor(self._counted, max_queue_size=queue)
        )
        self._emitted = 0
        self._sampled: dict[str, bool] = {}
        """Whether spans are sent, by the id of the trace."""
        self.remaining: Mapping[str, int] = {}
        """Tokens that each open run may still use."""
        self._meters: MeterProvider | None = None
        self._record: dict[Metric, Callable[[float, Mapping[str, str]], None]] = {}
        if metrics is not None:
            self._make_instruments(metrics)

    def on_event(self, event: Event, *, send: bool = True) -> None:
        """Fold an event, and hand the spans that it ends to the SDK."""
        if event.type == _STARTED:
            self._folds[event.run_id] = self._new_fold()
        fold = self._folds.get(event.run_id)
        if fold is None:
            return
        for span in fold.apply(event):
            if not send:
                continue
            for metric, value, labels in measurements(span) if self._record else ():
                self._record[metric](value, labels)
            if self._processor is not None and self._is_sampled(fold, span):
                self._emitted += 1
                self._processor.on_end(readable_span(span, self._resource))
        if event.type == _FINISHED:
            del self._folds[event.run_id]

    def close(self) -> None:
        """Send what is left, for at most `FLUSH_S`."""
        # Daemon threads: the end of the process waits for none of them.
        flushing = threading.Thread(target=self._shut_down, daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)

    def _shut_down(self) -> None:
        if self._processor is not None:
            self._processor.shutdown()
        if self._meters is not None:
            self._meters.shutdown(timeout_millis=FLUSH_S * 1000)

    @property
    def sent(self) -> int:
        return 0 if self._counted is None else self._counted.sent

    @property
    def lost(self) -> int:
        """Spans that were not sent, at the end."""
        return self._emitted - self.sent

    @property
    def dropped(self) -> int:
        """Spans that were refused, or found the queue full."""
        if self._counted is None:
            return 0
        waiting = self.lost - self._counted.refused
        return self._counted.refused + max(0, waiting - self._queue - BATCH)

    def _is_sampled(self, fold: SpanFold, span: Span) -> bool:
        trace_id = span.context.trace_id
        if (known := self._sampled.get(trace_id)) is not None:
            return known
        parent = None
        if (caller := fold.caller) is not None:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(_context(caller)))
        decision = self._sampler.should_sample(parent, int(trace_id, 16), span.name).decision
        self._sampled[trace_id] = decision is Decision.RECORD_AND_SAMPLE
        return self._sampled[trace_id]

    def _make_instruments(self, exporter: MetricExporter) -> None:
        reader = PeriodicExportingMetricReader(exporter)
        self._meters = MeterProvider([reader], resource=self._resource, shutdown_on_exit=False)
        meter = self._meters.get_meter("retinue", VERSION, spans.SCHEMA_URL)
        for metric in METRICS:
            name, unit, description, buckets = metric
            if buckets:
                self._record[metric] = meter.create_histogram(
                    name, unit, description, explicit_bucket_boundaries_advisory=buckets
                ).record
            else:
                self._record[metric] = meter.create_counter(name, unit, description).add

        def active(_: CallbackOptions) -> Sequence[Observation]:
            return [Observation(sum(fold.active for fold in list(self._folds.values())))]

        def remaining(_: CallbackOptions) -> Sequence[Observation]:
            left = self.remaining.items()
            return [Observation(tokens, {spans.RUN_ID: run}) for run, tokens in left]

        def dropped(_: CallbackOptions) -> Sequence[Observation]:
            return [Observation(self.dropped)]

        meter.create_observable_gauge(ACTIVE.name, [active], ACTIVE.unit, ACTIVE.description)
        meter.create_observable_gauge(
            BUDGET_LEFT.name, [remaining], BUDGET_LEFT.unit, BUDGET_LEFT.description
        )
        meter.create_observable_counter(DROPPED.name, [dropped], DROPPED.unit, DROPPED.description)


class _Counting(SpanExporter):
    """Counts the spans that another exporter has sent, and those that it could not send."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.sent = 0
        self.refused = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:
            self.refused += len(spans)
            raise
        if result is SpanExportResult.SUCCESS:
            self.sent += len(spans)
        else:
            self.refused += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def span_exporter(name: str) -> SpanExporter | None:
    """The exporter that `OTEL_TRACES_EXPORTER` names."""
    match name:
        case "otlp":
            return OTLPSpanExporter()
        case "console":
            return ConsoleSpanExporter(out=sys.stderr)
    return None


def metric_exporter(name: str) -> MetricExporter | None:
    """The exporter that `OTEL_METRICS_EXPORTER` names."""
    match name:
        case "otlp":
            return OTLPMetricExporter()
        case "console":
            return ConsoleMetricExporter(out=sys.stderr)
    return None


def export_spans(found: Sequence[Span], endpoint: str) -> None:
    """Send spans to the collector at `endpoint`, and wait. Raises RunError."""
    base = endpoint.rstrip("/")
    url = base if base.endswith("/v1/traces") else f"{base}/v1/traces"
    exporter, resource = OTLPSpanExporter(endpoint=url), _resource()
    for first in range(0, len(found), BATCH):
        batch = [readable_span(span, resource) for span in found[first : first + BATCH]]
        if exporter.export(batch) is not SpanExportResult.SUCCESS:
            raise RunError(
                f"{url} did not take the spans: {first} of {len(found)} were sent. Check that an"
                " OpenTelemetry collector listens there for OTLP over HTTP (usually port 4318);"
                " the command can be repeated."
            )
    exporter.shutdown()


def readable_span(span: Span, resource: Resource) -> ReadableSpan:
    """The span as the SDK's exporters take it."""
    status = Status(StatusCode.ERROR, span.error) if spans.ERROR in span.attributes else Status()
    return ReadableSpan(
        name=span.name,
        # Spans that the sampler does not take never come here.
        context=_context(msgspec.structs.replace(span.context, sampled=True)),
        parent=None if span.parent is None else _context(span.parent),
        resource=resource,
        attributes=span.attributes,
        links=[Link(_context(link)) for link in span.links],
        kind=_KINDS.get(span.operation, SpanKind.INTERNAL),
        instrumentation_scope=_SCOPE,
        status=status,
        start_time=round(span.start * 1e9),
        end_time=round(max(span.start, span.end) * 1e9),
    )


def _context(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), False, flags)


def _resource() -> Resource:
    """The resource of the variables; the service is called retinue if they name none."""
    found = Resource.create()
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "retinue", SERVICE_VERSION: VERSION}))
    return found
