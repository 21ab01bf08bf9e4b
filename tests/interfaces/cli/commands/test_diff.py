"""`retinue diff`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Start


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


def test_a_terminal_says_that_nothing_has_changed(
    cli: Cli, script: Script, terminal: Start
) -> None:
    assert cli("run", "-m", script("steps: [{say: Hello.}]"), "Greet").code == 0
    assert cli("diff").out == ""
    shown = terminal("diff")
    assert shown.end() == 0
    assert "has changed no files." in shown.text
