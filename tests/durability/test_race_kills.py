"""A race whose process is killed at random moments ends with one winner, and leaves nothing."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.events import (
    Event,
    ModelFailed,
    ModelReplied,
    RaceDecided,
    WorktreeMerged,
)
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.testing.server import Answering, ModelServer, Received, streamed
from tests.durability import test_chaos as chaos

project = chaos.project
RULES = [
    False,
    pytest.param(
        True,
        marks=pytest.mark.skipif(
            shutil.which("bwrap") is None, reason="only sandboxed commands die with their runtime"
        ),
    ),
]
"""Whether the first that passes its checks wins."""
MOST = 60_000
"""Billed tokens of a candidate: some three times what it needs."""


def writer(name: str, lines: int) -> list[ScriptedReply]:
    return [
        call("write_file", path="a.txt", content="fixed\n" * lines),
        call("note", text=name),
        say(f"{name} is done."),
    ]


CANDIDATES: Mapping[str, list[ScriptedReply]] = {
    "long": writer("long", 5),
    "wrong": [call("write_file", path="a.txt", content="no\n"), say("Fixed.")],
    "short": writer("short", 1),
    # Never ends by itself: it must be stopped.
    "slow": [call("run_command", command="sleep 300", timeout_s=400), *writer("slow", 9)],
}


class Candidates(chaos.Sales):
    """Sells replies by the system prompt, and knows what they cost."""

    def __init__(self) -> None:
        super().__init__(CANDIDATES)
        self.billed = self.largest = 0

    def __call__(self, request: Received) -> Answering:
        reply = super().__call__(request)
        assert isinstance(reply, ScriptedReply)
        tokens = len(request.body) // 4, len(streamed(reply).body) // 200
        self.billed += sum(tokens)
        self.largest = max(self.largest, sum(tokens))
        return reply.using(*tokens)

    def _steps(self, messages: list[Any]) -> list[ScriptedReply]:
        system = messages[0]["content"]
        return next(steps for name, steps in CANDIDATES.items() if f"You are {name}." in system)


def race(names: list[str], *, first: bool, most: int) -> dict[str, Any]:
    fields = {
        "role": "executor",
        "task": "Fix it.",
        "candidates": [{"system_prompt": f"You are {name}."} for name in names],
        "checks": ["grep -q fixed a.txt"],
        "tools": ["list_dir", "write_file", "note", "run_command"],
        "max_retries": 1,
        "max_billed_tokens": most,
        "first": first,
    }
    return {"race": fields, "limits": {"max_billed_tokens": most * len(names) + 1}}


async def killed_until_it_ends(
    folder: Path, project: Path, seed: int, *, first: bool, most: int = MOST
) -> int:
    """Kill processes until the race is over, and check everything. Returns how often."""
    drawn, sales = random.Random(seed), Candidates()
    names = ["long", "wrong", "slow" if first else "short"]
    drawn.shuffle(names)
    given = race(names, first=first, most=most)
    async with ModelServer(sales) as server:
        home = folder / "home"
        home.mkdir()
        work = chaos.Chaos(project, home, f"openai:m@{server.base_url}", given)
        while not await work.work(drawn.randrange(5, 30), drawn.choice([0, drawn.random() / 10])):
            assert work.kills < 100, "it does not get on"
    where = f"seed {seed}, {'first' if first else 'best'}, {work.kills} kills"
    view, events = await chaos.whole(project)
    # A candidate that was stopped may have left a call.
    done = {agent.id for agent in view.agents.values() if agent.status == "completed"}
    chaos.check_calls([event for event in events if event.agent_id in done])
    wrong = view.agents[f"a{names.index('wrong') + 1}"]
    assert wrong.status != "completed", f"{where}: its checks have failed"
    chaos.check_sales(events, sales)
    notes = work.notes.read_text().splitlines()
    assert len(notes) == len(set(notes)), f"{where}: what writes was run twice"
    assert work.stray() == [], where
    assert {agent.state for agent in view.agents.values()} == {"closed"}, where
    assert len(view.agents) == len(names) + 1, where
    check_budget(events, given["limits"]["max_billed_tokens"], where)
    decided = [event.fact.winner for event in events if isinstance(event.fact, RaceDecided)]
    assert len(decided) == 1, where
    merged = [event.agent_id for event in events if isinstance(event.fact, WorktreeMerged)]
    assert merged == [winner for winner in decided if winner], where
    winner = "" if not decided[0] else names[int(decided[0].removeprefix("a")) - 1]
    lines = {"": 0, "long": 5, "short": 1}[winner]
    found = chaos.tree(project)
    assert found == {"notes.txt": "note\n"} | ({"a.txt": "fixed\n" * lines} if lines else {}), where
    if most == MOST:
        assert winner == ("long" if first else "short"), where
        # A request that was sent just before a kill may not be on record.
        ours = view.usage.billed_tokens
        most_lost = work.kills * sales.largest  # On average, one call.
        assert ours >= sales.billed - most_lost, f"{where}: {ours:,} of {sales.billed:,}"
    return work.kills


def check_budget(events: list[Event], limit: int, where: str) -> None:
    """No prefix of the journal has used more than there was."""
    used = 0
    for event in events:
        if isinstance(event.fact, ModelReplied | ModelFailed):
            used += event.fact.usage.billed_tokens
            assert used <= limit, f"{where}: event {event.seq}"
    assert used


@pytest.mark.parametrize("first", RULES)
async def test_race_survives_kills(tmp_path: Path, project: Path, *, first: bool) -> None:
    assert await killed_until_it_ends(tmp_path, project, 1, first=first) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("first", RULES)
@pytest.mark.parametrize("most", [MOST, MOST // 4])
async def test_race_survives_fifty_kills(
    tmp_path: Path, project: Path, *, first: bool, most: int
) -> None:
    """Also where the budget does not last for all calls that were lost."""
    kills = seed = 0
    while kills < 50:
        seed += 1
        folder = tmp_path / str(seed)
        shutil.copytree(project, folder / "project")
        kills += await killed_until_it_ends(
            folder, folder / "project", seed, first=first, most=most
        )
