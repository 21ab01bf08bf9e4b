"""diff, undo and redo."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

WRITES = """
rules:
  - match: task bad
    steps:
      - {call: write_file, args: {path: bad.txt, content: "b\\n"}}
      - {fail: refused, message: No.}
  - match: ""
    steps: [{call: write_file, args: {path: a.txt, content: "2\\n"}}, {say: Done.}]
"""


@pytest.fixture
def run(cli: Cli, script: Callable[[str], str], project: Path) -> str:
    """A run with a child that has written, and one that failed."""
    (project / "a.txt").write_text("1\n")
    subprocess.run(["git", "init", "-q"], check=True)
    done = cli(
        "fan-out",
        "-m",
        script(WRITES),
        "--mode",
        "auto",
        "executor: task good",
        "executor: task bad",
    )
    assert done.code == 1, done.err
    return str(json.loads(cli("runs", "--json").out.splitlines()[0])["id"])


def test_diff_shows_each_step_and_what_was_kept(cli: Cli, run: str) -> None:
    shown = cli("diff", run).out
    assert "# step 1, by a1 (root/executor.1): root/executor.1: task good\n" in shown
    assert "-1\n+2\n" in shown
    assert "# not merged, by a2 (root/executor.2): root/executor.2: task bad\n" in shown
    assert "+b\n" in shown
    assert "bad" not in cli("diff", run, "a1").out
    changes = [json.loads(line) for line in cli("diff", run, "--json").out.splitlines()]
    assert [(c["state"], c["number"], c["agent_id"]) for c in changes] == [
        ("made", 1, "a1"),
        ("kept", None, "a2"),
    ]


def test_undo_and_redo(cli: Cli, run: str, project: Path) -> None:
    done = cli("undo", run)
    assert (done.code, done.out) == (0, "a.txt (+1/-1 lines)\n1 file undone.\n")
    assert (project / "a.txt").read_text() == "1\n"
    assert "# step 1, undone, by a1" in cli("diff", run).out
    done = cli("undo", run)
    assert (done.code, done.err) == (1, f"retinue: There is nothing to undo in run {run}.\n")
    assert cli("redo", run, "root/executor.1").out == "a.txt (+1/-1 lines)\n1 file redone.\n"
    assert cli("redo", run, "a2").out == "bad.txt (+1 line, new file)\n1 file redone.\n"
    assert (project / "bad.txt").read_text() == "b\n"
    assert "# applied by redo, by a2" in cli("diff", run).out
    shown = cli("show", run).out
    assert " undone: a.txt (+1/-1 lines)\n" in shown
    assert " redone of a2: bad.txt (+1 line, new file)\n" in shown
    assert cli("audit", run).code == 0


def test_nothing_is_made_where_nothing_is(cli: Cli, project: Path) -> None:
    assert cli("undo", "k3f9").code == 1
    assert list(project.iterdir()) == []


def test_a_later_edit_in_the_way_is_named(cli: Cli, run: str, project: Path) -> None:
    (project / "a.txt").write_text("3\n")
    done = cli("undo", run, "a1")
    assert done.code == 1
    assert done.err == (
        "retinue: Nothing was undone: these changes are in the way: a.txt. Undo them first, or edit"
        " the files yourself.\n"
    )
    assert (project / "a.txt").read_text() == "3\n"
