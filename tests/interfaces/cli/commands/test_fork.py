"""`retinue fork`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script

WRITES = """
rules:
  - match: ""
    steps:
      - {call: write_file, args: {path: a.txt, content: "first"}}
      - say: Done.
"""
OTHERWISE = WRITES.replace("first", "other").replace("Done", "Done otherwise")


@pytest.fixture
def run(cli: Cli, script: Script) -> str:
    assert cli("run", "-q", "--mode", "auto", "-m", script(WRITES), "Write.").code == 0
    return _ids(cli)[0]


def _ids(cli: Cli) -> list[str]:
    return [json.loads(line)["id"] for line in cli("runs", "--json").out.splitlines()]


def test_fork_compare_and_apply(cli: Cli, script: Script, run: str, project: Path) -> None:
    model = script(OTHERWISE)
    done = cli("fork", run, "--at", "t0", "--tell", "Other way", "-q", "-m", model)
    assert (done.code, done.out) == (0, "Done otherwise.\n"), done.err
    assert (project / "a.txt").read_text() == "first"
    fork, _ = _ids(cli)
    assert f"; so is the event of run {run} that it forks" in cli("audit", fork).out
    assert "Changed differently: a.txt" in cli("compare", run, fork).out
    assert cli("undo", run).code == 0
    assert cli("redo", fork, "a0").code == 0
    assert (project / "a.txt").read_text() == "other"


def test_the_person_is_told_where_the_work_of_a_fork_is(cli: Cli, script: Script, run: str) -> None:
    done = cli("fork", run, "--at", "t0", "--tell", "Other way", "-m", script(OTHERWISE))
    fork, _ = _ids(cli)
    assert f"`retinue diff {fork}` shows its changes, `retinue redo {fork} a0` applies" in done.err
    without_work = cli("fork", run, "--at", "t0", "-m", script("steps: [{say: No.}]"))
    assert "worked in a copy" not in without_work.err


def test_a_fork_diverges_after_what_both_share(cli: Cli, script: Script, run: str) -> None:
    assert cli("fork", run, "--at", "t1", "--tell", "And?", "-q", "-m", script(OTHERWISE)).code == 0
    fork, _ = _ids(cli)
    for names in ((run, fork), (fork, run)):
        shown = cli("compare", *names).out.partition("They diverge at root:\n")[2]
        assert re.search(rf"{run} event \d+, turn 2: Done\.", shown)
        assert f"{fork} event 2: task: And?" in shown


def test_a_narrower_contract(cli: Cli, run: str) -> None:
    terms = ("--contract", "max_turns=4", "--contract", "tools=read_file,list_dir")
    assert cli("fork", run, "--at", "t0", "-q", *terms).code == 0
    fork, _ = _ids(cli)
    shown = cli("show", fork, "a0", "--json").out
    assert " tool calls, 4 turns." in shown
    assert '"tool.denied"' in shown


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--contract", "color=red"), "Unknown key 'color' in --contract; there are: max_t"),
        (
            ("--contract", "max_turns=many"),
            "--contract max_turns needs a number, as in max_turns=10; this is 'many'.",
        ),
        (("--contract", "max_turns"), "needs a number, as in max_turns=10; this is ''."),
        (("--contract", "tools=red_file"), "Unknown tool 'red_file'; there are: "),
        (("--mode", "dangerous"), "had mode auto; a fork of it cannot have dangerous."),
        (("--at", "soon"), "'soon' names no moment"),
        (("-f", "a.txt"), "A fork takes no files with -f; name them in --tell."),
    ],
)
def test_mistakes(cli: Cli, run: str, options: tuple[str, ...], problem: str) -> None:
    done = cli("fork", run, *options)
    assert done.code == 2
    assert problem in done.err


def test_a_run_that_was_cleaned_away(cli: Cli, run: str) -> None:
    assert cli("clean", "--older-than", "0").code == 0
    done = cli("fork", run)
    assert done.code == 1
    assert f"The journal of run {run} was cleaned away" in done.err
