"""The tree of a recorded run."""

from __future__ import annotations

from pathlib import Path

import pytest

import retinue
from retinue.domain.events import Event
from retinue.interfaces.view.run_tree import run_tree
from retinue.models.scripted.model import ScriptedModel, say


@pytest.fixture
async def unfinished(tmp_path: Path) -> list[Event]:
    """The events of a run whose process has died at work."""
    events: list[Event] = []
    listeners = retinue.Listeners(on_event=events.append)
    model = ScriptedModel({"": [say("ok")]})
    async with retinue.open(tmp_path, model=model, listeners=listeners) as rt:
        await rt.spawn("researcher", "Look.")
    started = next(n for n, event in enumerate(events) if event.type == "turn.started")
    return events[: started + 1]


@pytest.mark.parametrize(
    ("active", "symbol"), [(True, "● a1 researcher.1"), (False, "■ a1 researcher.1 abandoned")]
)
def test_agents_of_a_dead_process_are_stopped(
    unfinished: list[Event], active: bool, symbol: str
) -> None:
    now = unfinished[-1].time + 3600
    lines, folded = run_tree(unfinished, width=100, active=active, now=now)
    child = lines[-1].plain.strip()
    assert child.startswith(symbol)
    assert not folded
    assert ("1h" in child) == active, "time after the death of the process does not count"
