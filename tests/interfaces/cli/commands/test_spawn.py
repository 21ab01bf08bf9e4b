"""`retinue spawn`."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


OK = "rules: [{match: '', steps: [{say: All is well., tokens: {in: 900, out: 100}}]}]"


def lines_of(text: str) -> list[dict[str, Any]]:
    """Each line as the JSON object that it must be."""
    return [json.loads(line) for line in text.splitlines()]


def test_spawn_prints_the_answer_of_the_child(cli: Cli, looks: str) -> None:
    done = cli("spawn", "researcher", "-m", looks, "What is here?")
    assert (done.code, done.out) == (0, "There is one file.\n")
    assert "  root/researcher.1: created: What is here?\n" in done.err
    assert '[researcher] Completed: "What is here?"' in done.err


def test_files_that_were_changed_are_listed(cli: Cli, writes: str, project: Path) -> None:
    done = cli("run", "--mode", "auto", "-m", writes, "Write.")
    assert done.code == 0
    assert "  Files modified: a.txt (+1 line, new file)\n" in done.err
    assert (project / "a.txt").read_text() == "hi\n"


def test_workspace_and_write_options(cli: Cli, always_writes: str, project: Path) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    free = ("--mode", "auto", "--json", "-m", always_writes)
    for flags, written in (
        (("--workspace", "readonly"), False),
        (("--write", "src/**"), False),
        (("--workspace", "shared"), True),
        (("--workspace", "worktree", "--write", "*.txt", "--on-conflict", "fail"), True),
    ):
        done = cli("spawn", "executor", *free, *flags, "x")
        assert (done.code, (project / "a.txt").exists()) == (0, written)
        copied = "agent.worktree_created" in [line["type"] for line in lines_of(done.out)]
        assert copied == ("worktree" in flags or "src/**" in flags)
        (project / "a.txt").unlink(missing_ok=True)
    done = cli("fan-out", *free, "--each", "*.txt", "--write", "*.md", "Mend {path}.")
    assert (done.code, done.err) == (
        2,
        "retinue: With --each, a child may write only its own file; leave out --write.\n",
    )


def test_a_child_has_only_the_tools_that_are_named(cli: Cli, looks: str) -> None:
    done = cli("spawn", "researcher", "-m", looks, "--tool", "read_file", "What is here?")
    assert done.code == 0
    assert "[DENIED] You have no tool 'list_dir'. You have: read_file." in done.err
    done = cli("spawn", "researcher", "-m", looks, "--tool", "rocket", "What is here?")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("retinue: Unknown tool 'rocket'; there are: ")


def test_small_budget_is_enough_for_a_title(cli: Cli, script: Script, project: Path) -> None:
    (project / "notes.md").write_text("We met.\n")
    done = cli(
        "spawn", "researcher", "-m", script(OK), "-q", "-f", "notes.md",
        "--max-turns", "2", "--max-tokens", "4000", "A title for notes.md, in one line",
    )  # fmt: skip
    assert (done.code, done.out) == (0, "All is well.\n")


DIGS = """
rules:
  - match: Dig
    steps: [{say: Sand.}, {say: A bone.}]
"""


def test_a_child_that_has_ended_is_continued(cli: Cli, script: Script) -> None:
    model = script(DIGS)
    cli("spawn", "researcher", "-m", model, "Dig.")
    run = json.loads(cli("runs", "--json").out.splitlines()[0])["id"]
    done = cli("spawn", "-m", model, "--continue", f"{run}/a1", "Deeper.")
    assert (done.code, done.out) == (0, "A bone.\n")
    assert f"continues {run}/a1" in done.err
    for arguments, message in (
        (("--continue", f"{run}/a7", "Deeper."), f"Run {run} has no agent 'a7'. Can be continued:"),
        (("--continue", "zzzz/a1", "Deeper."), "No run 'zzzz'"),
        (("--continue", f"{run}/a1"), "Missing argument 'TASK'."),
        (("Deeper.",), "Missing argument 'TASK'."),
    ):
        done = cli("spawn", "-m", model, *arguments)
        assert done.code in (1, 2)
        assert message in done.err


def test_sampling_and_network_are_flags(cli: Cli, script: Script) -> None:
    sampling = ("--temperature", "0.2", "--top-p", "0.9", "--seed", "7")
    flags = (*sampling, "--max-output-tokens", "64", "-m", script(OK))
    done = cli("spawn", "executor", "--mode", "auto", "--network", "loopback", *flags, "x")
    assert done.code == 0
    run = json.loads(cli("runs", "--json").out.splitlines()[0])["id"]
    child = _contract(cli, run, "a1")
    expected = {"temperature": 0.2, "top_p": 0.9, "seed": 7, "max_output_tokens": 64}
    assert child["execution"]["sampling"] == expected
    assert child["permissions"]["network"] == "loopback"
    assert cli("run", *flags, "x").code == 0
    run = json.loads(cli("runs", "--json").out.splitlines()[0])["id"]
    assert _contract(cli, run, "a0")["execution"]["sampling"] == expected
    done = cli("run", "--temperature", "7", "-m", script(OK), "x")
    assert (done.code, done.err) == (2, "retinue: temperature must be between 0 and 2, not 7.\n")


def _contract(cli: Cli, run: str, agent: str) -> dict[str, Any]:
    with sqlite3.connect(".retinue/retinue.db") as db:
        query = "SELECT context_json FROM sub_agents WHERE run_id = ? AND id = ?"
        (row,) = db.execute(query, (run, agent)).fetchall()
    return dict(json.loads(row[0]))
