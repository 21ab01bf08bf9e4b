"""`retinue tasks`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


GIVE = """
rules:
  - match: You are a coding agent
    steps:
      - calls:
          - {call: spawn_agent, args: {role: planner, task: "task good"}}
          - {call: spawn_agent, args: {role: planner, task: "task bad"}}
      - say: One.
      - say: The other does not matter. # its answer to the reminder of a failed child
      - {call: spawn_agent, args: {role: reviewer, task: "task good"}}
      - say: Two.
  - match: task bad
    steps: [{fail: refused, message: No.}]
  - match: ""
    steps: [{say: Done.}]
"""


def test_tasks_of_a_session_are_listed(cli: Cli, script: Script) -> None:
    model = script(GIVE)
    assert cli("run", "-q", "-m", model, "Give").code == 0
    assert cli("run", "-q", "-c", "-m", model, "Go on").code == 0
    second, first = (json.loads(line)["id"] for line in cli("runs", "--json").out.splitlines())
    done = cli("tasks")
    assert (done.code, done.err) == (0, "")
    good, bad, more, sums = done.out.splitlines()
    assert re.fullmatch(rf"{first}  a1  planner   completed  \d\.\ds  task good", good)
    assert re.fullmatch(rf"{first}  a2  planner   error      \d\.\ds  task bad: No\.", bad)
    assert re.fullmatch(rf"{second}  a3  reviewer  completed  \d\.\ds  task good", more)
    assert sums == f"3 tasks in session {first}: 2 completed, 1 error"
    assert cli("tasks", second[:6]).out == done.out
    listed = [json.loads(line) for line in cli("tasks", "--json").out.splitlines()]
    assert [(task["agent_id"], task["status"], task["error"]) for task in listed] == [
        ("a1", "completed", ""),
        ("a2", "error", "No."),
        ("a3", "completed", ""),
    ]


def test_tasks_of_a_fan_out_are_listed(cli: Cli, run_id: str) -> None:
    done = cli("tasks")
    assert done.out.endswith(f"2 tasks in run {run_id}: 1 completed, 1 error\n")


def test_session_without_tasks(cli: Cli, script: Script) -> None:
    cli("run", "-q", "-m", script("steps: [{say: ok}]"), "x")
    run = json.loads(cli("runs", "--json").out)["id"]
    assert cli("tasks") == (0, f"No child has a task in session {run}.\n", "")
