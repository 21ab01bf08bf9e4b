"""An OpenTelemetry collector on loopback: takes OTLP over HTTP, and keeps what it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.spans: list[Span] = []
        self.service = ""
        self.metrics: dict[str, float] = {}
        """The sum of each metric's last values."""

    async def take_traces(self, request: web.Request) -> web.Response:
        body = ExportTraceServiceRequest.FromString(await request.read())
        if self.status == 200:
            for part in body.resource_spans:
                self.service = str(attributes(part.resource.attributes)["service.name"])
                for scope in part.scope_spans:
                    self.spans += scope.spans
        return web.Response(status=self.status)

    async def take_metrics(self, request: web.Request) -> web.Response:
        body = ExportMetricsServiceRequest.FromString(await request.read())
        for part in body.resource_metrics:
            for scope in part.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    points = getattr(metric, str(kind)).data_points
                    self.metrics[metric.name] = sum(
                        point.sum if kind == "histogram" else point.as_int or point.as_double
                        for point in points
                    )
        return web.Response(status=self.status)

    def named(self, operation: str) -> list[Span]:
        return [span for span in self.spans if span.name.startswith(operation)]


def attributes(pairs: list[KeyValue]) -> dict[str, str | int | float | bool]:
    found = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        found[pair.key] = getattr(pair.value, str(kind))
    return found


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    receiving = Collector()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/traces", receiving.take_traces)
    app.router.add_post("/v1/metrics", receiving.take_metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    receiving.url = f"http://127.0.0.1:{port}"
    try:
        yield receiving
    finally:
        await runner.cleanup()
