"""How long something has taken, in several processes and by any clock."""

from __future__ import annotations

import msgspec
import pytest

from retinue.domain.agent_state import ABOUT_FAILURES, CONDENSING, AgentState
from retinue.domain.chain import GENESIS
from retinue.domain.events import (
    TYPES,
    AgentStarted,
    AttemptStarted,
    Event,
    Fact,
    MessageReceived,
    ModelFailed,
    TurnStarted,
    encode_fact,
)
from retinue.domain.lifecycle import State
from retinue.domain.resume_point import (
    FROM_CHILDREN,
    FROM_PARENT,
    FROM_USER,
    ResumePoint,
    WorkTime,
)

STARTED = AgentStarted(sub_agent_id="a1")


def at(time: float, epoch: int, fact: Fact = STARTED) -> Event:
    return Event(
        seq=1,
        run_id="k3f9",
        agent_id="a1",
        parent_agent_id="a0",
        attempt=1,
        epoch=epoch,
        time=time,
        type=TYPES[type(fact)],
        summary="",
        payload=msgspec.Raw(encode_fact(fact)),
        hash=GENESIS,
    )


@pytest.mark.parametrize(
    ("seen", "seconds"),
    [
        ([], 0.0),
        ([(100.0, 1)], 0.0),
        ([(100.0, 1), (103.0, 1), (107.0, 1)], 7.0),
        # While nobody worked on it, no time has passed for it.
        ([(100.0, 1), (107.0, 1), (9_000.0, 2), (9_001.0, 2)], 8.0),
        # A clock that was set back has measured nothing, and takes nothing away.
        ([(100.0, 1), (107.0, 1), (50.0, 2), (20.0, 2)], 7.0),
        ([(100.0, 1), (20.0, 1), (30.0, 2), (35.0, 2)], 5.0),
    ],
)
def test_work_time_counts_only_time_in_processes(
    seen: list[tuple[float, int]], seconds: float
) -> None:
    work_time = WorkTime()
    for time, epoch in seen:
        work_time.add(at(time, epoch))
    assert work_time.seconds == seconds


def agent_at_work() -> AgentState:
    return AgentState(
        id="a1",
        parent_id="a0",
        path="root/a",
        role="a",
        title="",
        depth=1,
        step_idx=0,
        contract_sha256="",
        created_at=0.0,
        state=State.RUNNING,
    )


def test_an_attempt_begins_later_than_its_agent_and_does_not_last_while_the_model_fails() -> None:
    point, times = ResumePoint(agent_at_work()), []
    attempt = AttemptStarted(number=1, of=2, timeout_s=60, opening=())
    for time, fact in (
        (90.0, TurnStarted(turn=1, of=9)),
        (100.0, STARTED),
        (102.0, attempt),
        (105.0, TurnStarted(turn=1, of=9)),
        (125.0, ModelFailed(turn=1, error="gone")),
        (130.0, attempt),
        (131.0, TurnStarted(turn=1, of=9)),
    ):
        point.apply(at(time, 1, fact), fact)
        times.append((point.lifetime.seconds, point.attempt_time.seconds))
    assert times == [(0, 0), (0, 10), (2, 0), (5, 3), (25, 3), (30, 0), (31, 1)]


def test_journals_name_the_sources_of_messages() -> None:
    """A journal of an earlier version has the same names."""
    assert (FROM_PARENT, FROM_USER, FROM_CHILDREN) == ("parent", "user", "staff")
    assert (CONDENSING, ABOUT_FAILURES) == ("condense", "failures")


def test_only_a_message_of_the_parent_that_was_read_is_no_longer_unread() -> None:
    point, left = ResumePoint(agent_at_work()), []
    point.unread = ["one", "two"]
    for source in ("watchdog", FROM_PARENT, "watchdog", FROM_PARENT, FROM_PARENT):
        fact = MessageReceived(content="one", source=source)
        point.apply(at(1.0, 1, fact), fact)
        left.append(len(point.unread))
    assert left == [2, 1, 1, 0, 0]
