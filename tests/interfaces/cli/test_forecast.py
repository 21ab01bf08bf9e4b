"""What work will likely use is told before it begins, asked about if it is much, and told after."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Done, Terminal

Cli = Callable[..., "Done"]
OK = "rules: [{match: '', steps: [{say: All is well., tokens: {in: 900, out: 100}}]}]"


def test_a_fan_out_is_forecast_from_what_the_role_has_used(
    cli: Cli, script: Callable[[str], str]
) -> None:
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


def test_the_time_that_a_fan_out_took_is_told(cli: Cli, script: Callable[[str], str]) -> None:
    model = script("rules: [{match: '', steps: [{say: Done., delay_s: 0.6}]}]")
    done = cli("fan-out", "-m", model, "--no-cache", "one")
    assert done.code == 0, done.err
    # However slow the machine is, it is no less than what the reply takes.
    assert re.search(r"; used [^;]* tokens[^;]*, [1-9]\d* s", done.err), done.err


@pytest.mark.parametrize("command", ["fan-out", "plan"])
def test_what_is_much_needs_a_yes(
    cli: Cli,
    script: Callable[[str], str],
    settings: Callable[[str], Path],
    project: Path,
    command: str,
) -> None:
    settings("ask_above_tokens = 5000\n")
    (project / "p.toml").write_text(
        'goal = "G"\n[[steps]]\nname = "a"\nrole = "researcher"\ntask = "Look."\n'
    )
    work = ["fan-out", "one"] if command == "fan-out" else ["run", "--plan", "p.toml"]
    asked = [*work, "-m", script(OK), "-q"]
    done = cli(*asked)
    assert done.code == 4
    assert re.fullmatch(
        r"retinue: This will likely use about 19,661 tokens .*: more than 5,000 tokens or 1 USD"
        r"\. Confirm with --yes, or ask for less\.\n",
        done.err,
    )
    assert cli("runs").out == ""
    assert cli(*asked, "--yes").code == 0


def test_a_person_is_asked_and_may_say_no(
    terminal: Callable[..., Terminal],
    script: Callable[[str], str],
    settings: Callable[[str], Path],
) -> None:
    settings("ask_above_tokens = 5000\n")
    shown = terminal("fan-out", "-m", script(OK), "one", columns=120)
    shown.see("Forecast: about 19,661 tokens", "Start it?", "[y]es, [N]o?")
    shown.type("n\n")
    shown.see("Nothing was started.")
    assert shown.end() == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ask_above_usd = 0.0", "key ask_above_usd: must be more than 0, not 0.0."),
        ("ask_above_tokens = 0", "key ask_above_tokens: must be at least 1, not 0."),
    ],
)
def test_a_senseless_threshold_is_told(
    cli: Cli, settings: Callable[[str], Path], text: str, message: str
) -> None:
    path = settings(text)
    done = cli("fan-out", "one")
    assert (done.code, done.err) == (2, f"retinue: {path}: line 1, {message}\n")


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


def test_a_task_for_each_file(cli: Cli, script: Callable[[str], str], project: Path) -> None:
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


def test_who_could_not_write_is_told_of(
    cli: Cli, script: Callable[[str], str], project: Path
) -> None:
    (project / "a.py").write_text("x = 1\n")
    done = cli("fan-out", "-m", script(OK), "--each", "*.py", "Rename x in {path}")
    assert done.code == 0, done.err
    assert "In normal mode the children are researchers, which only read; in auto" in done.err
    asked = cli("fan-out", "-m", script(OK), "-r", "reviewer", "--each", "*.py", "Look at {path}")
    assert "in auto mode" not in asked.err, "whoever names a role knows what it may do"


def test_a_name_of_a_file_gives_no_rights(
    cli: Cli, script: Callable[[str], str], project: Path
) -> None:
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
def test_what_is_wrong_with_each_is_told(
    cli: Cli, script: Callable[[str], str], argv: list[str], message: str
) -> None:
    done = cli("fan-out", "-m", script(OK), *argv)
    assert done.code == 2
    assert done.err.startswith(f"retinue: {message}")


def test_a_title_in_one_line_with_a_tiny_budget(
    cli: Cli, script: Callable[[str], str], project: Path
) -> None:
    (project / "notes.md").write_text("We met.\n")
    done = cli(
        "spawn", "researcher", "-m", script(OK), "-q", "-f", "notes.md",
        "--max-turns", "2", "--max-tokens", "4000", "A title for notes.md, in one line",
    )  # fmt: skip
    assert (done.code, done.out) == (0, "All is well.\n")
