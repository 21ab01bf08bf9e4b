"""Ids for calls that have none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from retinue.domain.messages import AssistantMessage, Message


def generate_call_ids(taken: Iterable[str | None], earlier: Sequence[Message]) -> Iterator[str]:
    """Ids that are the same in every retry, and unique in a conversation."""
    before = [call.id for m in earlier if isinstance(m, AssistantMessage) for call in m.calls]
    known = {*before, *taken}
    number = len(before)
    while True:
        made_up = f"call_{number}"
        if made_up not in known:
            yield made_up
        number += 1
