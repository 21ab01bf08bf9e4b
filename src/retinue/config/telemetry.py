"""Whether traces and metrics are sent, by the variables of OpenTelemetry.

The SDK reads the other `OTEL_…` variables itself: endpoint, headers, timeouts, queues, sampling.
"""

from __future__ import annotations

import msgspec

from retinue.config.environment import Environment
from retinue.domain.trace_context import TRACEPARENT, parse_traceparent

_EXPORTERS = ("otlp", "console", "none")
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    traces: str = "none"
    """Where spans go: otlp, console or none."""
    metrics: str = "none"
    content: bool = False
    """Whether spans have the texts of messages and tool calls."""
    queue: int = 20_000
    """How many spans may wait to be sent. A fan-out ends thousands within a second."""
    caller: str = ""
    """The `traceparent` that this process was started with."""
    problem: str = ""
    """Why nothing is sent although the variables ask for it."""

    @property
    def enabled(self) -> bool:
        return not self.problem and (self.traces, self.metrics) != ("none", "none")


def read_telemetry_settings(environment: Environment) -> TelemetrySettings:
    """Read where and what to export from the user's variables."""
    given = environment.get(TRACEPARENT) or ""
    caller = given if parse_traceparent(given) is not None else ""
    if (environment.get("OTEL_SDK_DISABLED") or "").lower() == "true":
        return TelemetrySettings(caller=caller)
    chosen: dict[str, str] = {}
    for signal in ("TRACES", "METRICS"):
        endpoint = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or environment.get(
            "OTEL_EXPORTER_OTLP_ENDPOINT"
        )
        variable = f"OTEL_{signal}_EXPORTER"
        name = environment.get(variable) or ("otlp" if endpoint else "none")
        if name not in _EXPORTERS:
            known = ", ".join(_EXPORTERS)
            problem = f"telemetry is off: {variable} is {name!r}; retinue knows {known}"
            return TelemetrySettings(caller=caller, problem=problem)
        chosen[signal.lower()] = name
        protocol_variable = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
        if not environment.get(protocol_variable):
            protocol_variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
        protocol = environment.get(protocol_variable) or "http/protobuf"
        if name == "otlp" and protocol != "http/protobuf":
            problem = f"telemetry is off: {protocol_variable} is {protocol!r}, not 'http/protobuf'"
            return TelemetrySettings(caller=caller, problem=problem)
    queue = environment.get("OTEL_BSP_MAX_QUEUE_SIZE") or ""
    return TelemetrySettings(
        **chosen,
        content=(environment.get(_CONTENT) or "").lower() == "true",
        queue=int(queue) if queue.isdecimal() and int(queue) else TelemetrySettings().queue,
        caller=caller,
    )
