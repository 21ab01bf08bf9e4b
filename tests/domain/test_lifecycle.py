from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.lifecycle import TRANSITIONS, State, move, moves
from retinue.errors import IllegalTransition

# Written out again, so that a slip in the table does not also change what is expected of it.
LEGAL = {
    ("created", "running"),
    ("created", "failed"),
    ("running", "waiting_for_merge"),
    ("running", "failed"),
    ("waiting_for_merge", "completed"),
    ("waiting_for_merge", "failed"),
    ("completed", "closed"),
    ("failed", "closed"),
}


@pytest.mark.parametrize(("current", "to"), list(product(State, State)))
def test_every_pair_of_states(current: State, to: State) -> None:
    if (current.value, to.value) in LEGAL:
        assert move(current, to) is to
        return
    with pytest.raises(IllegalTransition) as caught:
        move(current, to)
    message = str(caught.value)
    assert message.startswith(f"An agent cannot go from {current} to {to}; from here: ")
    allowed = message.split("from here: ")[1].rstrip(".")
    ways_out = {b for a, b in LEGAL if a == current}
    assert set(allowed.split(", ")) == (ways_out or {"nothing: it is final"})


def reachable(start: State) -> set[State]:
    seen: set[State] = set()
    todo = [start]
    while todo:
        for state in TRANSITIONS[todo.pop()] - seen:
            seen.add(state)
            todo.append(state)
    return seen


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(State)


def test_everything_is_reached_from_created_and_nothing_returns_to_it() -> None:
    assert reachable(State.CREATED) == set(State) - {State.CREATED}


@pytest.mark.parametrize("state", State)
def test_no_state_is_reached_twice(state: State) -> None:
    assert state not in reachable(state)


@pytest.mark.parametrize("state", [s for s in State if s is not State.CLOSED])
def test_every_agent_can_still_be_closed(state: State) -> None:
    assert State.CLOSED in reachable(state)


def test_closed_is_the_only_end() -> None:
    assert [state for state in State if not TRANSITIONS[state]] == [State.CLOSED]


def test_only_a_parent_that_integrated_completes() -> None:
    assert {a for a in State if State.COMPLETED in TRANSITIONS[a]} == {State.WAITING_FOR_MERGE}


@given(st.lists(st.sampled_from(State), max_size=12))
def test_any_walk_that_is_allowed_ends_within_four_moves(walk: list[State]) -> None:
    state, moves = State.CREATED, 0
    for to in walk:
        try:
            state = move(state, to)
        except IllegalTransition:
            continue
        moves += 1
    assert moves <= 4
    assert (state is State.CLOSED) <= (moves >= 2)


def test_moves_between_states_are_the_fewest() -> None:
    assert moves(State.CREATED, State.CREATED) == ()
    assert moves(State.CREATED, State.CLOSED) == (State.FAILED, State.CLOSED)
    assert moves(State.RUNNING, State.COMPLETED) == (State.WAITING_FOR_MERGE, State.COMPLETED)
    with pytest.raises(IllegalTransition, match="never goes from failed to completed"):
        moves(State.FAILED, State.COMPLETED)


@pytest.mark.parametrize("to", State)
def test_every_state_is_reached_by_allowed_moves(to: State) -> None:
    state = State.CREATED
    for following in moves(state, to):
        state = move(state, following)
    assert state is to
