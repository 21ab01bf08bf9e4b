"""The clock of the machine is set while a run is at work: it is no measure of anything."""

from __future__ import annotations

from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.messages import Request
from retinue.domain.run_state import fold
from retinue.models.scripted.model import Step, call, say
from retinue.runtime.history.audit import audit, read_all
from retinue.store.sqlite import SqliteStore
from retinue.testing.clock import FakeClock

YEAR_S = 365 * 24 * 3600.0


@pytest.mark.parametrize("seconds", [-YEAR_S, YEAR_S])
async def test_a_clock_that_jumps(tmp_path: Path, seconds: float) -> None:
    clock = FakeClock()

    def jump(request: Request) -> Step:
        clock.jump(seconds)
        return call("list_dir", path=".")

    model = retinue.ScriptedModel({"Look": [jump, say("Looked.")]})
    environment = Environment(variables={"HOME": f"{tmp_path}-home"})
    async with retinue.open(
        tmp_path, model=model, clock=clock, environment=environment, shell=False
    ) as rt:
        # No time passes, so no attempt is out of time and nobody is silent.
        found = await rt.spawn("researcher", "Look.", timeout_s=5)
        later = await rt.spawn("researcher", "Look again.", timeout_s=5)
    assert (found.status, later.status) == ("completed", "completed")
    assert found.usage.duration_s == 0
    store = SqliteStore(tmp_path / ".retinue" / "retinue.db", write=False)
    events = await read_all(store, found.run_id)
    times = [event.time for event in events]
    # The journal says what the clock said, and its order is that of its numbers.
    assert times[-1] - times[0] == 2 * seconds
    assert (await audit(store, found.run_id)).events == len(events)
    view = fold(events)
    assert view.agents["a1"].duration_s == 0
    await store.aclose()
