"""Makes ids for calls that come without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from retinue.domain.messages import AssistantMessage, Message


def generate_call_ids(taken: Iterable[str | None], earlier: Sequence[Message]) -> Iterator[str]:
    """Yield ids that are unique in the conversation and the same in every retry.

    `taken` are the ids of the new reply, `earlier` the messages before it.
    """
    before = [call.id for m in earlier if isinstance(m, AssistantMessage) for call in m.calls]
    used = {*before, *taken}
    for number in count(len(before)):
        if (call_id := f"call_{number}") not in used:
            yield call_id
