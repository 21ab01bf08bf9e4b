"""`retinue fan-out`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


OK = "rules: [{match: '', steps: [{say: All is well., tokens: {in: 900, out: 100}}]}]"


EDIT = """\
rules:
  - match: Rename x in src/a.py
    steps:
      - {call: edit_file, args: {path: src/a.py, old_text: x, new_text: y}}
      - {call: write_file, args: {path: src/b.py, content: not mine}}
      - say: Done.
  - match: Rename x in src/b.py
    steps:
      - {call: edit_file, args: {path: src/b.py, old_text: x, new_text: y}}
      - say: Done.
"""


LOOK = """
rules:
  - match: ""
    steps:
      - call: list_dir
      - say: There is one file.
"""


def test_fan_out_prints_the_answers_in_order(cli: Cli, script: Script) -> None:
    model = script(
        """
        rules:
          - match: first task
            steps: [{say: One.}]
          - match: second task
            steps: [{fail: refused, message: No.}]
          - match: third task
            steps: [{say: Three.}]
        """
    )
    done = cli("fan-out", "-m", model, "first task", "second task", "planner: third task")
    assert done.code == 1
    assert done.out == (
        "## a1 researcher [ok] first task\n\nOne.\n\n"
        "## a2 researcher [error] second task\n\n[error] No.\n\n"
        "## a3 planner [ok] third task\n\nThree.\n\n"
    )
    assert "2 of 3 done (failed: a2), " in done.err


def test_tasks_are_read_from_a_file(cli: Cli, script: Script, project: Path) -> None:
    (project / "tasks.txt").write_text("one\n\n  two\nreviewer: three\n")
    done = cli("fan-out", "-m", script(LOOK), "--tasks", "tasks.txt", "zero")
    heads = [line for line in done.out.splitlines() if line.startswith("## ")]
    assert heads == [
        "## a1 researcher [ok] zero",
        "## a2 researcher [ok] one",
        "## a3 researcher [ok] two",
        "## a4 reviewer [ok] three",
    ]


def test_a_fan_out_whose_budget_is_used_up_is_exit_code_3(
    cli: Cli, script: Script, project: Path
) -> None:
    (project / "retinue.toml").write_text("[budget]\nmax_tokens = 2000\n")
    model = script(
        """
        rules:
          - match: ""
            steps: [{say: Expensive., tokens: {in: 1900, out: 100}}]
        """
    )
    done = cli("fan-out", "--max-concurrent", "1", "-m", model, "one", "two")
    assert done.code == 3
    assert "## a1 researcher [ok] one" in done.out
    assert (
        "[budget_exceeded] No tokens are left for a child; finish with what there is." in done.out
    )


def test_forecast_uses_what_the_role_has_used(cli: Cli, script: Script) -> None:
    model = script(OK)
    first = cli("fan-out", "-m", model, "--no-cache", "one", "two")
    assert first.code == 0, first.err
    assert re.search(
        r"^Forecast: about [\d,]+ tokens \(at most 131,072\), \d+ s; 2 of 2 steps are a guess\.$",
        first.err,
        re.MULTILINE,
    )
    second = cli("fan-out", "-m", model, "--no-cache", "three", "four", "five")
    assert "Forecast: about 3,000 tokens (at most 196,608), 0 s.\n" in second.err
    assert "; used 3,000 tokens (+0%)" in second.err


def test_fan_out_prints_its_duration(cli: Cli, script: Script) -> None:
    model = script("rules: [{match: '', steps: [{say: Done., delay_s: 0.6}]}]")
    done = cli("fan-out", "-m", model, "--no-cache", "one")
    assert done.code == 0, done.err
    # However slow the machine is, it is no less than what the reply takes.
    assert re.search(r"; used [^;]* tokens[^;]*, [1-9]\d* s", done.err), done.err


def test_each_repeats_the_task_for_every_file(cli: Cli, script: Script, project: Path) -> None:
    (project / "src").mkdir()
    for name in "ab":
        (project / "src" / f"{name}.py").write_text("x = 1\n")
    (project / "src" / "notes.txt").write_text("x\n")
    subprocess.run(["git", "init", "-q"], check=True, cwd=project)
    done = cli(
        "fan-out", "--mode", "auto", "-m", script(EDIT), "--each", "src/*.py", "Rename x in {path}"
    )
    assert done.code == 0, done.err
    assert "## a1 executor [ok] Rename x in src/a.py" in done.out
    assert "## a2 executor [ok] Rename x in src/b.py" in done.out
    # Each may write its own file and no other.
    assert [(project / "src" / f"{name}.py").read_text() for name in "ab"] == ["y = 1\n"] * 2


def test_each_without_auto_mode_notes_that_children_only_read(
    cli: Cli, script: Script, project: Path
) -> None:
    (project / "a.py").write_text("x = 1\n")
    done = cli("fan-out", "-m", script(OK), "--each", "*.py", "Rename x in {path}")
    assert done.code == 0, done.err
    assert "In normal mode the children are researchers, which only read; in auto" in done.err
    asked = cli("fan-out", "-m", script(OK), "-r", "reviewer", "--each", "*.py", "Look at {path}")
    assert "in auto mode" not in asked.err, "whoever names a role knows what it may do"


def test_file_name_chooses_no_role(cli: Cli, script: Script, project: Path) -> None:
    (project / "executor").write_text("x\n")
    model = script(OK)
    done = cli(
        "fan-out", "--mode", "auto", "-m", model, "-q", "-r", "reviewer",
        "--each", "executor", "{path}: sum {it} up",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "## a1 reviewer [ok] executor: sum {it} up" in done.out
    (project / "**").write_text("x\n")
    done = cli("fan-out", "--mode", "auto", "-m", model, "-q", "--each", "*", "Mend {path}")
    assert done.code == 2
    assert done.err.startswith("retinue: '**' matches --each, but as a path to write")
    # Who only reads may look at it.
    assert cli("fan-out", "-m", model, "-q", "--each", "*", "Look at {path}").code == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--each", "*.py", "Look"], "With --each, every task needs {path}, which is replaced by"),
        (["--each", "*.rs", "Look at {path}"], "No file matches --each '*.rs'. Quote the pattern"),
    ],
)
def test_wrong_use_of_each_is_an_error(
    cli: Cli, script: Script, argv: list[str], message: str
) -> None:
    done = cli("fan-out", "-m", script(OK), *argv)
    assert done.code == 2
    assert done.err.startswith(f"retinue: {message}")


def test_unsupported_claim_is_marked(cli: Cli, script: Script) -> None:
    model = script('rules: [{match: "", steps: [{say: All tests pass.}]}]')
    done = cli("fan-out", "-m", model, "a", "b")
    assert done.out.count("[unverified] All tests pass.\n") == 2
