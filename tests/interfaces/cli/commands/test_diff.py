"""`retinue diff`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


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
def run(cli: Cli, script: Script, project: Path) -> str:
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


def test_diff_shows_each_step_and_unmerged_changes(cli: Cli, run: str) -> None:
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
