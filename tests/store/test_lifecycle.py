"""Hand-written SQL on the file: what the rules of the domain forbid, the database refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from retinue.domain.lifecycle import TRANSITIONS, State

LIVES: dict[State, tuple[State, ...]] = {
    State.CREATED: (),
    State.RUNNING: (State.RUNNING,),
    State.WAITING_FOR_MERGE: (State.RUNNING, State.WAITING_FOR_MERGE),
    State.COMPLETED: (State.RUNNING, State.WAITING_FOR_MERGE, State.COMPLETED),
    State.FAILED: (State.FAILED,),
    State.CLOSED: (State.FAILED, State.CLOSED),
}

AGENT = (
    "INTO sub_agents (run_id, id, parent_agent_id, step_idx, path, role, state, context_json)"
    " SELECT run_id, {id}, parent_agent_id, step_idx, path, role, {state}, {contract}"
    " FROM sub_agents"
)

EVENT = (
    "INTO events (run_id, seq, agent_id, parent_agent_id, attempt, epoch, time, type, version,"
    " summary, payload, hash) SELECT run_id, {seq}, agent_id, parent_agent_id, attempt, epoch,"
    " time, {type}, version, 'other', payload, hash FROM events WHERE seq = 3"
)


@pytest.fixture
def sql(database: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        yield connection


def refusal(sql: sqlite3.Connection, statement: str) -> str:
    """The message that refuses a statement, which must have changed nothing."""
    before = list(sql.iterdump())
    with pytest.raises(sqlite3.IntegrityError) as caught:
        sql.execute(statement)
    assert list(sql.iterdump()) == before
    return str(caught.value)


@pytest.mark.parametrize(("current", "to"), list(product(State, State)))
def test_exactly_the_moves_of_the_domain_are_allowed(
    sql: sqlite3.Connection, current: State, to: State
) -> None:
    for state in LIVES[current]:
        sql.execute("UPDATE sub_agents SET state = ?", (state,))
    update = f"UPDATE sub_agents SET state = '{to}'"
    if to in TRANSITIONS[current]:
        sql.execute(update)
        assert sql.execute("SELECT state FROM sub_agents").fetchall() == [(to,)]
    else:
        assert refusal(sql, update) == "illegal move of an agent"


@pytest.mark.parametrize("how", ["OR IGNORE", "OR REPLACE", "OR FAIL", "OR ROLLBACK"])
def test_no_manner_of_update_gets_around_it(sql: sqlite3.Connection, how: str) -> None:
    update = f"UPDATE {how} sub_agents SET state = 'completed'"
    assert refusal(sql, update) == "illegal move of an agent"


@pytest.mark.parametrize("state", ["''", "'Running'", "'running '", "'merged'", "0", "x'00'"])
def test_there_are_no_other_states(sql: sqlite3.Connection, state: str) -> None:
    assert refusal(sql, f"UPDATE sub_agents SET state = {state}") == "illegal move of an agent"


def test_an_agent_is_in_some_state(sql: sqlite3.Connection) -> None:
    message = refusal(sql, "UPDATE sub_agents SET state = NULL")
    assert message == "NOT NULL constraint failed: sub_agents.state"


@pytest.mark.parametrize("state", [state for state in State if state is not State.CREATED])
def test_an_agent_is_born_as_created(sql: sqlite3.Connection, state: State) -> None:
    agent = AGENT.format(id="'a1'", state=f"'{state}'", contract="context_json")
    assert refusal(sql, f"INSERT {agent}") == "an agent is born once, as created"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE events SET summary = 'x' WHERE seq = 2",
        "UPDATE OR REPLACE events SET seq = 1 WHERE seq = 2",
        "UPDATE events SET seq = seq + 10",
        "UPDATE OR IGNORE events SET hash = hash",
    ],
)
def test_events_are_never_changed(sql: sqlite3.Connection, change: str) -> None:
    assert refusal(sql, change) == "the journal is append-only: events are never changed"


@pytest.mark.parametrize("which", ["seq = 1", "seq = 3", "true"])
def test_events_are_never_deleted(sql: sqlite3.Connection, which: str) -> None:
    message = refusal(sql, f"DELETE FROM events WHERE {which}")
    assert message == "the journal is append-only: events are never deleted"


@pytest.mark.parametrize("how", ["INSERT", "REPLACE", "INSERT OR REPLACE", "INSERT OR IGNORE"])
@pytest.mark.parametrize("seq", [1, 2, 3])
def test_events_are_never_replaced(sql: sqlite3.Connection, how: str, seq: int) -> None:
    message = refusal(sql, f"{how} {EVENT.format(seq=seq, type='type')}")
    assert message == "the journal is append-only: that event is already written"


def test_events_are_never_replaced_by_an_upsert(sql: sqlite3.Connection) -> None:
    upsert = EVENT.format(seq=2, type="type") + " ON CONFLICT DO UPDATE SET summary = 'x'"
    message = refusal(sql, f"INSERT {upsert}")
    assert message == "the journal is append-only: that event is already written"


@pytest.mark.parametrize(
    "change",
    [
        "head_seq = 0",
        "head_seq = head_seq - 1",
        f"head_hash = '{'1' * 64}'",
        "epoch = epoch - 1",
    ],
)
def test_the_end_of_a_journal_only_moves_on(sql: sqlite3.Connection, change: str) -> None:
    """With the end back at the start, events could be replaced."""
    sql.execute("UPDATE runs SET epoch = 2")
    assert refusal(sql, f"UPDATE runs SET {change}") == "the end of a journal only moves on"


@pytest.mark.parametrize(
    "change",
    ["context_json = '{}'", "path = 'x'", "role = 'x'", "id = 'x'", "parent_agent_id = 'x'",
     "step_idx = 7", "run_id = 'x'", "context_json = context_json"],
)  # fmt: skip
def test_a_contract_is_never_changed(sql: sqlite3.Connection, change: str) -> None:
    assert refusal(sql, f"UPDATE sub_agents SET {change}") == "a contract is never changed"


def test_a_contract_is_never_replaced(sql: sqlite3.Connection) -> None:
    agent = AGENT.format(id="id", state="state", contract="'{}'")
    assert refusal(sql, f"INSERT OR REPLACE {agent}") == "an agent is born once, as created"


def test_a_contract_is_json(sql: sqlite3.Connection) -> None:
    agent = AGENT.format(id="'a1'", state="state", contract="'{'")
    assert "json_valid" in refusal(sql, f"INSERT {agent}")


def test_an_agent_is_never_deleted(sql: sqlite3.Connection) -> None:
    assert refusal(sql, "DELETE FROM sub_agents") == "agents are closed, never deleted"


@pytest.mark.parametrize(
    "change",
    [
        "status = 'error'",
        "status = NULL, finished_at = NULL",
        "finished_at = 5",
        "status = status",
    ],
)
def test_an_outcome_is_written_once(sql: sqlite3.Connection, change: str) -> None:
    sql.execute("UPDATE runs SET status = 'completed', finished_at = 1")
    message = refusal(sql, f"UPDATE runs SET {change}")
    assert message == "the outcome of a run is written once"


def test_a_run_cannot_be_finished_twice(sql: sqlite3.Connection) -> None:
    sql.execute("UPDATE runs SET status = 'completed', finished_at = 1")
    again = "UPDATE runs SET status = 'error', finished_at = 2"
    assert refusal(sql, again) == "the outcome of a run is written once"


@pytest.mark.parametrize(
    "change", ["status = 'fine', finished_at = 1", "status = 'error'", "finished_at = 1"]
)
def test_only_known_outcomes_are_accepted(sql: sqlite3.Connection, change: str) -> None:
    assert refusal(sql, f"UPDATE runs SET {change}").startswith("CHECK constraint failed: ")


@pytest.mark.parametrize("change", ["id = 'x'", "kind = 'x'", "task = 'x'", "started_at = 1"])
def test_a_run_keeps_its_identity(sql: sqlite3.Connection, change: str) -> None:
    assert refusal(sql, f"UPDATE runs SET {change}") == "a run keeps its identity"


def test_a_run_is_never_replaced_or_deleted(sql: sqlite3.Connection) -> None:
    replace = "INSERT OR REPLACE INTO runs SELECT * FROM runs"
    assert refusal(sql, replace) == "a run is started once"
    assert refusal(sql, "DELETE FROM runs") == "runs are finished, never deleted"
