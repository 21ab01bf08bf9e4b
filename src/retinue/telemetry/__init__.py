"""Traces and metrics by the OpenTelemetry GenAI conventions, folded from journals.

`spans` turns events into finished spans, `measurements` turns finished spans into numbers. Neither
needs a library. `exporter` hands both to the OpenTelemetry SDK, `prometheus` prints the numbers.
"""
