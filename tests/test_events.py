"""Typed events: every fact has a public class, and `match` finds its fields."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import retinue
from retinue import events
from retinue.events import AgentClosed, Event, Fact, ToolFinished
from retinue.models.scripted.model import call, say


def test_every_fact_is_exported() -> None:
    facts = {fact.__name__ for fact in get_args(Fact)}
    assert {*facts, "Event", "Fact", "AgentRecord", "ForkOrigin"} == set(events.__all__)
    assert sorted(events.__all__) == list(events.__all__)
    assert retinue.Event is Event
    assert retinue.events is events


def test_every_fact_says_what_it_is() -> None:
    assert [fact.__name__ for fact in get_args(Fact) if not vars(fact).get("__doc__")] == []


async def test_events_of_a_run_match_by_class_with_their_envelope(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text\n")
    model = retinue.ScriptedModel([call("read_file", path="a.txt"), say("Text.")])
    live: list[Event] = []
    listeners = retinue.Listeners(on_event=live.append)
    async with retinue.open(tmp_path, model=model, listeners=listeners) as rt:
        child = await rt.spawn("researcher", "What is in a.txt?")
        stored = [event async for event in rt.events(child.run_id)]
    assert stored == live[: len(stored)]
    found: list[tuple[str, str | None, str]] = []
    for event in stored:
        match event:
            case Event(agent_id=agent, parent_agent_id=parent, fact=ToolFinished(tool=tool)):
                found.append((agent, parent, tool))
            case Event(agent_id=agent, fact=AgentClosed(final_status=status)):
                found.append((agent, event.run_id, status))
            case _:
                assert event.time > 0
    assert found == [
        (child.agent_id, "a0", "read_file"),
        (child.agent_id, child.run_id, "completed"),
    ]
