"""Bells and notifications."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interfaces.cli.terminal.scripts import ASK

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Script, Start


@pytest.fixture
def impatient(tmp_path: Path) -> None:
    settings = tmp_path / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("notify_after_s = 0.000001\n")


@pytest.mark.usefixtures("impatient")
def test_bell_rings_for_a_question_and_at_the_end(terminal: Start, script: Script) -> None:
    term = terminal("run", "-m", script(ASK), "Write")
    term.see("[N]o?")
    assert term.raw.count(b"\a") == 1
    term.type("ewrite_file\r")
    assert term.end() == 0
    assert term.raw.count(b"\a") == 2


@pytest.mark.usefixtures("impatient")
def test_notification_text_where_the_terminal_supports_it(
    terminal: Start, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM_PROGRAM", "WezTerm")
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.delenv("STY", raising=False)
    model = script('rules: [{match: "", steps: [{say: Done.}]}]')
    done = terminal("run", "-m", model, "Say it\nnow")
    assert done.end() == 0
    assert b"\x1b]9;retinue is done: Say it\x1b\\" in done.raw
    many = terminal("fan-out", "-m", model, "one", "two")
    assert many.end() == 0
    assert b"\x1b]9;retinue is done: 2 of 2 tasks\x1b\\" in many.raw
    monkeypatch.setenv("TMUX", "/tmp/tmux")
    inside = terminal("run", "-m", model, "Say it")
    assert inside.end() == 0
    assert b"\x1b]9" not in inside.raw
    assert b"\a" in inside.raw


def test_short_run_does_not_notify(terminal: Start, script: Script) -> None:
    term = terminal("run", "-m", script("steps: [{say: Done.}]"), "Say it")
    assert term.end() == 0
    assert b"\a" not in term.raw
