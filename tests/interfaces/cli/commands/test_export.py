"""`retinue export`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.domain.lifecycle import State

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


LEAD = """
rules:
  - match: You are a coding agent
    steps:
      - {call: spawn_agent, args: {role: researcher, task: "Look at it"}}
      - say: All done.
  - match: ""
    steps: [{call: list_dir}, {say: Looked.}]
"""


@pytest.fixture
def exported(cli: Cli, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a run, seen from a folder that has no journal; another run is not in it."""
    model = script(LEAD)
    assert cli("run", "-q", "-m", model, "One").code == 0
    run = cli("runs").out.split()[0]
    assert cli("run", "-q", "-m", model, "--no-cache", "Two").code == 0
    done = cli("export", run)
    assert (done.code, done.out) == (
        0,
        f"Written to {run}.retinue. Show it with: retinue show {run}.retinue\n",
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Path(f"{run}.retinue").rename(elsewhere / "run.retinue")
    monkeypatch.chdir(elsewhere)
    return elsewhere / "run.retinue"


def test_exported_run_is_shown_and_audited_elsewhere(cli: Cli, exported: Path) -> None:
    shown = cli("show", "run.retinue").out
    assert ": completed\n  One\n" in shown
    assert "Look at it" in shown
    assert "Two" not in shown
    assert "list_dir" in cli("show", "run.retinue", "a1").out
    done = cli("audit", "run.retinue")
    assert done.code == 0
    assert done.out.startswith("ok: ")
    assert sorted(path.name for path in exported.parent.iterdir()) == ["run.retinue"]


def test_altered_export_fails_the_audit(cli: Cli, exported: Path) -> None:
    with closing(sqlite3.connect(exported, isolation_level=None)) as db:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute("UPDATE events SET summary = 'x' WHERE seq = 3")
        with pytest.raises(sqlite3.IntegrityError, match="illegal move"):
            db.execute("UPDATE sub_agents SET state = ?", (State.RUNNING,))
        db.execute("DROP TRIGGER events_append_only_update")
        db.execute("UPDATE events SET summary = 'x' WHERE seq = 3")
    done = cli("audit", "run.retinue")
    assert (done.code, done.out.startswith("BROKEN at event 3: ")) == (1, True)


def test_the_last_run_is_exported_if_none_is_named(cli: Cli, script: Script, project: Path) -> None:
    assert cli("export").err.endswith(" yet; run something first.\n")
    assert cli("run", "-q", "-m", script(LEAD), "One").code == 0
    assert cli("export", "-o", "last.retinue").code == 0
    assert ": completed\n  One\n" in cli("show", "last.retinue").out


def test_a_session_is_exported_as_markdown(
    cli: Cli, script: Script, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "very-secret-value")
    cli("run", "-q", "-m", script("steps: [{say: '**Yes.** very-secret-value'}]"), "Is it?")
    cli("run", "-q", "-c", "-m", script("steps: [{say: Certainly.}]"), "Sure?")
    cli("sessions", "rename", cli("sessions").out.split()[0], "Doubts")
    done = cli("export", "--md", "talk.md")
    assert done.out == "Written to talk.md. Known keys are hidden; read it before you share it.\n"
    text = (project / "talk.md").read_text()
    assert text.startswith("# Doubts\n\n## You\n\nIs it?\n\n**Yes.** ")
    assert "## You\n\nSure?\n\nCertainly.\n" in text
    assert "very-secret-value" not in text


def test_existing_file_is_not_overwritten(cli: Cli, script: Script, project: Path) -> None:
    assert cli("run", "-q", "-m", script(LEAD), "One").code == 0
    run = cli("runs").out.split()[0]
    (project / "mine").write_text("mine")
    done = cli("export", run, "-o", "mine")
    assert (done.code, done.err) == (
        2,
        "retinue: 'mine' exists already; name another file.\n",
    )
    assert (project / "mine").read_text() == "mine"
    done = cli("export", run, "-o", "no/such/folder")
    assert (done.code, done.err) == (
        1,
        "retinue: no/such/folder cannot be written (No such file or directory).\n",
    )


def test_unknown_run_cannot_be_exported(cli: Cli, project: Path) -> None:
    done = cli("export", "zz")
    assert done.code == 1
    assert done.err.startswith("retinue: There is no journal at ")
    assert not (project / ".retinue").exists()


def test_file_that_is_no_export_is_an_error(cli: Cli, project: Path) -> None:
    (project / "notes.txt").write_text("Dear diary,\n" * 100)
    done = cli("show", "notes.txt")
    assert (done.code, done.err) == (
        1,
        "retinue: notes.txt is damaged or not a database; restore it or move it away.\n",
    )
