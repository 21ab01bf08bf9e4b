from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.chain import GENESIS, link, verify
from retinue.domain.events import (
    TYPES,
    AgentStarted,
    Event,
    Fact,
    LimitReached,
    TurnStarted,
    encode_fact,
)
from retinue.errors import ChainBroken

# Things that a hash covers, each with a way to become something else.
CHANGES: dict[str, Any] = {
    "seq": lambda seq: seq + 1,
    "run_id": lambda run_id: run_id + "x",
    "agent_id": lambda agent_id: agent_id[:-1],
    "parent_agent_id": lambda parent: "" if parent is None else None,
    "attempt": lambda attempt: attempt + 1,
    "epoch": lambda epoch: epoch - 1,
    "time": lambda time: time + 0.5,
    "type": lambda type: type.upper(),
    "summary": lambda summary: summary + " ",
    "payload": lambda payload: msgspec.Raw(bytes(payload) + b" "),
    "hash": lambda hash: hash[::-1] + "0",
    "version": lambda version: version + 1,
}

facts: st.SearchStrategy[Fact] = st.one_of(
    st.builds(AgentStarted, sub_agent_id=st.text(max_size=5)),
    st.builds(TurnStarted, turn=st.integers(1, 9), of=st.integers(1, 9)),
    st.builds(LimitReached, limit=st.text(max_size=5), detail=st.text(max_size=5)),
)


def seal(event: Event, previous: str) -> Event:
    """The event as its writer would have put it after the event of hash `previous`."""
    return msgspec.structs.replace(event, hash=link(previous, event))


def chained(written: list[Fact]) -> list[Event]:
    events: list[Event] = []
    for seq, fact in enumerate(written, start=1):
        event = Event(
            seq=seq,
            run_id="run",
            agent_id=f"agent-{seq % 3}",
            parent_agent_id=None if seq % 3 == 1 else "agent-1",
            attempt=seq % 2,
            epoch=1,
            time=1_700_000_000 + seq / 8,
            type=TYPES[type(fact)],
            summary=str(fact),
            payload=msgspec.Raw(encode_fact(fact)),
            hash="",
        )
        events.append(seal(event, events[-1].hash if events else GENESIS))
    return events


journals = st.lists(facts, min_size=1, max_size=8).map(chained)
long_journals = st.lists(facts, min_size=2, max_size=8).map(chained)


def positions(events: list[Event]) -> st.SearchStrategy[int]:
    return st.integers(0, len(events) - 1)


def assert_broken(events: list[Event], written: list[Event], at: int) -> None:
    with pytest.raises(ChainBroken) as caught:
        verify(events, head_seq=len(written), head_hash=written[-1].hash)
    assert caught.value.seq == at
    assert f"Event {at} " in str(caught.value)


@given(journals)
def test_an_untouched_journal_verifies(events: list[Event]) -> None:
    assert verify(events, head_seq=len(events), head_hash=events[-1].hash) == len(events)


def test_a_journal_without_events_verifies() -> None:
    assert verify([], head_seq=0, head_hash=GENESIS) == 0


@given(journals)
def test_a_journal_that_was_written_out_and_read_back_verifies(events: list[Event]) -> None:
    back = msgspec.json.decode(msgspec.json.encode(events), type=list[Event])

    assert verify(back, head_seq=len(events), head_hash=events[-1].hash) == len(events)


@given(journals, st.sampled_from(sorted(CHANGES)), st.data())
def test_a_changed_event_is_found(events: list[Event], field: str, data: st.DataObject) -> None:
    at = data.draw(positions(events))
    changed = CHANGES[field](getattr(events[at], field))
    forged = [*events]
    forged[at] = msgspec.structs.replace(events[at], **{field: changed})

    assert_broken(forged, events, at + 1)


def test_every_field_of_an_event_is_among_the_changes() -> None:
    assert set(CHANGES) == set(Event.__struct_fields__)


@given(journals, st.data())
def test_a_deleted_event_is_found(events: list[Event], data: st.DataObject) -> None:
    at = data.draw(positions(events))

    assert_broken(events[:at] + events[at + 1 :], events, at + 1)


@given(long_journals, st.data())
def test_two_swapped_events_are_found(events: list[Event], data: st.DataObject) -> None:
    first, second = sorted(
        data.draw(st.lists(positions(events), min_size=2, max_size=2, unique=True))
    )
    swapped = [*events]
    swapped[first], swapped[second] = events[second], events[first]

    assert_broken(swapped, events, first + 1)


@given(journals, st.data())
def test_a_repeated_event_is_found(events: list[Event], data: st.DataObject) -> None:
    repeated = data.draw(positions(events))
    at = data.draw(st.integers(0, len(events)))
    forged = [*events[:at], events[repeated], *events[at:]]

    # Put before itself, the copy is the event; the original then stands in its successor's place.
    assert_broken(forged, events, at + 2 if repeated == at else at + 1)


@given(journals, facts, st.data())
def test_an_inserted_event_is_found(events: list[Event], fact: Fact, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(events)))
    previous = events[at - 1].hash if at else GENESIS
    fields = {
        "seq": at + 1,
        "type": TYPES[type(fact)],
        "summary": str(fact) + "!",
        "payload": msgspec.Raw(encode_fact(fact)),
    }
    unsealed = msgspec.structs.replace(events[0], **fields)

    assert_broken([*events[:at], unsealed, *events[at:]], events, at + 1)
    # A well-sealed one fits by itself; the event it pushed aside does not, nor does a longer end.
    sealed = [*events[:at], seal(unsealed, previous), *events[at:]]
    assert_broken(sealed, events, at + 2 if at < len(events) else at + 1)


@given(journals, st.data())
def test_a_cut_tail_is_found_through_the_head(events: list[Event], data: st.DataObject) -> None:
    kept = data.draw(positions(events))

    assert_broken(events[:kept], events, kept + 1)


@given(journals, st.data())
def test_a_journal_rewritten_to_its_end_is_found_through_the_head(
    events: list[Event], data: st.DataObject
) -> None:
    at = data.draw(positions(events))
    forged = events[:at]
    for event in events[at:]:
        changed = msgspec.structs.replace(event, epoch=2)
        forged.append(seal(changed, forged[-1].hash if forged else GENESIS))

    assert_broken(forged, events, len(events))


def event_with(**changes: Any) -> Event:
    fields = {
        "seq": 1,
        "run_id": "run",
        "agent_id": "agent",
        "parent_agent_id": None,
        "attempt": 1,
        "epoch": 1,
        "time": 5.0,
        "type": "turn.started",
        "version": 1,
        "summary": "s",
        "payload": b"{}",
        "hash": "",
        **changes,
    }
    return Event(**fields | {"payload": msgspec.Raw(fields["payload"])})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"run_id": "ab", "agent_id": "c"}, {"run_id": "a", "agent_id": "bc"}),
        ({"agent_id": 'a","b'}, {"agent_id": "a", "parent_agent_id": "b"}),
        ({"summary": "s", "payload": b"{}"}, {"summary": "s{}", "payload": b""}),
        ({"parent_agent_id": None}, {"parent_agent_id": "null"}),
        ({"attempt": 1, "epoch": 11}, {"attempt": 11, "epoch": 1}),
    ],
)
def test_no_text_can_be_moved_from_one_field_to_the_next(
    a: dict[str, Any], b: dict[str, Any]
) -> None:
    assert link(GENESIS, event_with(**a)) != link(GENESIS, event_with(**b))


def test_a_whole_second_is_the_same_time_however_it_was_stored() -> None:
    assert link(GENESIS, event_with(time=5)) == link(GENESIS, event_with(time=5.0))


def test_a_hash_does_not_change_between_versions_of_this_code() -> None:
    # Journals outlive releases: if this fails, every journal on disk reads as broken.
    assert link(GENESIS, event_with()) == (
        "a7fcd771b5e7faa1dc5edd04206e8b7b8e0ee545dc97fc87980669ea0e53e713"
    )
