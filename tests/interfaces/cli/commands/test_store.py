"""`retinue store`, and `retinue store copy`."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script

MODEL = """
rules:
  - match: Lead
    steps: [{call: spawn_agent, args: {task: Count., role: researcher}}, {say: Done.}]
  - match: ""
    steps: [{say: Herons nest in March.}]
"""


def test_store_is_shown(cli: Cli, script: Script, project: Path) -> None:
    database = project / ".retinue" / "retinue.db"
    assert cli("store") == (0, f"{database}\nNothing is recorded there yet.\n", "")
    assert not database.exists()
    cli("spawn", "researcher", "-q", "-m", script(MODEL), "Count.")
    shown = cli("store").out
    assert re.fullmatch(
        rf"{database}\nSQLite 3\.[\d.]+, tables of version \d+; 1 run, [\d.]+ KB\n", shown
    )
    found = json.loads(cli("store", "--json").out)
    assert (found["place"], found["runs"], found["schema"]) == (str(database), 1, "")


def test_copied_runs_have_their_sessions_and_reports(
    cli: Cli, script: Script, project: Path, tmp_path: Path
) -> None:
    cli("run", "-q", "-m", script(MODEL), "Lead.")
    cli("spawn", "researcher", "-q", "-m", script(MODEL), "Count.")
    runs = cli("runs").out
    session = json.loads(cli("sessions", "--json").out)["id"]
    assert cli("sessions", "rename", session, "Herons").code == 0
    other = tmp_path / "other"
    other.mkdir()
    done = cli("store", "copy", ".", str(other))
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(
        rf"Copied 2 runs, \d+ events, 1 title, 1 report from {project}/\.retinue/retinue\.db to"
        rf" {other}/\.retinue/retinue\.db\.\n",
        done.out,
    )
    again = cli("store", "copy", ".", str(other))
    assert again.out.startswith("Copied 0 runs from ")
    assert again.out.endswith(" 2 runs had been copied before.\n")
    assert cli("runs", "-C", str(other)).out == runs
    assert "Herons" in cli("sessions", "-C", str(other)).out
    assert cli("audit", "-C", str(other)).code == 0
    # The report is the one that the last run has written.
    report = Path(".retinue") / "step-0-result.md"
    assert without_times((other / report).read_text()) == without_times(report.read_text())


def without_times(report: str) -> str:
    """A report without durations: those of a closed agent include the time of its closing."""
    return re.sub(r"[\d.]+ s", "", report)


def test_run_of_a_stranger_is_skipped(
    cli: Cli, script: Script, project: Path, tmp_path: Path
) -> None:
    cli("spawn", "researcher", "-q", "-m", script(MODEL), "Count.")
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as connection:
        connection.execute("DELETE FROM seals")
        connection.commit()
    (tmp_path / "other").mkdir()
    done = cli("store", "copy", ".", str(tmp_path / "other"))
    assert done.code == 1
    assert "was not started by you in this directory" in done.err
    assert done.out.startswith("Copied 0 runs from ")


def test_wrong_places(cli: Cli, project: Path) -> None:
    (project / "other").mkdir()
    missing = cli("store", "copy", ".", "other")
    assert (missing.code, missing.err) == (
        1,
        f"retinue: There is no run in {project}/.retinue/retinue.db.\n",
    )
    unknown = cli("store", "copy", "herons.db", ".")
    assert (unknown.code, unknown.err) == (2, "retinue: There is no directory 'herons.db'.\n")
