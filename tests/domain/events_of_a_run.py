"""Events of a run, from their facts."""

from __future__ import annotations

import msgspec

from retinue.domain import events as ev


def event_of(seq: int, fact: ev.Fact, agent: str = "a0", parent: str | None = None) -> ev.Event:
    return ev.Event(
        seq=seq,
        run_id="run",
        agent_id=agent,
        parent_agent_id=parent,
        attempt=1,
        epoch=1,
        time=100.0 + seq,
        type=ev.TYPES[type(fact)],
        summary=str(fact),
        payload=msgspec.Raw(ev.encode_fact(fact)),
        hash="",
    )
