"""Whether telemetry is on, by the variables of OpenTelemetry."""

from __future__ import annotations

import pytest

from retinue.config.environment import Environment
from retinue.config.telemetry import TelemetrySettings, read_telemetry_settings

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, TelemetrySettings()),
        (ENDPOINT, TelemetrySettings(traces="otlp", metrics="otlp")),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, TelemetrySettings()),
        (ENDPOINT | {"OTEL_METRICS_EXPORTER": "none"}, TelemetrySettings(traces="otlp")),
        ({"OTEL_TRACES_EXPORTER": "console"}, TelemetrySettings(traces="console")),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1/x"},
            TelemetrySettings(metrics="otlp"),
        ),
        (
            ENDPOINT | {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "True"},
            TelemetrySettings(traces="otlp", metrics="otlp", content=True),
        ),
        (
            ENDPOINT | {"OTEL_BSP_MAX_QUEUE_SIZE": "7"},
            TelemetrySettings(traces="otlp", metrics="otlp", queue=7),
        ),
        ({"TRACEPARENT": CALLER}, TelemetrySettings(caller=CALLER)),
        ({"TRACEPARENT": "00-0-0-01"}, TelemetrySettings()),
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            TelemetrySettings(
                problem="telemetry is off: OTEL_TRACES_EXPORTER is 'zipkin'; retinue knows otlp,"
                " console, none"
            ),
        ),
        (
            ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            TelemetrySettings(
                problem="telemetry is off: OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', not"
                " 'http/protobuf'"
            ),
        ),
    ],
)
def test_variables(variables: dict[str, str], expected: TelemetrySettings) -> None:
    found = read_telemetry_settings(Environment(variables=variables))
    assert found == expected
    assert found.enabled is ((found.traces, found.metrics) != ("none", "none"))
