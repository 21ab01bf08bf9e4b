"""The live tree on a terminal."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interfaces.cli.terminal.scripts import LEAD

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Script, Start


# A narrow terminal breaks the line anywhere.
RESUME_HINT = r"retinue:interrupted;resumewith:retinueresume\w{8}$"


def wrapped(text: str) -> bool:
    """Whether a row of a tree has been broken into two."""
    return any(line and line[0] not in " $[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏✓✗○■●" for line in text.splitlines())


def test_tree_shows_what_each_agent_does(terminal: Start, script: Script) -> None:
    term = terminal("run", "--mode", "auto", "-m", script(LEAD), "Survey it all")
    text = term.see(
        "(turn 3/10, ", "(turn 3/50, ", "The server said no.", "waiting for 2 of 4 agents"
    )
    # What the root said and called stays, and so does how the children ended.
    assert text.startswith("  I will ask some children.\n  list_dir\n")
    assert '[researcher] Ended (error): "Break it"' in text
    assert "  Reason: The server said no." in text
    assert '[researcher] Completed: "Find it"' in text
    assert "  Result: It is here.\n          And there.\n" in text
    lead, tests, broken, found, waits, sums = text.splitlines()[-6:]
    assert re.match(r'. lead "Survey it all" \(turn 2/200, [\d.]+s\)  waiting for 2 of 4', lead)
    assert re.match(
        r'  . tester.1 "Write tests for auth.ts" \(turn 3/10, [\d.]+s\)  (read_file script|…never)',
        tests,
    )
    assert broken.startswith('  ✗ researcher.1 The server said no. "Break it" (')
    assert re.match(r'  ✓ researcher.2 "Find it" \(1 turn, [\d.]+s\)', found)
    assert re.match(r'  . reviewer.1 "Wait for a place" \(turn 3/50, ', waits)
    assert re.match(r"  1 failed · 2 running · 2 of 4 done, about \d+s left · \S+ tokens", sums)
    assert not term.cursor_is_shown
    assert not term.echoes


def test_ctrl_c_leaves_the_terminal_clean(terminal: Start, script: Script) -> None:
    term = terminal("run", "--mode", "auto", "-m", script(LEAD), "Survey it all")
    term.see("(turn 3/10, ")
    term.type("some keys\r\r")
    term.type("\x03")
    term.see("Stopping: agents report what they have. Ctrl-C stops now.")
    term.type("\x03")
    assert term.end() == 130
    assert re.search(RESUME_HINT, "".join(term.text.split()))
    assert "(turn " not in term.text, "nothing is left of the tree"
    assert "some keys" not in term.text
    assert term.cursor_is_shown
    assert term.echoes


def test_usage_and_answer_are_printed_at_the_end(
    terminal: Start, script: Script, project: Path
) -> None:
    model = script(
        """
        rules:
          - match: You are a coding agent
            steps:
              - {call: spawn_agent, args: {role: tester, task: "Write tests", mode: auto}}
              - {say: "All done.", delay_s: 1}
          - match: ""
            steps:
              - call: write_file
                args: {path: tests/test_a.py, content: "1\\n2\\n"}
              - say: Wrote two.
        """
    )
    term = terminal("run", "--mode", "auto", "-m", model, "Survey it all")
    assert term.end() == 0
    lines = term.text.splitlines()
    assert lines[0] == '[tester] Completed: "Write tests"'
    assert re.match(r"  Duration: [\d.]+s \(2 turns, 1 tool call, [\d,]+ tokens\)$", lines[1])
    assert lines[2:4] == [
        "  Files modified: tests/test_a.py (+2 lines, new file)",
        "  Result: Wrote two.",
    ]
    assert lines[4] == '[lead] Completed: "Survey it all"'
    assert re.match(r"  Duration: [\d.]+s \(4 turns, 2 tool calls, [\d,]+ tokens\)$", lines[5])
    assert lines[-2:] == ["", "All done."]
    assert term.cursor_is_shown
    assert term.echoes


def test_the_error_of_a_hook_is_shown_whole(
    terminal: Start, script: Script, settings: Callable[[str], Path]
) -> None:
    error = "line 14 of the script: terminal-notifier: no such program here"
    command = f"echo '{error}' >&2; exit 127"
    settings(f'[[hooks.Stop]]\nhooks = [{{ type = "command", command = "{command}" }}]\n')
    term = terminal("run", "-m", script("steps: [{say: Done.}]"), "Say it")
    assert term.end() == 0
    assert f"failed: ended with exit code 127: {error}" in " ".join(term.text.split())


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (40, 10)])
def test_many_children_fit_any_screen(
    terminal: Start, script: Script, project: Path, size: tuple[int, int]
) -> None:
    columns, lines = size
    model = script(
        """
        rules:
          - match: Break
            steps: [{fail: refused, message: The server said no.}]
          - match: Wait
            steps: [{say: never, delay_s: 3000}]
          - match: ""
            steps: [{say: Done.}]
        """
    )
    told = (
        "and say in many words, more than a line of any terminal has room for, what was seen there"
    )
    tasks = [f"Break {n} {told}" for n in range(5)] + [f"Look at {n} {told}" for n in range(40)]
    tasks += [f"Wait for {n} {told}" for n in range(55)]
    (project / "tasks.txt").write_text("\n".join(tasks))
    term = terminal(
        *("fan-out", "-m", model, "--no-cache", "--tasks", "tasks.txt", "--max-concurrent", "50"),
        columns=columns,
        lines=lines,
    )
    # The last words of the last line, so that all of it has arrived.
    last = ["50 running · 45 of 100 done, about ", "rows not shown"] if columns >= 80 else []
    text = term.see("5 failed · 50 running", "✓ 40× research", *last)
    assert "✗ 5× researcher The server said no" in text
    assert not wrapped(text)
    assert len(text.splitlines()) == min(lines - 2, 24)
    assert term.interrupt() == 130
    assert re.search(RESUME_HINT, "".join(term.text.split()))


def test_tree_follows_the_size_of_the_terminal(terminal: Start, script: Script) -> None:
    term = terminal("run", "--mode", "auto", "-m", script(LEAD), "Survey it all", columns=120)
    term.see("(turn 3/10, ", "waiting for 2 of 4 agents")
    term.resize(100, 30)
    term.until(lambda: "waiting for 2 of 4 agents" in term.text)
    assert term.interrupt() == 130
    assert "(turn " not in term.text


@pytest.mark.parametrize("wraps", [True, False])
def test_narrower_terminal_has_no_old_rows(terminal: Start, script: Script, wraps: bool) -> None:
    goal = "Survey it all, " + "and more, " * 10
    term = terminal("run", "--mode", "auto", "-m", script(LEAD), goal, columns=120, lines=40)
    wide = term.see("(turn 3/10, ", "(turn 3/50, ", "Ctrl-C stops it")
    above = wide.splitlines()[:-6]
    for columns in (100, 80, 60):
        term.resize(columns, 40, wraps=wraps)
    # A shorter status line has neither hint nor tokens.
    term.until(lambda: re.search(r"\d+s left\Z", term.text) is not None, "the narrow tree")
    lines = term.text.splitlines()
    assert lines[:-6] == above
    assert re.match(". lead .*…", lines[-6])
    assert term.interrupt() == 130
    assert "(turn " not in "\n".join(term.text.splitlines()[len(above) :])


def test_ctrl_z_restores_the_terminal(terminal: Start, script: Script) -> None:
    term = terminal("run", "--mode", "auto", "-m", script(LEAD), "Survey it all")
    term.see("(turn 3/10, ")
    term.type("\x1a")

    def stopped() -> bool:
        _, status = os.waitpid(term.process.pid, os.WUNTRACED | os.WNOHANG)
        return os.WIFSTOPPED(status)

    term.until(stopped, "its stop")
    term.until(lambda: term.cursor_is_shown and "(turn " not in term.text, "a clean screen")
    assert term.echoes
    os.kill(term.process.pid, signal.SIGCONT)
    term.see("(turn 3/10, ")
    assert term.interrupt() == 130
