"""`retinue runs`."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Start


def test_runs_are_listed_newest_first(cli: Cli, run_id: str, script: Script) -> None:
    cli("run", "-m", script("steps: [{say: ok}]"), "Speak\nplainly.")
    done = cli("runs")
    assert (done.code, done.err) == (0, "")
    newest, oldest = done.out.splitlines()
    when = r"[A-Z][a-z]{2} \d\d \d\d:\d\d"
    (run,) = set(newest.split()[:2])
    assert re.fullmatch(rf"{run}  {run}  {when}  completed  \d\.\ds  1  Speak plainly\.", newest)
    ended = rf"{run_id}  -         {when}  error      \d\.\ds  3  2 tasks: task good"
    assert re.fullmatch(ended, oldest)
    assert [line.split() for line in cli("runs", "-n", "1").out.splitlines()] == [newest.split()]


def test_only_a_terminal_gets_headings(cli: Cli, run_id: str, terminal: Start) -> None:
    term = terminal("runs")
    assert term.end() == 0
    head, row = term.text.splitlines()
    assert head.split() == ["RUN", "SESSION", "BEGAN", "STATUS", "TIME", "AGENTS", "TASK"]
    assert row.startswith(run_id)
    assert row.endswith("2 tasks: task good")
    assert not cli("runs").out.startswith("RUN")


def test_runs_as_json(cli: Cli, run_id: str) -> None:
    (line,) = cli("runs", "--json").out.splitlines()
    row = json.loads(line)
    assert (row["id"], row["status"], row["agents"]) == (run_id, "error", 3)


@pytest.mark.parametrize("command", [("runs",), ("tasks",), ("show", "x"), ("audit", "x")])
def test_no_runs_is_an_error(cli: Cli, project: Path, command: tuple[str, ...]) -> None:
    done = cli(*command)
    db = project / ".retinue" / "retinue.db"
    assert done == (1, "", f"retinue: There is no journal at {db} yet; run something first.\n")
    assert not (project / ".retinue").exists(), "reading makes nothing"


@pytest.mark.parametrize("options", [("show", "--json"), ("show",), ("runs",)])
def test_closed_pipe_is_no_error(
    cli: Cli,
    run_id: str,
    program: Callable[..., subprocess.Popen[bytes]],
    options: tuple[str, ...],
) -> None:
    argv = (*options, run_id) if options[0] == "show" else options
    process = program(*argv)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate()
    assert err == b""
    assert process.returncode == 141
