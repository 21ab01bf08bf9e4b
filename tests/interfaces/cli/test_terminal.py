"""run, spawn and fan-out in a terminal: the live tree, questions, and what is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest


class Terminal(Protocol):
    process: subprocess.Popen[bytes]
    raw: bytes

    @property
    def text(self) -> str: ...
    @property
    def cursor_is_shown(self) -> bool: ...
    @property
    def echoes(self) -> bool: ...
    def see(self, *texts: str) -> str: ...
    def until(self, condition: Callable[[], bool], what: str = "") -> str: ...
    def type(self, keys: str) -> None: ...
    def resize(self, columns: int, lines: int) -> None: ...
    def end(self) -> int: ...
    def hang_up(self) -> int: ...


Script = Callable[[str], str]
# A narrow terminal breaks the line anywhere.
RESUME_HINT = r"retinue:interrupted;resumewith:retinueresume\w{8}$"
Start = Callable[..., Terminal]

# The children answer when the day is over.
LEAD = """
rules:
  - match: You are a coding agent
    steps:
      - say: I will ask some children.
        calls: [{call: list_dir}]
      - calls:
          - call: spawn_agent
            args: {role: tester, task: "Write tests for auth.ts", max_turns: 10}
          - {call: spawn_agent, args: {role: researcher, task: "Break it"}}
          - {call: spawn_agent, args: {role: researcher, task: "Find it"}}
          - {call: spawn_agent, args: {role: reviewer, task: "Wait for a place"}}
      - say: never
  - match: Break
    steps: [{fail: refused, message: The server said no.}]
  - match: Find
    steps: [{say: "It is here.\\nAnd there."}]
  - match: ""
    steps:
      - {call: list_dir}
      - {call: read_file, args: {path: script.yaml}}
      - {say: never, delay_s: 3000}
"""


def wrapped(text: str) -> bool:
    """Whether a row of a tree has been broken into two."""
    return any(line and line[0] not in " $[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏✓✗○■●" for line in text.splitlines())


def test_the_tree_shows_who_does_what(terminal: Start, script: Script) -> None:
    term = terminal("run", "-m", script(LEAD), "Survey it all")
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
    assert sums.startswith("  1 failed · 2 running · 1 done · ")
    assert sums.endswith(" tokens · Ctrl-C stops it")
    assert not term.cursor_is_shown
    assert not term.echoes


def test_ctrl_c_leaves_the_terminal_clean(terminal: Start, script: Script) -> None:
    term = terminal("run", "-m", script(LEAD), "Survey it all")
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


def test_at_the_end_there_is_the_bill_and_the_answer(
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
    text = term.see("5 failed · 50 running · 40 done")
    assert "✗ 5× researcher The server said no" in text
    assert "✓ 40× research" in text
    assert "rows not shown" in text or columns < 80
    assert not wrapped(text)
    assert len(text.splitlines()) == min(lines - 2, 24)
    term.type("\x03")
    term.see("Stopping")
    term.type("\x03")
    assert term.end() == 130
    assert re.search(RESUME_HINT, "".join(term.text.split()))


def test_a_terminal_that_changes_its_size_is_followed(terminal: Start, script: Script) -> None:
    term = terminal("run", "-m", script(LEAD), "Survey it all", columns=120)
    term.see("(turn 3/10, ", "waiting for 2 of 4 agents")
    term.resize(100, 30)
    term.until(lambda: "waiting for 2 of 4 agents" in term.text)
    term.type("\x03")
    assert term.end() == 130
    assert "(turn " not in term.text


def test_ctrl_z_gives_the_terminal_back(terminal: Start, script: Script) -> None:
    term = terminal("run", "-m", script(LEAD), "Survey it all")
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
    term.type("\x03")
    assert term.end() == 130


# Questions

ASK = """
rules:
  - match: You are a coding agent
    steps:
      - calls:
          - {call: spawn_agent, args: {role: researcher, task: "Look", background: true}}
          - {call: write_file, args: {path: a.txt, content: "hi"}}
          - {call: write_file, args: {path: b.txt, content: "hi"}}
      - {call: spawn_await, args: {job_ids: "*"}}
      - say: Done.
  - match: ""
    steps: [{say: Looked.}]
"""


def test_a_question_is_asked_below_a_quiet_screen(
    terminal: Start, script: Script, project: Path
) -> None:
    term = terminal("run", "-m", script(ASK), "Write")
    text = term.see("[N]o?")
    assert 'root wants write_file: {"path":"a.txt","content":"hi"}' in text
    assert term.cursor_is_shown
    assert term.echoes
    term.type("y\r")
    term.see('root wants write_file: {"path":"b.txt","content":"hi"}')
    text = term.until(lambda: term.text.count("[N]o?") == 2, "the second question")
    # The child ended while the question stood there; that is told after it.
    term.type("n\r")
    assert term.end() == 0
    assert (project / "a.txt").exists()
    assert not (project / "b.txt").exists()
    assert "[DENIED] The user said no to write_file." in term.text
    assert '[researcher] Completed: "Look"' in term.text
    assert term.text.endswith("\nDone.")


def test_a_child_s_question_says_who_asks_for_what_and_always_is_a_rule(
    terminal: Start, script: Script, project: Path
) -> None:
    for name in ("a", "b"):
        (project / name).mkdir()
    model = script(
        """
        rules:
          - match: at work in the user's project
            steps:
              - {call: spawn_agent, args: {role: executor, task: Clean, scope: [a, b]}}
              - say: Done.
          - match: ""
            steps:
              - {call: run_command, args: {command: rm -r a}}
              - {call: run_command, args: {command: rm -r a}}
              - {call: run_command, args: {command: rm -r b}}
              - say: Cleaned.
        """
    )
    term = terminal("run", "--mode", "auto", "--unsafe-no-sandbox", "-m", model, "Clean")
    text = term.see("[N]o?")
    assert "root/executor.1 wants run_command: rm -r a\n" in text
    assert "(it destroys things; nothing confines it)" in text
    assert "[a]lways in this run: run_command(rm -r a), [N]o?" in text
    term.type("a\r")
    text = term.see("root/executor.1 wants run_command: rm -r b")
    assert 'allow = ["run_command(rm -r a)"]' in text
    assert text.count("[N]o?") <= 2, "what was always allowed is not asked about again"
    term.see("[a]lways in this run: run_command(rm -r b), [N]o?")
    term.type("n\r")
    assert term.end() == 0
    assert not (project / "a").exists()
    assert (project / "b").exists()


def test_what_was_typed_before_a_question_is_no_answer(
    terminal: Start, script: Script, project: Path
) -> None:
    model = script(
        """
        steps:
          - {call: list_dir, delay_s: 1}
          - {call: write_file, args: {path: a.txt, content: "hi"}}
          - say: Done.
        """
    )
    term = terminal("run", "-m", model, "Write")
    term.type("y\ry\ry\r")
    term.see("[N]o?")
    term.type("\r")
    assert term.end() == 0
    assert not (project / "a.txt").exists()


def test_ctrl_c_at_a_question_ends_the_run(terminal: Start, script: Script) -> None:
    term = terminal("run", "-m", script(ASK), "Write")
    term.see("[N]o?")
    term.type("\x03")
    assert term.end() == 130
    assert re.search(RESUME_HINT, "".join(term.text.split()))


def test_a_long_run_pauses_for_a_word(terminal: Start, script: Script, project: Path) -> None:
    (project / "retinue.toml").write_text("warn_at_calls = 2\npause_at_calls = 3\n")
    calls = "\n".join(["  - {call: list_dir}"] * 5)
    term = terminal("run", "-m", script(f"steps:\n{calls}\n  - say: So far."), "Look")
    text = term.see("[N]o?")
    assert "  root: warn: 2 of 100 tool calls used\n" in text
    assert "root wants to go on: 3 of 100 tool calls are used" in text
    term.type("n\r")
    assert term.end() == 3
    assert "[DENIED] The user wants no more tool calls." in term.text


# Where the streams go


def test_the_answer_goes_where_it_is_sent_and_the_tree_stays(
    terminal: Start, script: Script, project: Path
) -> None:
    with (project / "answer.txt").open("wb") as file:
        term = terminal("run", "-m", script(ASK), "Write", stdout=file.fileno())
    term.see("[N]o?")
    term.type("a\r")
    assert term.end() == 0
    assert (project / "answer.txt").read_text() == "Done.\n"
    assert "Done." not in term.text
    assert '[lead] Completed: "Write"' in term.text


def test_a_log_of_the_progress_has_nothing_that_a_terminal_would_obey(
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


def test_quiet_prints_the_answer_alone(terminal: Start, script: Script) -> None:
    term = terminal("run", "-q", "--mode", "auto", "-m", script(ASK), "Write")
    assert term.end() == 0
    assert term.raw == b"Done.\r\n"


def test_without_colours_there_are_none(
    terminal: Start, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    term = terminal("run", "-m", script(LEAD), "Survey it all")
    term.see("(turn 3/10, ", "1 failed")
    term.type("\x03")
    assert term.end() == 130
    assert not re.search(rb"\x1b\[[34]\dm", term.raw)


def test_a_dumb_terminal_gets_lines(
    terminal: Start, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    term = terminal("run", "--mode", "auto", "-m", script(ASK), "Write")
    assert term.end() == 0
    assert "  root: write_file" in term.text
    assert b"\x1b[?25l" not in term.raw


# Being called back


@pytest.fixture
def impatient(tmp_path: Path) -> None:
    settings = tmp_path / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("notify_after_s = 0.000001\n")


@pytest.mark.usefixtures("impatient")
def test_a_bell_rings_for_a_question_and_at_the_end(terminal: Start, script: Script) -> None:
    term = terminal("run", "-m", script(ASK), "Write")
    term.see("[N]o?")
    assert term.raw.count(b"\a") == 1
    term.type("a\r")
    assert term.end() == 0
    assert term.raw.count(b"\a") == 2


@pytest.mark.usefixtures("impatient")
def test_a_terminal_that_can_tells_why_it_calls(
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


def test_what_is_over_soon_calls_nobody(terminal: Start, script: Script) -> None:
    term = terminal("run", "-m", script("steps: [{say: Done.}]"), "Say it")
    assert term.end() == 0
    assert b"\a" not in term.raw


def test_a_chat_without_its_terminal_ends_by_itself(terminal: Start, script: Script) -> None:
    term = terminal("chat", "-m", script("steps: [{say: never, delay_s: 3000}]"))
    term.see("/help lists commands and keys.")
    term.type("Go\r")
    term.see("❯ Go", "never")
    # A code of its own: the kernel's alarm, which is there for the worst, would be a signal.
    assert term.hang_up() == 128 + signal.SIGHUP
