"""The states of an agent, and the transitions between them.

    created ──► running ──► waiting_for_merge ──► completed ──► closed
       │           │                │                            ▲
       └───────────┴────────────────┴────────► failed ───────────┘

The database has the same table as CHECKs and triggers, so it refuses hand-written SQL too.
"""

from __future__ import annotations

from enum import StrEnum

from retinue.errors import IllegalTransition


class State(StrEnum):
    """Where an agent is in its life, from created to closed.

    ```python
    run = await rt.run("Look around.")
    state = retinue.fold([event async for event in rt.events(run.id)])
    assert state.agents["a0"].state is retinue.State.CLOSED
    ```
    """

    CREATED = "created"
    RUNNING = "running"
    WAITING_FOR_MERGE = "waiting_for_merge"
    COMPLETED = "completed"
    FAILED = "failed"
    CLOSED = "closed"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.CREATED: frozenset({State.RUNNING, State.FAILED}),
    State.RUNNING: frozenset({State.WAITING_FOR_MERGE, State.FAILED}),
    State.WAITING_FOR_MERGE: frozenset({State.COMPLETED, State.FAILED}),
    State.COMPLETED: frozenset({State.CLOSED}),
    State.FAILED: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}


def move(current: State, to: State) -> State:
    """Return `to`, or raise IllegalTransition, which names the allowed states."""
    if to in TRANSITIONS[current]:
        return to
    allowed = ", ".join(sorted(TRANSITIONS[current])) or "nothing: it is final"
    raise IllegalTransition(f"An agent cannot go from {current} to {to}; from here: {allowed}.")


def moves(current: State, to: State) -> tuple[State, ...]:
    """The fewest moves from one state to another. Raises IllegalTransition if there are none."""
    paths: list[tuple[State, ...]] = [()]
    for path in paths:  # The list grows meanwhile: the shortest paths come first.
        last = path[-1] if path else current
        if last is to:
            return path
        paths += [(*path, state) for state in sorted(TRANSITIONS[last])]
    raise IllegalTransition(f"An agent never goes from {current} to {to}.")
