"""What commands print, and when they ask about a forecast."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interfaces.cli.terminal.scripts import ASK, LEAD

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Start
if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Script, Start


OK = "rules: [{match: '', steps: [{say: All is well., tokens: {in: 900, out: 100}}]}]"


@pytest.mark.parametrize("command", ["fan-out", "plan"])
def test_large_forecast_needs_yes(
    cli: Cli,
    script: Script,
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


def test_large_forecast_is_asked_about_at_a_terminal(
    terminal: Start,
    script: Script,
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
def test_invalid_threshold_is_an_error(
    cli: Cli, settings: Callable[[str], Path], text: str, message: str
) -> None:
    path = settings(text)
    done = cli("fan-out", "one")
    assert (done.code, done.err) == (2, f"retinue: {path}: line 1, {message}\n")


def test_answer_can_be_redirected_while_the_tree_is_shown(
    terminal: Start, script: Script, project: Path
) -> None:
    with (project / "answer.txt").open("wb") as file:
        term = terminal("run", "-m", script(ASK), "Write", stdout=file.fileno())
    term.see("[N]o?")
    term.type("ewrite_file\r")
    assert term.end() == 0
    assert (project / "answer.txt").read_text() == "Done.\n"
    assert "Done." not in term.text
    assert '[lead] Completed: "Write"' in term.text


def test_progress_log_has_no_control_characters(
    terminal: Start, script: Script, project: Path
) -> None:
    with (project / "log.txt").open("wb") as file:
        term = terminal("run", "--mode", "auto", "-m", script(ASK), "Write", stderr=file.fileno())
    assert term.end() == 0
    assert term.text == "Done."
    log = (project / "log.txt").read_text()
    assert "\x1b" not in log
    assert '  root: write_file {"path":"a.txt","content":"hi"}\n' in log
    assert '[researcher] Completed: "Look"\n' in log


def test_quiet_prints_only_the_answer(terminal: Start, script: Script) -> None:
    term = terminal("run", "-q", "--mode", "auto", "-m", script(ASK), "Write")
    assert term.end() == 0
    assert term.raw == b"Done.\r\n"


def test_no_color(terminal: Start, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    term = terminal("run", "--mode", "auto", "-m", script(LEAD), "Survey it all")
    term.see("(turn 3/10, ", "1 failed")
    assert term.interrupt() == 130
    assert not re.search(rb"\x1b\[[34]\dm", term.raw)


def test_a_dumb_terminal_gets_lines(
    terminal: Start, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    term = terminal("run", "--mode", "auto", "-m", script(ASK), "Write")
    assert term.end() == 0
    assert "  root: write_file" in term.text
    assert b"\x1b[?25l" not in term.raw
