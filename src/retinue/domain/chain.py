"""The hash chain of a journal: each event's hash covers its content and the hash before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from retinue.domain.events import Event, RunPruned
from retinue.errors import ChainBroken

GENESIS = "0" * 64

_encoder = msgspec.json.Encoder()


def link(previous: str, event: Event) -> str:
    """The hash of an event; `previous` is the hash of the event before it."""
    *ids, time, kind, summary, payload, _, version = msgspec.structs.astuple(event)
    # A JSON array can be read in one way only, so no two different events share these bytes. A
    # store returns 1.0 for a time of 1, which must not count as a change.
    head = _encoder.encode((previous, *ids, float(time), kind, version, summary))
    return hashlib.sha256(head + bytes(payload)).hexdigest()


def verify(events: Iterable[Event], *, head_seq: int, head_hash: str) -> int:
    """Count the events of an unbroken chain that ends in the given head; else raise ChainBroken.

    The head is stored apart from the events: a chain whose tail was cut off is unbroken by itself.
    """
    previous, expected, count = GENESIS, 1, 0
    for event in events:
        if not count and event.type == "run.pruned":
            previous, expected = _before(event)
        if event.seq != expected:
            raise ChainBroken(
                f"Event {expected} is missing (the next one is {event.seq}).", seq=expected
            )
        if link(previous, event) != event.hash:
            # A store that has lost a part of an event names that part in place of the hash.
            why = f": {event.hash}" if len(event.hash) not in (0, len(GENESIS)) else ""
            raise ChainBroken(
                f"Event {event.seq} ({event.type}) is not what was written{why}.", seq=event.seq
            )
        if event.seq > head_seq:
            raise ChainBroken(
                f"Event {event.seq} was added after the end, which is {head_seq}.", seq=event.seq
            )
        previous, expected, count = event.hash, expected + 1, count + 1
    if expected - 1 < head_seq:
        raise ChainBroken(
            f"Event {expected} is missing: the journal ends at {expected - 1}, not at {head_seq}.",
            seq=expected,
        )
    if previous != head_hash:
        raise ChainBroken(f"Event {head_seq} is not the end that was written.", seq=head_seq)
    return count


def _before(pruned: Event) -> tuple[str, int]:
    """The hash of the last event that was removed, and the number after it."""
    try:
        fact = pruned.fact
    except msgspec.DecodeError:
        return GENESIS, pruned.seq  # Its own hash will not fit either.
    return (fact.head_hash, fact.events + 1) if isinstance(fact, RunPruned) else (GENESIS, 1)
