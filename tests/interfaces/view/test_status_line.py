from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from retinue.domain.budget import Budget
from retinue.domain.events import Event
from retinue.domain.messages import Usage
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


PLACE = "openai:qwen3-coder  normal mode  main"


async def test_place_left_and_budget_right(tree: AgentTree) -> None:
    budget = Budget(max_tool_calls=100, max_tokens=10_000)
    line = status_line(PLACE, tree, budget, width=100, now=0.0, window=32_000)
    assert text(line).startswith(f"{PLACE}  ")
    assert text(line).endswith("  3/100 calls  0.0s  1.2k/10.0k tokens  0% of 32.0k context")
    assert len(text(line)) == 100


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (85, f"{PLACE}  3/100 calls  0.0s  1.2k tokens  2 context"),
        (75, f"{PLACE}  0.0s  1.2k tokens  2 context"),
        (62, f"{PLACE}  1.2k tokens  2 context"),
        (40, "openai:qwen3-coder  normal m…  2 context"),
        (16, "openai:qwen3-co…"),
    ],
)
async def test_least_important_figures_are_left_out(
    tree: AgentTree, width: int, shown: str
) -> None:
    budget = Budget(max_tool_calls=100, max_tokens=None)
    line = status_line(PLACE, tree, budget, width=width, now=0.0)
    assert text(line).split() == shown.split()
    assert len(text(line)) <= width


async def test_nearly_used_limit_is_marked(tree: AgentTree) -> None:
    budget = Budget(max_tool_calls=3, max_tokens=1_300)
    line = status_line("", tree, budget, width=80, now=0.0, window=1)
    near = [line.plain[s.start : s.end] for s in line.spans if s.style == Tone.STOPPED]
    assert near == ["! 3/3 calls", "! 1.2k/1.3k tokens", "! 100% of 1 context"]


async def test_cost(tree: AgentTree) -> None:
    tree.run.usage = Usage(1_000, 0, 242, 340_000)
    budget = Budget(max_cost_usd=2.0, max_tokens=None)
    assert "$0.34 of $2" in text(status_line("", tree, budget, width=80, now=0.0))
    shown = text(status_line("", tree, None, width=80, now=0.0))
    assert "3 calls  0.0s  1.2k tokens  2 context  $0.34" in shown


def test_place_alone_before_the_first_event() -> None:
    assert status_line("m", None, None, width=80, now=0.0).plain == "m"
    assert status_line("m", AgentTree(), None, width=80, now=0.0).plain == "m"
