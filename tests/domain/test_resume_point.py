"""How long something has taken, in several processes and by any clock."""

from __future__ import annotations

import msgspec
import pytest

from retinue.domain.chain import GENESIS
from retinue.domain.events import AgentStarted, Event, encode_fact
from retinue.domain.resume_point import WorkTime


def at(time: float, epoch: int) -> Event:
    return Event(
        seq=1,
        run_id="k3f9",
        agent_id="a1",
        parent_agent_id="a0",
        attempt=1,
        epoch=epoch,
        time=time,
        type="agent.subagent_started",
        summary="started",
        payload=msgspec.Raw(encode_fact(AgentStarted(sub_agent_id="a1"))),
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
