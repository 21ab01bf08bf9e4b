"""runs, tasks, show and audit."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from retinue.models.scripted.model import call, say

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Serving


class Done(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Done]
Script = Callable[[str], str]
Serve = Callable[..., "Serving"]

LOOK = """
rules:
  - match: task bad
    steps: [{fail: refused, message: No.}]
  - match: ""
    steps:
      - say: Looking.
        calls: [{call: list_dir}, {call: rocket}]
      - say: There is one file.
"""


@pytest.fixture
def run_id(cli: Cli, script: Script) -> str:
    """A fan-out of two, one of which failed."""
    done = cli("fan-out", "--json", "-m", script(LOOK), "task good", "task bad")
    run_id = json.loads(done.out.splitlines()[0])["run_id"]
    assert isinstance(run_id, str)
    return run_id


def test_runs_are_listed_newest_first(cli: Cli, run_id: str, script: Script) -> None:
    cli("run", "-m", script("steps: [{say: ok}]"), "Speak\nplainly.")
    done = cli("runs")
    assert (done.code, done.err) == (0, "")
    newest, oldest = done.out.splitlines()
    when = r"[A-Z][a-z]{2} \d\d \d\d:\d\d"
    (run,) = set(newest.split()[:2])
    assert re.fullmatch(rf"{run}  {run}  {when}  completed  \d\.\ds  1  Speak plainly\.", newest)
    ended = rf"{run_id}  -         {when}  error      \d\.\ds  3  2 tasks: task good"
    assert re.fullmatch(ended, oldest)
    assert [line.split() for line in cli("runs", "-n", "1").out.splitlines()] == [newest.split()]


def test_a_person_gets_headings_and_a_pipe_does_not(
    cli: Cli, run_id: str, terminal: Callable[..., Any]
) -> None:
    term = terminal("runs")
    assert term.end() == 0
    head, row = term.text.splitlines()
    assert head.split() == ["RUN", "SESSION", "BEGAN", "STATUS", "TIME", "AGENTS", "TASK"]
    assert row.startswith(run_id)
    assert row.endswith("2 tasks: task good")
    assert not cli("runs").out.startswith("RUN")


def test_runs_as_json(cli: Cli, run_id: str) -> None:
    (line,) = cli("runs", "--json").out.splitlines()
    row = json.loads(line)
    assert (row["id"], row["status"], row["agents"]) == (run_id, "error", 3)


def test_a_run_is_shown_as_a_tree(cli: Cli, run_id: str) -> None:
    done = cli("show", run_id[:5])
    assert (done.code, done.err) == (0, "")
    head, task, model, root, good, bad, error = done.out.splitlines()
    assert head == f"run {run_id}: error (1 of 2 children failed)"
    assert task == "  2 tasks: task good"
    assert model.startswith("  scripted:script.yaml, mode normal, ")
    assert root.startswith("  a0   root ")
    assert good.startswith("    a1   researcher.1   completed       turn 2/50, 2 tool calls, ")
    assert good.endswith("  task good")
    assert bad.startswith("    a2   researcher.2   error           turn 1/50, 0 tool calls, ")
    assert error.strip() == "No."


@pytest.mark.parametrize("agent", ["a1", "root/researcher.1"])
def test_an_agent_is_shown_in_full(cli: Cli, run_id: str, agent: str) -> None:
    done = cli("show", run_id, agent)
    assert done.code == 0
    assert done.out.startswith("a1 root/researcher.1: completed\n")
    assert "  Tools: find_files, list_dir, read_file, " in done.out
    assert "  Limits: 15 tool calls, 50 turns, 65536 tokens, 300 s\n" in done.out
    for text in ("task good", "Looking.", "→ list_dir {}", "script.yaml", "There is one file."):
        assert text in done.out
    assert "[DENIED] You have no tool 'rocket'." in done.out


TIMING = r"queued \d+\.\ds, first token \d+\.\ds, generating \d+\.\ds"


def test_it_is_shown_where_the_time_went(cli: Cli, serve: Serve) -> None:
    model = serve(call("list_dir", path="."), say("One file.")).model
    done = cli("spawn", "--json", "-m", model, "researcher", "Look.")
    run_id = json.loads(done.out.splitlines()[0])["run_id"]
    tree = cli("show", run_id).out
    assert re.search(rf"^ +a1 .*  Look\.\n +{TIMING}$", tree, re.MULTILINE)
    page = cli("show", run_id, "a1").out
    assert re.search(rf"^· turn 1: {TIMING}\n→ list_dir", page, re.MULTILINE)
    assert re.search(rf"^· turn 2: {TIMING}\nOne file\.$", page, re.MULTILINE)
    assert "Answered by" not in page


def test_it_is_shown_who_of_a_pool_answered(cli: Cli, serve: Serve, tmp_path: Path) -> None:
    model = serve(say("Me.")).model
    settings = tmp_path / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[pools.smart]\nendpoints = ["{model}"]\n')
    done = cli("spawn", "--json", "-m", "smart", "researcher", "Who?")
    run_id = json.loads(done.out.splitlines()[0])["run_id"]
    page = cli("show", run_id, "a1").out
    assert f"\n  Answered by: {model}\n" in page
    assert re.search(rf"^· turn 1: {TIMING} \({re.escape(model)}\)$", page, re.MULTILINE)


def test_events_are_shown_as_json(cli: Cli, run_id: str) -> None:
    events = [json.loads(line) for line in cli("show", "--json", run_id).out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event["agent_id"] for event in events} == {"a0", "a1", "a2"}
    only = [json.loads(line) for line in cli("show", "--json", run_id, "a1").out.splitlines()]
    assert only == [event for event in events if event["agent_id"] == "a1"]


def test_a_journal_that_is_whole_is_said_to_be(cli: Cli, run_id: str) -> None:
    done = cli("audit", run_id)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("ok: ")
    assert f" events and 3 contracts of run {run_id} are unchanged (head " in done.out
    found = json.loads(cli("audit", "--json", run_id).out)
    assert (found["ok"], found["run_id"], found["agents"]) == (True, run_id, 3)


def test_a_journal_that_was_changed_is_found_out(cli: Cli, run_id: str, project: Path) -> None:
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as connection, connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in triggers.fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE events SET summary = 'nothing' WHERE seq = 5")
    done = cli("audit", run_id)
    assert done.code == 1
    assert done.out.startswith("BROKEN at event 5: ")
    found = json.loads(cli("audit", "--json", run_id).out)
    assert (found["ok"], found["seq"]) == (False, 5)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("show", "zzzz"), "No run 'zzzz' in {db}; `retinue runs` lists them."),
        (("audit", "zzzz"), "No run 'zzzz' in {db}; `retinue runs` lists them."),
    ],
)
def test_an_unknown_run_is_told(
    cli: Cli, run_id: str, project: Path, command: tuple[str, ...], message: str
) -> None:
    done = cli(*command)
    db = project / ".retinue" / "retinue.db"
    assert done == (1, "", f"retinue: {message.format(db=db)}\n")


def test_an_unknown_agent_is_told(cli: Cli, run_id: str) -> None:
    done = cli("show", run_id, "a9")
    assert done == (
        2,
        "",
        f"retinue: No agent 'a9' in run {run_id}; there are: a0 (root), a1 (root/researcher.1),"
        " a2 (root/researcher.2).\n",
    )


@pytest.mark.parametrize("command", [("runs",), ("tasks",), ("show", "x"), ("audit", "x")])
def test_where_nothing_has_run_that_is_said(
    cli: Cli, project: Path, command: tuple[str, ...]
) -> None:
    done = cli(*command)
    db = project / ".retinue" / "retinue.db"
    assert done == (1, "", f"retinue: There is no journal at {db} yet; run something first.\n")
    assert not (project / ".retinue").exists(), "reading makes nothing"


@pytest.mark.parametrize("options", [("show", "--json"), ("show",), ("runs",)])
def test_a_pipe_that_is_closed_early_is_no_error(
    cli: Cli,
    run_id: str,
    program: Callable[..., subprocess.Popen[bytes]],
    options: tuple[str, ...],
) -> None:
    argv = (*options, run_id) if options[0] == "show" else options
    process = program(*argv)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate()
    assert err == b""
    assert process.returncode == 141


# tasks

GIVE = """
rules:
  - match: You are a coding agent
    steps:
      - calls:
          - {call: spawn_agent, args: {role: planner, task: "task good"}}
          - {call: spawn_agent, args: {role: planner, task: "task bad"}}
      - say: One.
      - {call: spawn_agent, args: {role: reviewer, task: "task good"}}
      - say: Two.
  - match: task bad
    steps: [{fail: refused, message: No.}]
  - match: ""
    steps: [{say: Done.}]
"""


def test_the_tasks_of_a_session_are_listed(cli: Cli, script: Script) -> None:
    model = script(GIVE)
    assert cli("run", "-q", "-m", model, "Give").code == 0
    assert cli("run", "-q", "-c", "-m", model, "Go on").code == 0
    second, first = (json.loads(line)["id"] for line in cli("runs", "--json").out.splitlines())
    done = cli("tasks")
    assert (done.code, done.err) == (0, "")
    good, bad, more, sums = done.out.splitlines()
    assert re.fullmatch(rf"{first}  a1  planner   completed  \d\.\ds  task good", good)
    assert re.fullmatch(rf"{first}  a2  planner   error      \d\.\ds  task bad: No\.", bad)
    assert re.fullmatch(rf"{second}  a3  reviewer  completed  \d\.\ds  task good", more)
    assert sums == f"3 tasks in session {first}: 2 completed, 1 error"
    assert cli("tasks", second[:6]).out == done.out
    listed = [json.loads(line) for line in cli("tasks", "--json").out.splitlines()]
    assert [(task["agent_id"], task["status"], task["error"]) for task in listed] == [
        ("a1", "completed", ""),
        ("a2", "error", "No."),
        ("a3", "completed", ""),
    ]


def test_the_tasks_of_a_fan_out_are_listed(cli: Cli, run_id: str) -> None:
    done = cli("tasks")
    assert done.out.endswith(f"2 tasks in run {run_id}: 1 completed, 1 error\n")


def test_a_session_without_tasks_says_so(cli: Cli, script: Script) -> None:
    cli("run", "-q", "-m", script("steps: [{say: ok}]"), "x")
    run = json.loads(cli("runs", "--json").out)["id"]
    assert cli("tasks") == (0, f"No child has a task in session {run}.\n", "")


def test_a_run_shows_what_it_goes_on_from_and_what_it_changed(cli: Cli, script: Script) -> None:
    model = script(
        """
        steps:
          - {call: write_file, args: {path: a.txt, content: "1\\n2\\n"}}
          - {call: write_file, args: {path: a.txt, content: "1\\n2\\n3\\n"}}
          - say: One.
        """
    )
    cli("run", "-q", "--mode", "auto", "-m", model, "Write")
    cli("run", "-q", "-c", "-m", script("steps: [{say: Two.}]"), "Go on")
    second, first = (json.loads(line)["id"] for line in cli("runs", "--json").out.splitlines())
    assert f"\n  continues {first}, in session {first}\n" in cli("show", second).out
    assert "\n  Files modified: a.txt (+3 lines, new file)\n" in cli("show", first).out


@pytest.mark.parametrize("command", [("show", "RUN"), ("show", "RUN", "a0"), ("runs",), ("tasks",)])
def test_what_a_terminal_would_obey_is_left_out(
    cli: Cli, script: Script, terminal: Callable[..., Any], command: tuple[str, ...]
) -> None:
    evil = "\x1b]0;mine\x07\x1b[31m"
    model = script(f"steps: [{{say: {json.dumps(evil + 'said')}}}]")
    cli("run", "-q", "-m", model, f"{evil}asked")
    run = json.loads(cli("runs", "--json").out)["id"]
    term = terminal(*(run if word == "RUN" else word for word in command), columns=120)
    assert term.end() == 0
    assert b"\x1b" not in term.raw
    assert "asked" in term.text or command == ("tasks",)
