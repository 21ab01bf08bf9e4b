from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from retinue.domain.budget import Budget
from retinue.domain.events import Event
from retinue.domain.messages import Usage
from retinue.domain.server_info import EndpointLoad
from retinue.errors import ProviderError
from retinue.interfaces.view.agent_tree import AgentTree
from retinue.interfaces.view.status_line import status_line
from retinue.interfaces.view.styled_text import Line, Tone
from retinue.models.scripted.model import call, calls, fail, say

Record = Callable[..., Awaitable[list[Event]]]


def tree_of(events: list[Event]) -> AgentTree:
    tree = AgentTree()
    for event in events:
        tree.apply(event)
    return tree


def text(line: Line) -> str:
    return line.plain


@pytest.fixture
async def tree(record: Record) -> AgentTree:
    tasks = ("Look 1", "Look 2", "Break 3")
    spawn = calls(*(call("spawn_agent", role="researcher", task=t) for t in tasks)).using(900, 100)
    broken = fail(ProviderError("no"))
    return tree_of(
        await record(
            {
                "Look": [say("ok").using(100, 20)],
                "Break": [broken],
                "": [spawn, say("done").using(1, 1)],
            }
        )
    )


async def test_counts_left_and_budget_right(tree: AgentTree) -> None:
    line = status_line(tree, Budget(max_tool_calls=100, max_tokens=10_000), width=70, now=0.0)
    assert text(line).startswith("✓ 2 done  ✗ 1 failed  ")
    assert text(line).endswith("  3/100 calls  1.2k/10.0k tokens  0.0s")
    assert len(text(line)) == 70


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (62, "✓ 2 done  ✗ 1 failed   3/100 calls  1.2k tokens  0.0s"),
        (45, "✓ 2  ✗ 1   3/100 calls  1.2k tokens  0.0s"),
        (30, "✓ 2  ✗ 1     1.2k tokens  0.0s"),
        (16, "✓ 2  ✗ 1    0.0s"),
        (10, "✓ 2  ✗ 1"),
    ],
)
async def test_least_important_figures_are_left_out(
    tree: AgentTree, width: int, shown: str
) -> None:
    line = status_line(tree, Budget(max_tool_calls=100, max_tokens=None), width=width, now=0.0)
    assert text(line).split() == shown.split()
    assert len(text(line)) <= width


async def test_nearly_used_limit_is_highlighted(tree: AgentTree) -> None:
    line = status_line(tree, Budget(max_tool_calls=3, max_tokens=1_300), width=80, now=0.0)
    near = [line.plain[s.start : s.end] for s in line.spans if s.style == Tone.STOPPED]
    assert near == ["3/3 calls", "1.2k/1.3k tokens"]


async def test_cost(tree: AgentTree) -> None:
    tree.run.usage = Usage(1_000, 0, 242, 340_000)
    shown = text(status_line(tree, Budget(max_cost_usd=2.0, max_tokens=None), width=80, now=0.0))
    assert "$0.34 of $2" in shown
    shown = text(status_line(tree, None, width=80, now=0.0))
    assert "3 calls  1.2k tokens  $0.34  0.0s" in shown


def test_empty_before_the_first_event() -> None:
    assert status_line(None, None, width=80, now=0.0).plain == ""
    assert status_line(AgentTree(), None, width=80, now=0.0).plain == ""


def load(*, busy: int = 4, limit: int = 4, queued: int = 0, known: bool = True) -> EndpointLoad:
    return EndpointLoad(address="a", in_flight=busy, limit=limit, waiting=queued, known=known)


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
    events = await record({"": [say("ok")]})
    tree = tree_of(events[:3])
    line = text(status_line(tree, None, width=78, now=0.0, loads=loads))
    assert ("slots" in line) is bool(told)
    assert told in line
    over = text(status_line(tree_of(events), None, width=78, now=0.0, loads=loads))
    assert "slots" not in over
