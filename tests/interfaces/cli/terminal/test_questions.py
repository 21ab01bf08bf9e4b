"""Approvals and questions at the terminal."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interfaces.cli.terminal.scripts import ASK

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Start, Terminal


# A narrow terminal breaks the line anywhere.
RESUME_HINT = r"retinue:interrupted;resumewith:retinueresume\w{8}$"


def test_question_pauses_the_tree(terminal: Start, script: Script, project: Path) -> None:
    term = terminal("run", "-m", script(ASK), "Write")
    text = term.see("[N]o?")
    assert "The agent asks to change a file:\n  a.txt (new file, +1 −0)\n  1 + hi\n" in text
    assert term.cursor_is_shown
    term.type("y")
    term.see("  b.txt (new file, +1 −0)\n  1 + hi\n")
    text = term.until(lambda: term.text.count("[N]o?") == 2, "the second question")
    # The child ended while the question was open; its outcome is printed after the answer.
    term.type("n")
    term.see("Reason (or Enter):")
    assert term.echoes
    term.type("\r")
    assert term.end() == 0
    assert (project / "a.txt").exists()
    assert not (project / "b.txt").exists()
    assert "    The user said no to write_file." in term.text
    assert '[researcher] Completed: "Look"' in term.text
    assert term.text.endswith("\nDone.")


def test_approval_names_the_child_and_always_becomes_a_rule(
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
    assert "executor.1 asks to run a command:\n  $ rm -r a\n" in text
    assert "it destroys things; nothing confines" in text
    assert "\n  in" in text, "the folder in which it runs"
    assert "[y]es, [a]lways for exactly this command, [e]dit the rule, [N]o?" in text
    term.type("a\r")
    text = term.see("  $ rm -r b\n")
    assert 'allow = ["run_command(rm -r a)"]' in text
    assert text.count("[N]o?") <= 2, "what was always allowed is not asked about again"
    term.until(lambda: term.text.count("[N]o?") == 2, "the second question")
    term.type("n\r")
    assert term.end() == 0
    assert not (project / "a").exists()
    assert (project / "b").exists()


def test_the_rule_of_always_can_be_edited(terminal: Start, script: Script, project: Path) -> None:
    term = terminal("run", "-m", script(ASK), "Write", columns=120)
    term.see("[e]dit the rule, [N]o?")
    term.type("x")  # No answer.
    term.type("e")
    term.see("Rule [write_file(a.txt)]:")
    term.type("write_file(*(\r")
    term.see("is no rule; write a tool")
    term.until(lambda: term.text.count("[N]o?") == 2, "the question again")
    term.type("e")
    term.until(lambda: term.text.count("Rule [write_file(a.txt)]:") == 2, "the rule again")
    term.type("write_file(*.txt)\r")
    assert term.end() == 0
    assert 'allow = ["write_file(*.txt)"]' in term.text
    assert (project / "b.txt").exists()


SPAWNING = """
rules:
  - match: You are a coding agent
    steps:
      - {call: spawn_agent, args: {role: executor, task: Write a}}
      - {call: spawn_agent, args: {role: tester, task: Test a}}
      - say: Done.
  - match: Write a
    steps: [{call: write_file, args: {path: a.py, content: "A = 1\\n"}}, {say: Written.}]
  - match: Test a
    steps: [{call: write_file, args: {path: test_a.py, content: "import a\\n"}}, {say: Tested.}]
"""


@pytest.fixture
def repository(project: Path) -> Path:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    return project


def _asked(term: Terminal, times: int) -> None:
    """Wait until the prompt of a question is there: keys before it do not count."""
    term.until(lambda: term.text.count("[N]o?") == times, f"question {times}")


def test_children_are_approved_and_then_their_changes(
    terminal: Start, script: Script, repository: Path
) -> None:
    term = terminal("run", "-m", script(SPAWNING), "Do it", lines=50)
    text = term.see("[y]es, [a]lways for all like this, [N]o?")
    assert "The agent asks to spawn a child that can change things:\n  executor: Write a\n" in text
    assert "    tools: edit_file, " in text
    assert "    writes anywhere in the workspace, no network\n" in text
    assert "    budget: 30 tool calls, 65,536 tokens, 300 s\n" in text
    assert "    works in a copy; you see the change before it is merged\n" in text
    term.type("y\r")
    text = term.see("Merge this change?")
    assert "executor.1 has finished 'Write a'. Its change:\n" in text
    assert "  a.py (new file, +1 −0)\n  1 + A = 1\n" in text
    assert not (repository / "a.py").exists()
    term.type("y\r")
    term.see("  tester: Test a\n")
    _asked(term, 3)
    term.type("a")
    assert term.end() == 0
    assert term.text.count("Merge this change?") == 1, "yes to all like this covers the change"
    assert (repository / "a.py").exists()
    assert (repository / "test_a.py").exists()


def test_no_changes_nothing_and_its_reason_is_told(
    terminal: Start, script: Script, repository: Path
) -> None:
    term = terminal("run", "-m", script(SPAWNING), "Do it", lines=50)
    term.see("[y]es, [a]lways for all like this, [N]o?")
    term.type("n not that\r")
    term.see("  tester: Test a\n")
    _asked(term, 2)
    term.type("y")
    term.see("Merge this change?")
    term.type("no, wrong import\r")
    term.end()
    assert "the user refused its change: wrong import" in " ".join(term.text.split())
    assert {path.name for path in repository.iterdir()} == {".git", ".retinue", "script.yaml"}


def test_closed_terminal_suspends_the_run(
    terminal: Start, script: Script, cli: Cli, project: Path
) -> None:
    term = terminal("run", "-m", script(ASK), "Write")
    term.see("[N]o?")
    term.type("\x04")
    assert term.end() == 130
    assert re.search(RESUME_HINT, "".join(term.text.split()))
    assert "interrupted" in cli("runs").out


def test_keys_typed_before_a_question_do_not_answer_it(
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


def test_long_run_asks_whether_to_continue(terminal: Start, script: Script, project: Path) -> None:
    (project / "retinue.toml").write_text("warn_at_calls = 2\npause_at_calls = 3\n")
    calls = "\n".join(["  - {call: list_dir}"] * 5)
    term = terminal("run", "-m", script(f"steps:\n{calls}\n  - say: So far."), "Look")
    text = term.see("[N]o?")
    assert "  warn: 2 of 100 tool calls used\n" in text
    assert "The agent asks to continue: 3 of 100 tool calls are used" in text
    term.type("n\r")
    assert term.end() == 3
    assert "    The user wants no more tool calls." in term.text
