"""Commands on a damaged, locked or read-only journal."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


LEAD = """
rules:
  - match: ""
    steps: [{call: list_dir}, {say: Looked.}]
"""

WRITER = """
rules:
  - match: ""
    steps: [{call: write_file, args: {path: new.txt, content: "new"}}, {say: Written.}]
"""


@pytest.fixture
def model(script: Script) -> str:
    return script(LEAD)


@pytest.fixture
def database(cli: Cli, model: str, project: Path) -> Path:
    """A journal with a run that is over."""
    assert cli("spawn", "researcher", "-q", "-m", model, "Look.").code == 0
    return project / ".retinue" / "retinue.db"


@pytest.fixture
def damaged(database: Path, damage: Callable[[Path], None]) -> Path:
    """One whose events cannot be read."""
    damage(database)
    return database


def test_damaged_database_page(cli: Cli, model: str, damaged: Path) -> None:
    with closing(sqlite3.connect(damaged)) as connection:
        ((run_id,),) = connection.execute("SELECT id FROM runs").fetchall()
    message = f"retinue: {damaged} is damaged or not a database; restore it or move it away.\n"
    for command in (
        ("audit", run_id),
        ("show", run_id),
        ("runs",),
        ("tasks",),
        ("resume", run_id),
        ("export", run_id),
        ("clean",),
        ("spawn", "researcher", "-m", model, "Look."),
        ("run", "-m", model, "Look."),
    ):
        done = cli(*command)
        assert (done.code, done.out) == (1, ""), command
        assert done.err.endswith(message), (command, done.err)
    # The way out: with the file moved away, work begins anew.
    damaged.rename(damaged.with_suffix(".damaged"))
    assert cli("spawn", "researcher", "-q", "-m", model, "Look.").code == 0


MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec "$@"'
RETINUE = "from retinue.interfaces.cli.main import main; main()"


def on_read_only(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """The command, in a project on a file system that is mounted for reading only."""
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", MOUNT, str(project), *command],
        capture_output=True,
        text=True,
    )


def test_read_only_disk(model: str, project: Path, database: Path) -> None:
    if shutil.which("unshare") is None or on_read_only(project, "true").returncode:
        pytest.skip("nothing can be mounted here")
    before = database.read_bytes()

    def retinue(*command: str) -> tuple[int, str, str]:
        done = on_read_only(project, sys.executable, "-c", RETINUE, *command)
        return done.returncode, done.stdout, done.stderr

    code, out, err = retinue("runs")
    assert (code, err) == (0, "")
    run_id = out.split()[0]
    assert retinue("audit", run_id)[1].startswith("ok: ")
    assert retinue("show", run_id)[1].startswith(f"run {run_id}: completed")
    for command in (("run", "-m", model, "Look."), ("clean",)):
        code, out, err = retinue(*command)
        assert (code, out) == (1, ""), command
        assert re.fullmatch(
            rf"retinue: {project}/\.retinue\S* cannot be (written|opened).*\.\n", err
        ), (command, err)
    assert database.read_bytes() == before


def test_history_of_changes_on_a_read_only_disk(cli: Cli, script: Script, project: Path) -> None:
    if shutil.which("unshare") is None or on_read_only(project, "true").returncode:
        pytest.skip("nothing can be mounted here")
    assert cli("run", "-q", "--mode", "auto", "-m", script(WRITER), "Write.").code == 0
    assert (project / ".retinue" / "git" / "lock").exists()
    run_id = cli("runs").out.split()[0]
    for command in (("diff",), ("undo",), ("clean",), ("compare", run_id, run_id)):
        done = on_read_only(project, sys.executable, "-c", RETINUE, *command)
        assert (done.returncode, done.stderr) == (
            1,
            f"retinue: {project}/.retinue/git/lock cannot be written (Read-only file system).\n",
        ), command


@pytest.mark.slow
def test_journal_locked_by_another_process(cli: Cli, model: str, database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert cli("runs").code == 0
        done = cli("spawn", "researcher", "-q", "-m", model, "Look.")
    assert (done.code, done.out) == (1, "")
    assert (
        f"{database} has been locked by another process for 10 s; end that process or try again."
        in done.err
    )
    assert cli("spawn", "researcher", "-q", "-m", model, "Look.").code == 0
