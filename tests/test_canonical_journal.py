"""What two journals have in common, and what tells them apart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import Event
from retinue.models.scripted.model import ScriptedModel, Step, call, hold, say
from retinue.project import open_journal
from retinue.testing.clock import FakeClock
from tests.canonical_journal import canonical_journal

NEEDS: dict[str, list[str]] = {"left": [], "right": [], "both": ["left", "right"]}


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    for name in "12":
        (tmp_path / name).mkdir()


async def journal(folder: Path, *, first: str = "left", said: str = "Done.") -> list[Event]:
    """What is on record of a plan in which the step `first` is over before the others."""
    over = asyncio.Event()

    def hear(event: Event) -> None:
        if event.type == "plan.step_finished" and f"step {first} " in event.summary:
            over.set()

    def words(name: str) -> list[Step]:
        answer = say(said)
        other = name != first and not NEEDS[name]
        return [call("list_dir", path="."), hold(over, answer) if other else answer]

    steps: list[dict[str, Any]] = [
        {"name": name, "role": "researcher", "task": f"Do {name}.", "depends_on": on}
        for name, on in NEEDS.items()
    ]
    async with retinue.open(
        folder,
        model=ScriptedModel({f"Do {name}.": words(name) for name in NEEDS}),
        environment=Environment(variables={"HOME": str(folder.parent)}),
        clock=FakeClock(),
        listeners=retinue.Listeners(on_event=hear),
    ) as rt:
        done = await rt.execute({"goal": "Get there", "steps": steps})
    async with open_journal(folder) as store:
        return list(await store.events(done.run_id))


def told(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.agent_id, event.type) for event in events]


async def test_order_of_concurrent_work_makes_no_difference(tmp_path: Path) -> None:
    one = await journal(tmp_path / "1", first="left")
    other = await journal(tmp_path / "2", first="right")
    assert told(one) != told(other)
    assert canonical_journal(one) == canonical_journal(other)
    assert len(canonical_journal(one)) == len(one)


async def test_what_was_said_does(tmp_path: Path) -> None:
    one = await journal(tmp_path / "1")
    other = await journal(tmp_path / "2", said="Well done.")
    assert sorted(told(one)) == sorted(told(other))
    assert canonical_journal(one) != canonical_journal(other)


async def test_only_cause_and_effect_order_the_events(tmp_path: Path) -> None:
    events = await journal(tmp_path / "1", first="right")
    facts = [
        (one.path, one.fact["type"], one.fact.get("step")) for one in canonical_journal(events)
    ]
    ends = [place for place, (_, kind, _) in enumerate(facts) if kind.startswith("plan.step")]
    assert [facts[place][1:] for place in ends] == [
        ("plan.step_started", "left"),
        ("plan.step_started", "right"),
        ("plan.step_finished", "left"),
        ("plan.step_finished", "right"),
        ("plan.step_started", "both"),
        ("plan.step_finished", "both"),
    ]
    own = [path for path, *_ in facts[ends[1] + 1 : ends[2]]]
    assert set(own) == {"root/left.1"}
    assert facts[-1][:2] == ("root", "run.finished")
    assert not any(
        text in str(canonical_journal(events)) for text in (events[0].run_id, str(tmp_path))
    )
