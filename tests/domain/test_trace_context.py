"""Ids of traces and spans."""

from __future__ import annotations

import pytest

from retinue.domain.trace_context import TraceContext, parse_traceparent, span_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f" 00-{TRACE}-{SPAN}-03\n", True),
        (f"cc-{TRACE}-{SPAN}-01-what-follows", True),  # A later version may say more.
    ],
)
def test_valid(text: str, sampled: bool) -> None:
    assert parse_traceparent(text) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", f"00-{TRACE}-{SPAN}", f"00-{TRACE.upper()}-{SPAN}-01"),
        *(f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more"),
        *(f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01"),
    ],
)
def test_invalid(text: str) -> None:
    assert parse_traceparent(text) is None


def test_spans_of_a_run() -> None:
    run, agent = span_of("k3f9"), span_of("k3f9", "a1")
    assert run == span_of("k3f9")
    assert (agent.trace_id, agent.span_id) == (run.trace_id, span_of("k3f9", "a1").span_id)
    assert len({run.span_id, agent.span_id, span_of("k3f8", "a1").span_id}) == 3
    called = span_of("k3f9", "a1", traceparent=f"00-{TRACE}-{SPAN}-00")
    assert called == TraceContext(TRACE, agent.span_id, sampled=False)
    assert parse_traceparent(str(called)) == called
