"""`retinue sessions`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.project import open_run_locks

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Start


@pytest.fixture
def session(cli: Cli, script: Script) -> str:
    """A session of two runs, which remembered something."""
    remember = "{call: remember, args: {text: Herons wait.}}"
    model = script(f"steps: [{remember}, {{say: ok}}]")
    assert cli("run", "-m", model, "--mode", "auto", "Look at\nherons.").code == 0
    assert cli("run", "-m", script("steps: [{say: ok}]"), "-c", "And again.").code == 0
    (line,) = cli("sessions", "--json").out.splitlines()
    return str(json.loads(line)["id"])


def counts(project: Path) -> dict[str, int]:
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("runs", "events", "sub_agents", "session_titles", "memories", "seals")
        }


def test_a_session_is_named_by_its_first_task_until_it_gets_a_title(
    cli: Cli, session: str, terminal: Start
) -> None:
    (line,) = cli("sessions").out.splitlines()
    assert line.startswith(f"{session}  ")
    assert line.endswith(" ago  2  Look at")
    done = cli("sessions", "rename", session[:3], "Herons\n at", "work")
    assert done == (0, f"Session {session[:3]} is now called: Herons at work\n", "")
    (line,) = cli("sessions").out.splitlines()
    assert line.endswith("  2  Herons at work")
    assert {json.loads(row)["title"] for row in cli("runs", "--json").out.splitlines()} == {
        "Herons at work"
    }
    term = terminal("sessions")
    assert term.end() == 0
    assert term.text.split()[:5] == ["SESSION", "LAST", "USED", "RUNS", "TITLE"]


def test_wrong_names_are_refused(cli: Cli, session: str) -> None:
    assert cli("sessions", "rename", session, " ") == (
        2, "", "retinue: A title needs at least one word.\n"
    )  # fmt: skip
    done = cli("sessions", "rename", "nope", "Herons")
    assert done.code == 2
    assert done.err.startswith("retinue: No run 'nope' in ")


def test_deletion_removes_the_runs_and_keeps_memories(
    cli: Cli, session: str, script: Script, project: Path, terminal: Start
) -> None:
    cli("run", "-m", script("steps: [{say: ok}]"), "Something else.")
    cli("sessions", "rename", session, "Herons")
    done = cli("sessions", "delete", session)
    what = f"session {session} (2 runs: Herons)"
    assert done == (
        4, "", f"retinue: Nothing was deleted. Confirm with --yes to delete {what}.\n"
    )  # fmt: skip
    term = terminal("sessions", "delete", session)
    term.see(f"Delete {what} permanently? [y/N]:")
    term.type("n\n")
    assert term.end() == 130
    assert counts(project)["runs"] == 3

    assert cli("sessions", "delete", "-y", session) == (0, f"Deleted {what}.\n", "")
    left = counts(project)
    assert (left["runs"], left["session_titles"], left["memories"]) == (1, 0, 1)
    assert left["seals"] == 2, "the memory counts only with the seal of its run"
    (row,) = cli("runs", "--json").out.splitlines()
    assert json.loads(row)["task"] == "Something else."
    assert cli("audit", json.loads(row)["id"]).code == 0
    # The triggers are in place again.
    with (
        closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as connection,
        pytest.raises(sqlite3.IntegrityError, match="runs are finished, never deleted"),
    ):
        connection.execute("DELETE FROM runs")


def test_a_session_at_work_is_not_deleted(cli: Cli, session: str, project: Path) -> None:
    lock = open_run_locks(project).acquire(session)
    done = cli("sessions", "delete", "-y", session)
    lock.release()
    assert done == (
        1,
        "",
        f"retinue: The session is at work, in run {session}; wait for it, or stop it with"
        f" `retinue cancel {session}`.\n",
    )
    assert counts(project)["runs"] == 2


def test_a_program_led_run_is_no_session(cli: Cli, run_id: str) -> None:
    done = cli("sessions", "delete", "-y", run_id)
    assert done.code == 2
    assert "does not belong to a session" in done.err
    assert cli("sessions").out == ""
