from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from retinue.domain.events import Event
from retinue.domain.server_info import EndpointLoad
from retinue.errors import ProviderError
from retinue.interfaces.view.activity_line import (
    activity_line,
    agent_counts,
    fan_out_progress,
    remaining_s,
    root_activity,
)
from retinue.interfaces.view.agent_tree import AgentTree
from retinue.interfaces.view.styled_text import styled
from retinue.models.scripted.model import call, calls, fail, say

Record = Callable[..., Awaitable[list[Event]]]


def load(*, busy: int = 4, limit: int = 4, queued: int = 0, known: bool = True) -> EndpointLoad:
    return EndpointLoad(address="a", in_flight=busy, limit=limit, waiting=queued, known=known)


async def seen(
    record: Record, script: dict[str, Any], look: Callable[[AgentTree], str]
) -> list[str]:
    """What `look` sees after each event, each once."""
    tree, found = AgentTree(), dict[str, None]()
    for event in await record(script):
        tree.apply(event)
        if tree.run.root is not None:
            found[look(tree)] = None
    return list(found)


@pytest.mark.parametrize(
    ("loads", "told"),
    [
        ([load()], "4/4 slots"),
        ([load(queued=12)], "4/4 slots, 12 queued"),
        ([load(queued=1), load(busy=1, limit=8)], "5/12 slots, 1 queued"),
        ([load(known=False)], ""),
        ([load(known=False, queued=3)], "4/4 slots, 3 queued"),
        ([], ""),
    ],
)
async def test_slots_and_queue(record: Record, loads: list[EndpointLoad], told: str) -> None:
    tree = AgentTree()
    for event in await record({"": [say("ok")]}):
        tree.apply(event)
    assert agent_counts(tree, loads).plain == told


async def test_what_the_root_waits_for(record: Record) -> None:
    def look(tree: AgentTree, **how: Any) -> str:
        assert tree.run.root is not None
        given = {"now": 0.0, "writing": False, "thinking": False, "loads": (), **how}
        return root_activity(tree.run.root, tree, **given)

    script = {"": [call("list_dir", path=".").using(1_900, 100), say("ok")]}
    found = await seen(record, script, look)
    assert found[:3] == [
        "waiting for the model to read the prompt",
        "waiting for the model to read 2.0k tokens",
        "list_dir .",
    ]
    for how, text in (
        ({"writing": True}, "writing"),
        ({"thinking": True}, "thinking"),
        ({"loads": (load(queued=2),)}, "queued behind 4 requests"),
    ):
        assert text in await seen(record, {"": [say("ok")]}, lambda tree: look(tree, **how))  # noqa: B023


async def test_a_server_that_loads_its_model(record: Record) -> None:
    def look(tree: AgentTree) -> str:
        root = tree.run.root
        assert root is not None
        return root_activity(root, tree, now=0.0, writing=False, thinking=False, loads=())

    for text, told in (
        ("503: Loading model", "the server is loading the model"),
        ("It is broken.", "model failed: It is broken"),
    ):
        found = await seen(record, {"": [fail(ProviderError(text))]}, look)
        assert told in found


async def test_progress_of_a_fan_out(record: Record) -> None:
    spawn = calls(*(call("spawn_agent", role="researcher", task=f"Look {n}") for n in range(4)))
    found = await seen(
        record,
        {"Look": [say("ok")], "": [spawn, say("done")]},
        lambda tree: fan_out_progress(tree, 0.0),
    )
    assert found[0] == ""
    assert "0 of 4 agents done" in found
    assert "3 of 4 agents done, about 0s left" in found


def test_estimate_needs_some_agents_that_ended() -> None:
    class Ended:
        started_at = 10.0

    assert remaining_s([Ended()], 31, 20.0) is None  # type: ignore[list-item]
    assert remaining_s([Ended()] * 10, 31, 20.0) == 21.0  # type: ignore[list-item]


def test_counts_are_left_out_where_there_is_no_room() -> None:
    counts = styled("● 3 running")
    line = activity_line("thinking", 4.2, counts, spinner="*", width=40)
    assert line.plain == "* thinking  4.2s             ● 3 running"
    assert activity_line("thinking", 0.2, counts, spinner="*", width=15).plain == "* thinking"
