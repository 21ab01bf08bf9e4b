from __future__ import annotations

import os
import pty
import select
import sys

import pytest

from retinue.config.environment import Environment
from retinue.interfaces.cli.terminal.background import QUESTIONS, ask_background

ASK = (
    "import sys; from retinue.config.environment import Environment;"
    "from retinue.interfaces.cli.terminal.background import ask_background;"
    "print('dark:', *ask_background(Environment.current(), wait_s=float(sys.argv[1])))"
)


def asked(answer: bytes, *, wait_s: float = 30, colorfgbg: str = "") -> str:
    """What a program finds out in a terminal that answers so."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["COLORFGBG"] = colorfgbg
        os.execv(sys.executable, [sys.executable, "-c", ASK, str(wait_s)])
    seen = b""
    try:
        while b"dark: " not in seen or not seen.endswith(b"\n"):
            assert select.select([terminal], [], [], 60)[0], seen
            seen += os.read(terminal, 1024)
            if QUESTIONS in seen:
                seen = seen.replace(QUESTIONS, b"")
                os.write(terminal, answer)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return seen.decode().rpartition("dark: ")[2].strip()


@pytest.mark.parametrize(
    ("answer", "colorfgbg", "dark"),
    [
        (b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;c", "", "False"),
        (b"\x1b]11;rgb:00/2b/36\x07\x1b[?1;2c", "0;15", "True"),
        (b"typed\x1b[?1;2c", "0;15", "False typed"),
        (b"\x1b[?1;2c", "", "None"),
    ],
)
def test_background_that_a_terminal_tells(answer: bytes, colorfgbg: str, dark: str) -> None:
    assert asked(answer, colorfgbg=colorfgbg) == dark


@pytest.mark.parametrize(
    ("keys", "typed"),
    [
        (b"fix\x1b]11;rgb:00/00/00\x07 it\x1b[?1;2c", "fix it"),
        (b"a\x1b[Db\x1bOAc\x1b[3~d\x01\x1b[?1;2c", "abcd"),
        (b"fixx\x7f it\n\x1b[?1;2c", "fix it"),
        ("größer\x7f\x7fe\x1b[?1;2c".encode(), "größe"),
        (b"cut off\x1b]11;rgb:00/\x1b[?1;2c", "cut off"),
        (b"\x7f\x1b[?1;2c", ""),
    ],
)
def test_what_is_typed_meanwhile_is_kept(keys: bytes, typed: str) -> None:
    assert asked(keys).partition(" ")[2] == typed


def test_a_silent_terminal_is_not_waited_for() -> None:
    assert asked(b"", wait_s=0.01, colorfgbg="15;0") == "True"


@pytest.mark.parametrize(
    ("value", "dark"),
    [("15;0", True), ("0;default;15", False), ("12;7", False), ("0;8", True), ("15;x", None)],
)
def test_colorfgbg(value: str, dark: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError

    monkeypatch.setattr(os, "open", refuse)  # No terminal.
    assert ask_background(Environment(variables={"COLORFGBG": value})) == (dark, "")
