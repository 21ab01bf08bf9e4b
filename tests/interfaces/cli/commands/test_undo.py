"""`retinue undo` and `retinue redo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli


def test_undo_and_redo(cli: Cli, run: str, project: Path) -> None:
    done = cli("undo", run)
    assert (done.code, done.out) == (0, "a.txt (+1/-1 lines)\n1 file undone.\n")
    assert (project / "a.txt").read_text() == "1\n"
    assert "# step 1, undone, by a1" in cli("diff", run).out
    done = cli("undo", run)
    assert (done.code, done.err) == (1, f"retinue: There is nothing to undo in run {run}.\n")
    assert cli("redo", run, "root/executor.1").out == "a.txt (+1/-1 lines)\n1 file redone.\n"
    assert cli("redo", run, "a2").out == "bad.txt (+1 line, new file)\n1 file redone.\n"
    assert (project / "bad.txt").read_text() == "b\n"
    assert "# applied by redo, by a2" in cli("diff", run).out
    shown = cli("show", run).out
    assert " undone: a.txt (+1/-1 lines)\n" in shown
    assert " redone of a2: bad.txt (+1 line, new file)\n" in shown
    assert cli("audit", run).code == 0


def test_the_last_run_is_the_default(cli: Cli, run: str, project: Path) -> None:
    assert f"run {run}: " in cli("show").out
    assert cli("show", "a1").out == cli("show", run, "a1").out
    assert cli("diff").out == cli("diff", run).out
    assert cli("audit").out == cli("audit", run).out
    assert cli("undo", "a1").out == "a.txt (+1/-1 lines)\n1 file undone.\n"
    assert cli("redo").out == "a.txt (+1/-1 lines)\n1 file redone.\n"
    for command in ("show", "diff", "undo", "redo", "audit", "resume"):
        done = cli(command, "nope")
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("retinue: No run 'nope' in ")


def test_undo_creates_no_state_directory(cli: Cli, project: Path) -> None:
    assert cli("undo", "k3f9").code == 1
    assert list(project.iterdir()) == []


def test_undo_refuses_if_a_later_edit_is_in_the_way(cli: Cli, run: str, project: Path) -> None:
    (project / "a.txt").write_text("3\n")
    done = cli("undo", run, "a1")
    assert done.code == 1
    assert done.err == (
        "retinue: Nothing was undone: later changes conflict with it: a.txt. Undo them first,"
        " or edit the files yourself.\n"
    )
    assert (project / "a.txt").read_text() == "3\n"
