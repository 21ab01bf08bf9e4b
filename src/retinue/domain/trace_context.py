"""Ids of traces and spans (W3C Trace Context), derived from a run and what happened in it.

They are hashes, so that a run has the same trace whoever exports it, and however often.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

TRACEPARENT = "TRACEPARENT"
"""The environment variable that names the caller's trace and span."""

_FORMAT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """A span in a trace; `str` of it is a `traceparent`."""

    trace_id: str
    span_id: str
    sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"


def parse_traceparent(text: str) -> TraceContext | None:
    """The span that `text` names; None if it is not a valid `traceparent`."""
    match = _FORMAT.fullmatch(text.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) * int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def span_of(run_id: str, part: str = "", *, traceparent: str = "") -> TraceContext:
    """The span of a run, or of a `part` of it: an agent's id, or the number of an event.

    `traceparent` is that of the process that started the run, if it had one.
    """
    caller = parse_traceparent(traceparent)
    digest = hashlib.sha256(f"retinue/{run_id}/{part}".encode()).hexdigest()
    if caller is not None:
        return TraceContext(caller.trace_id, digest[:16], caller.sampled)
    trace = hashlib.sha256(f"retinue/{run_id}".encode()).hexdigest()
    return TraceContext(trace[:32], digest[:16])
