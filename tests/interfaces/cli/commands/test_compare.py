"""`retinue compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script

WRITES = """
rules:
  - match: ""
    steps:
      - call: write_file
        args: {{path: same.txt, content: "same"}}
      - call: write_file
        args: {{path: both.txt, content: "{word}"}}
      - call: write_file
        args: {{path: {word}.txt, content: "x"}}
      - say: Written.
"""


@pytest.fixture
def runs(cli: Cli, script: Script) -> tuple[str, str]:
    """Two runs of the same task, by models that write the same first file and then others."""
    for word in ("left", "right"):
        model = script(WRITES.format(word=word))
        assert cli("run", "-q", "--mode", "auto", "-m", model, "Write files.").code == 0
        assert cli("undo").code == 0
    rows = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    second, first = (row["id"] for row in rows)
    return first, second


def _compare(cli: Cli, *runs: str) -> dict[str, Any]:
    done = cli("compare", *runs, "--json")
    assert done.code == 0, done.err
    return dict(json.loads(done.out))


def test_where_runs_diverge_and_which_files_differ(cli: Cli, runs: tuple[str, str]) -> None:
    found = _compare(cli, *runs)
    diverges = found["diverges"]
    assert diverges["agent"] == "root"
    assert diverges["first"]["turn"] == diverges["second"]["turn"] == 2
    assert "left" in diverges["first"]["text"]
    assert "right" in diverges["second"]["text"]
    assert found["files"] == {
        "same": ["same.txt"],
        "different": ["both.txt"],
        "only_first": ["left.txt"],
        "only_second": ["right.txt"],
    }
    assert [found[name]["turns"] for name in ("first", "second")] == [4, 4]
    assert [found[name]["tool_calls"] for name in ("first", "second")] == [3, 3]


def test_the_lines_for_people(cli: Cli, runs: tuple[str, str]) -> None:
    first, second = runs
    lines = cli("compare", *runs).out.splitlines()
    assert lines[0].split() == ["run", first, second]
    assert lines[1].split() == ["outcome", "completed", "completed"]
    assert lines[4].split() == ["turns", "4", "4"]
    at = lines.index("They diverge at root:")
    assert lines[at + 1].startswith(f"  {first} event ")
    assert ', turn 2: write_file {"path' in lines[at + 2]
    assert lines[at + 3 :] == [
        "Changed differently: both.txt",
        f"Changed by {first} only: left.txt",
        f"Changed by {second} only: right.txt",
        "Changed to the same content: same.txt",
    ]


def test_a_run_equals_itself(cli: Cli, runs: tuple[str, str]) -> None:
    shown = cli("compare", runs[0], runs[0]).out
    assert "They do not diverge: every agent did and said the same.\n" in shown
    assert "Changed differently" not in shown


def test_a_child_that_differs_is_named_before_its_parent(cli: Cli, script: Script) -> None:
    for word in ("one", "two"):
        model = script(
            f"""
rules:
  - match: count
    steps: [{{say: "I found {word}."}}]
  - match: ""
    steps:
      - call: spawn_agent
        args: {{role: researcher, task: "count"}}
      - say: It is {word}.
"""
        )
        assert cli("run", "-q", "--no-cache", "-m", model, "Ask a child.").code == 0
    rows = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    found = _compare(cli, rows[1]["id"], rows[0]["id"])["diverges"]
    assert found["agent"] == "root/researcher.1"
    assert (found["first"]["text"], found["second"]["text"]) == ("I found one.", "I found two.")


def test_a_run_that_stops_early_has_no_further_step(cli: Cli, script: Script) -> None:
    model = script('rules: [{match: "", steps: [{call: list_dir}, {say: Done.}]}]')
    assert cli("run", "-q", "-m", model, "Look.").code == 0
    model = script('rules: [{match: "", steps: [{fail: refused}]}]')
    assert cli("run", "-q", "-m", model, "Look.").code == 1
    rows = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    shown = cli("compare", rows[1]["id"], rows[0]["id"]).out
    assert f"  {rows[0]['id']} has no further step\n" in shown


def test_an_exported_run(cli: Cli, runs: tuple[str, str], tmp_path: Path) -> None:
    assert cli("export", runs[0], "-o", str(tmp_path / "first.db")).code == 0
    found = _compare(cli, str(tmp_path / "first.db"), runs[1])
    assert found["diverges"]["first"]["turn"] == 2
    assert found["files"]["only_first"] == []


def test_a_run_that_was_cleaned_away_has_figures_only(cli: Cli, runs: tuple[str, str]) -> None:
    assert cli("clean", "--older-than", "0").code == 0
    shown = cli("compare", *runs).out
    assert shown.splitlines()[4].split() == ["turns", "4", "4"]
    assert f"The journal of run {runs[0]} was cleaned away, with its conversation.\n" in shown
    assert "diverge" not in shown


def test_an_unknown_run(cli: Cli, runs: tuple[str, str]) -> None:
    done = cli("compare", runs[0], "zzzz")
    assert done.code == 2
    assert "No run 'zzzz' in" in done.err
