"""Progress as plain lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.interfaces.cli.terminal.lines import Lines
from retinue.interfaces.view.agent_tree import MAX_UNGROUPED_CHILDREN
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, hold, say

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


async def play(
    project: Path, script: dict[str, list[Step]], lines: Lines, *, until: Callable[[], bool]
) -> None:
    """Run `script` under `lines`, and stop it when the condition holds."""
    async with (
        lines.live(),
        retinue.open(
            project,
            model=ScriptedModel(script, strict=False),
            max_concurrent=10,
            listeners=retinue.Listeners(on_event=lines.on_event),
            environment=Environment(variables={"HOME": f"{project}-home"}),
        ) as rt,
    ):
        running = asyncio.create_task(rt.run("Survey it all"))
        while not until() and not running.done():  # noqa: ASYNC110 - it is only seen on paper
            await asyncio.sleep(0.01)
        running.cancel()


async def test_running_agents_are_named_after_a_silence(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def long_enough() -> bool:
        said.append(capsys.readouterr().err)
        return "more running" in "".join(said)

    wait: list[Step] = [hold(asyncio.Event(), say("never"))]
    spawned = calls(*(call("spawn_agent", role="researcher", task=f"Wait {n}") for n in range(5)))
    script: dict[str, list[Step]] = {"Wait": wait, "": [spawned]}
    await play(project, script, Lines(silence_s=0.05), until=long_enough)
    text = "".join(said)
    assert '  root/researcher.5: "Wait 4" (turn 1/50, ' in text
    assert "  and 3 more running\n" in text


def test_log_has_the_outcome_of_each_child(cli: Cli, script: Script) -> None:
    model = script(
        """
        rules:
          - match: You are a coding agent
            steps:
              - {call: spawn_agent, args: {role: tester, task: "Write tests", mode: auto}}
              - {call: spawn_agent, args: {role: researcher, task: "Break"}}
              - say: One broke.
              - say: Done.
          - match: Break
            steps: [{fail: refused, message: No.}]
          - match: ""
            steps:
              - {call: write_file, args: {path: tests/test_a.py, content: "1\\n2\\n"}}
              - say: Wrote two.
        """
    )
    code, out, err = cli("run", "--mode", "auto", "-m", model, "Test it")
    assert (code, out) == (0, "Done.\n")
    assert '\n[tester] Completed: "Write tests"\n  Duration: ' in err
    assert "\n  Files modified: tests/test_a.py (+2 lines, new file)\n  Result: Wrote two.\n" in err
    assert '\n[researcher] Ended (error): "Break"\n' in err
    assert "\n  Reason: No.\n" in err
    assert '\n[lead] Completed: "Test it"\n' in err


def test_many_children_have_a_line_each(cli: Cli, script: Script) -> None:
    asked = ", ".join('{call: spawn_agent, args: {role: planner, task: "Look"}}' for _ in range(7))
    model = script(
        f"""
        rules:
          - match: You are a coding agent
            steps:
              - calls: [{asked}]
              - say: Done.
          - match: ""
            steps: [{{say: Looked.}}]
        """
    )
    code, _, err = cli("run", "-m", model, "Look around")
    assert code == 0
    # The first may end before the others are there, and be told of as in a small family.
    blocks = err.count("[planner] Completed")
    assert blocks <= MAX_UNGROUPED_CHILDREN
    assert err.count(": closed as completed: done\n") == 7 - blocks
