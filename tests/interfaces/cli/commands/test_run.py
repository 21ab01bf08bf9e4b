"""`retinue run`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


def lines_of(text: str) -> list[dict[str, Any]]:
    """Each line as the JSON object that it must be."""
    return [json.loads(line) for line in text.splitlines()]


def test_run_prints_the_answer_and_its_usage(cli: Cli, looks: str) -> None:
    done = cli("run", "-m", looks, "What is here?")
    assert done.code == 0
    assert done.out == "There is one file.\n"
    assert "  root: list_dir {}\n" in done.err
    assert '[lead] Completed: "What is here?"\n' in done.err
    assert "(2 turns, 1 tool call, " in done.err
    assert "  Run: " in done.err


def test_context_files_are_added_to_the_task(cli: Cli, script: Script, project: Path) -> None:
    (project / "a.md").write_text("Herons wait.")
    (project / "b.md").write_text("Bitterns hide.")
    model = script("rules: [{match: Herons wait., steps: [{say: a.md came along}]}]")
    files = ("-f", "a.md", "-f", "b.md")
    assert cli("spawn", "-q", "planner", "-m", model, *files, "x").out == "a.md came along\n"
    done = cli("fan-out", "-q", "-m", model, *files, "x", "y")
    assert done.out.count("a.md came along") == 2
    assert cli("run", "-q", "-m", model, *files, "x").out == "a.md came along\n"
    done = cli("spawn", "planner", "-m", model, "-f", "missing.md", "x")
    assert (done.code, done.out) == (2, "")
    assert "missing.md" in done.err


def test_quiet_prints_only_the_answer(cli: Cli, looks: str) -> None:
    model = looks
    assert cli("run", "-q", "-m", model, "What is here?") == (0, "There is one file.\n", "")
    assert cli("spawn", "-q", "planner", "-m", model, "x") == (0, "There is one file.\n", "")
    done = cli("fan-out", "-q", "-m", model, "x", "y")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("There is one file.") == 2


@pytest.mark.parametrize(
    "command", [("run", "x"), ("spawn", "researcher", "x"), ("fan-out", "x", "y")]
)
def test_json_is_one_event_per_line_and_then_the_result(
    cli: Cli, looks: str, command: tuple[str, ...]
) -> None:
    done = cli(*command, "--json", "-m", looks)
    assert (done.code, done.err) == (0, "")
    *events, result = lines_of(done.out)
    assert (result["type"], result["status"]) == ("result", "completed")
    for event in events:
        assert {"run_id", "agent_id", "parent_agent_id", "seq", "type", "time"} <= event.keys()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["type"], events[-1]["type"]) == ("run.started", "run.finished")
    assert len({event["run_id"] for event in events}) == 1
    parents = {e["agent_id"]: e["parent_agent_id"] for e in events}
    assert parents.pop("a0") is None
    assert set(parents.values()) <= {"a0"}


def test_a_failure_is_exit_code_1(cli: Cli, script: Script) -> None:
    done = cli("run", "-m", script("steps: [{fail: refused, message: I would not.}]"), "x")
    assert done.code == 1
    assert done.err.splitlines()[-1] == "retinue: error: I would not."


def test_a_failure_in_json_is_an_event_and_exit_code_1(cli: Cli, script: Script) -> None:
    model = script("steps: [{fail: refused, message: I would not.}]")
    done = cli("run", "--json", "-m", model, "x")
    assert (done.code, done.err) == (1, "")
    *_, last, result = lines_of(done.out)
    assert (result["status"], result["error"]) == ("error", "I would not.")
    assert last["payload"] == {"type": "run.finished", "status": "error", "reason": "I would not."}


def test_limit_is_exit_code_3_with_the_partial_result(cli: Cli, script: Script) -> None:
    model = script(
        """
        steps:
          - calls: [{call: list_dir}, {call: list_dir}]
          - say: Half of it.
        """
    )
    done = cli("run", "--max-tool-calls", "1", "-m", model, "x")
    assert (done.code, done.out) == (3, "Half of it.\n")
    assert done.err.splitlines()[-1] == "retinue: budget_exceeded: max_tool_calls 1 reached"


def test_destructive_command_without_a_terminal_is_exit_code_4(
    cli: Cli, script: Script, project: Path
) -> None:
    (project / "build").mkdir()
    model = script("steps: [{call: run_command, args: {command: rm -rf build}}]")
    done = cli("run", "--mode", "auto", "--unsafe-no-sandbox", "-m", model, "Clean.")
    assert done.code == 4
    assert done.err.splitlines()[-1] == (
        "retinue: rejected: root asks for run_command: rm -rf build. That needs your yes (it"
        " destroys things), but no person can be asked; run it in a terminal, with allow ="
        ' ["run_command(rm -rf build)"] in your settings, or with --mode dangerous.'
    )
    assert (project / "build").exists()


def test_a_missing_approval_is_exit_code_4(cli: Cli, writes: str, project: Path) -> None:
    done = cli("run", "-m", writes, "Write.")
    assert done.code == 4
    assert done.err.splitlines()[-1] == (
        'retinue: rejected: root asks for write_file: {"path":"a.txt","content":"hi\\n"}. That'
        " needs your yes (its mode asks first), but no person can be asked; run it in a terminal,"
        ' with allow = ["write_file(a.txt)"] in your settings, or with --mode auto.'
    )
    assert not (project / "a.txt").exists()


def test_model_comes_from_the_environment_or_the_settings(
    cli: Cli, looks: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "retinue.toml").write_text(f'model = "{looks}"\n')
    cli("trust")
    assert cli("run", "-q", "x").out == "There is one file.\n"
    (project / "other.yaml").write_text("steps: [{say: Another.}]")
    monkeypatch.setenv("RETINUE_MODEL", "scripted:other.yaml")
    assert cli("run", "-q", "x").out == "Another.\n"


@pytest.mark.usefixtures("looks")
def test_directory_option(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "script.yaml").write_text("steps: [{say: Elsewhere.}]")
    done = cli("run", "-q", "-C", str(tmp_path / "elsewhere"), "-m", "scripted:script.yaml", "x")
    assert done.out == "Elsewhere.\n"
    assert (tmp_path / "elsewhere" / ".retinue" / "retinue.db").exists()


def test_changes_must_pass_the_checks(cli: Cli, always_writes: str, project: Path) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    free = ("--mode", "auto", "--unsafe-no-sandbox", "-m", always_writes)
    bad, good = ("--check", "test ! -e a.txt"), ("--check", "test -e a.txt", "--check", "true")
    done = cli("spawn", "executor", *free, *bad, "x")
    assert done.code == 1
    assert "a check failed: test ! -e a.txt: failed (exit code 1)" in done.err
    done = cli("fan-out", *free, *bad, "executor: x")
    assert (done.code, (project / "a.txt").exists()) == (1, False)
    assert cli("spawn", "executor", *free, *good, "x").code == 0
    assert (project / "a.txt").read_text() == "hi\n"
    (project / "a.txt").unlink()
    # A root works in the project itself, so its change stays and is reported.
    done = cli("run", *free, *bad, "x")
    assert (done.code, (project / "a.txt").exists()) == (1, True)
    assert "a check failed: test ! -e a.txt" in done.err
    assert cli("run", *free, *good, "--on-conflict", "resolve", "x").code == 0


def test_unsupported_claim_of_the_lead_is_marked(cli: Cli, script: Script) -> None:
    done = cli("run", "-m", script("steps: [{say: All tests pass.}]"), "Test it")
    assert done.code == 0
    assert "  Unverified: All tests pass.\n" in done.err


def test_child_that_could_not_write_is_told_by_the_exit_code(cli: Cli, script: Script) -> None:
    model = script(
        """
        rules:
          - match: You are a coding agent
            steps: [{call: spawn_agent, args: {role: executor, task: Write a}}, {say: All done.}]
          - match: ""
            steps: [{say: I could not.}]
        """
    )
    done = cli("run", "-m", model, "Go")
    assert (done.code, done.out) == (4, "All done.\n")
    reason = "error: incomplete: a1 could not write: needs --mode auto"
    assert done.err.endswith(f"retinue: {reason}\n")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nope.py", "No file 'nope.py'."),
        ("reel.png", "No file 'reel.png'. Did you mean 'real.png'?"),
        ("real.png", "it is not text."),
    ],
)
def test_a_file_that_cannot_be_attached_stops_the_run_before_anything_is_sent(
    cli: Cli, script: Script, project: Path, name: str, why: str
) -> None:
    (project / "real.png").write_bytes(b"\0\0")
    done = cli("run", "-m", script("steps: [{say: ok}]"), "-f", name, "Look")
    assert done == (
        2,
        "",
        f"retinue: Nothing was sent, since not everything can be attached: {name}: {why}\n",
    )


def test_files_that_the_task_mentions_are_attached(cli: Cli, script: Script, project: Path) -> None:
    (project / "a.py").write_text("SECRET = 'of a'\n")
    model = script(
        """
        rules:
          - {match: "of a", steps: [{say: It was attached.}]}
          - {match: "", steps: [{say: It was not attached.}]}
        """
    )
    assert cli("run", "-m", model, "Read @a.py.").out == "It was attached.\n"
    missing = cli("run", "-q", "-m", model, "mail me@a.py or @gone.py, @kim and @app.route")
    assert missing.out == "It was not attached.\n"
    assert missing.err == "@gone.py is no file of this project; the task is sent without it.\n"
