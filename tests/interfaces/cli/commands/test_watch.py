"""watch and cancel: a run in another process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from retinue.models.scripted.model import call, calls, say
from retinue.testing.server import Response, ResponseEnding


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Serving(Protocol):
    @property
    def model(self) -> str: ...

    def received(self, count: int) -> None: ...


class Terminal(Protocol):
    raw: bytes

    @property
    def text(self) -> str: ...
    @property
    def cursor_is_shown(self) -> bool: ...
    def see(self, *texts: str) -> str: ...
    def type(self, keys: str) -> None: ...
    def end(self) -> int: ...


Cli = Callable[..., Done]
Script = Callable[[str], str]
Serve = Callable[..., Serving]
Program = Callable[..., subprocess.Popen[bytes]]
Start = Callable[..., Terminal]

HANG = Response(ending=ResponseEnding.HANG)
SPAWN = call("spawn_agent", role="researcher", task="Wait for ever")


def run_id(cli: Cli) -> str:
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    return str(row["id"])


def closings(cli: Cli, run: str) -> dict[str, str]:
    events: list[dict[str, Any]] = [
        json.loads(line) for line in cli("show", "--json", run).out.splitlines()
    ]
    return {
        event["agent_id"]: event["payload"]["close_reason"]
        for event in events
        if event["type"] == "agent.subagent_closed"
    }


# cancel


@pytest.mark.parametrize("name", ["a1", "root/researcher.1"])
def test_a_child_in_another_process_is_stopped_for_good(
    cli: Cli, serve: Serve, program: Program, name: str
) -> None:
    revive = call("agent_message", id="a1", text="Go on, please.")
    server = serve(SPAWN, HANG, revive, say("It was stopped."))
    process = program("run", "-q", "x", "-m", server.model)
    server.received(2)
    run = run_id(cli)
    assert cli("cancel", run[:6], name) == (0, "a1 (root/researcher.1) was cancelled.\n", "")
    out, err = process.communicate()
    assert (process.returncode, out, err) == (0, b"It was stopped.\n", b"")
    assert closings(cli, run) == {"a1": "stopped by the user", "a0": "done"}
    assert (
        "    [ERROR] a1 was stopped (stopped by the user) and stays so."
        in cli("show", run, "a0").out
    )
    assert cli("cancel", run, "a1") == (
        1,
        "",
        f"retinue: Run {run} has already ended (completed).\n",
    )


def test_a_run_in_another_process_is_stopped(cli: Cli, serve: Serve, program: Program) -> None:
    server = serve(SPAWN, HANG)
    process = program("run", "-q", "x", "-m", server.model)
    server.received(2)
    run = run_id(cli)
    assert cli("cancel", run) == (0, f"Run {run} was cancelled.\n", "")
    out, err = process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert err == b"retinue: cancelled: stopped by the user\n"
    assert closings(cli, run) == {"a1": "stopped by the user", "a0": "stopped by the user"}
    assert cli("audit", run).code == 0


def test_a_fan_out_in_another_process_is_stopped(cli: Cli, serve: Serve, program: Program) -> None:
    server = serve(*[HANG] * 2)
    tasks = [f"task {n}" for n in range(9)]
    process = program("fan-out", *tasks, "--max-concurrent", "2", "-m", server.model)
    server.received(2)
    run = run_id(cli)
    assert cli("cancel", run) == (0, f"Run {run} was cancelled.\n", "")
    out, _ = process.communicate()
    assert process.returncode == 130
    assert out.count(b"[cancelled] stopped by the user") == 9
    assert closings(cli, run) == dict.fromkeys(("a1", "a2", "a0"), "stopped by the user")


def test_a_run_whose_process_is_gone_cannot_be_stopped(
    cli: Cli, serve: Serve, program: Program
) -> None:
    server = serve(SPAWN, HANG)
    process = program("run", "-q", "x", "-m", server.model)
    server.received(2)
    process.kill()
    process.communicate()
    run = run_id(cli)
    abandoned = (
        f"retinue: Run {run} is not finished, and its process is gone."
        f" Resume it with: retinue resume {run}\n"
    )
    assert cli("cancel", run) == (1, "", abandoned)
    assert "  abandoned " in cli("runs").out
    assert cli("show", run).out.startswith(f"run {run}: abandoned\n")
    assert cli("tasks").out.endswith(f"1 task in session {run}: 1 abandoned\n")
    done = cli("watch", run)
    assert (done.code, done.err) == (1, abandoned)


def test_an_agent_that_has_ended_cannot_be_stopped(
    cli: Cli, serve: Serve, program: Program
) -> None:
    server = serve(SPAWN, say("Done."), HANG)
    process = program("run", "-q", "x", "-m", server.model)
    server.received(3)
    run = run_id(cli)
    assert cli("cancel", run, "a1") == (
        1,
        "",
        "retinue: a1 has already ended (completed).\n",
    )
    assert cli("cancel", run, "a9").code == 2
    process.kill()
    process.communicate()


def test_a_process_that_does_not_answer_is_told_of(
    cli: Cli, serve: Serve, program: Program
) -> None:
    server = serve(HANG)
    process = program("run", "-q", "x", "-m", server.model)
    server.received(1)
    run = run_id(cli)
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert cli("cancel", run, "--wait", "0.1") == (
        1,
        "",
        f"retinue: The process of run {run} was asked to stop a0, and has not done so in"
        " 0.1 s. It may be suspended.\n",
    )
    process.send_signal(signal.SIGCONT)
    process.communicate()
    assert process.returncode == 130, "it was told, and has heard it now"


def test_a_session_that_is_at_work_elsewhere_is_not_gone_on_with(
    cli: Cli, serve: Serve, program: Program
) -> None:
    server = serve(HANG)
    process = program("run", "-q", "x", "-m", server.model)
    server.received(1)
    run = run_id(cli)
    done = cli("run", "-q", "-c", "y", "-m", server.model)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"retinue: The session is still at work, in run {run}; wait for it")
    process.kill()
    process.communicate()


# watch


def test_a_run_is_followed_to_its_end(cli: Cli, serve: Serve, program: Program) -> None:
    first = calls(call("list_dir"), text="I look.")
    server = serve(first, HANG)
    process = program("run", "-q", "x", "-m", server.model)
    server.received(2)
    run = run_id(cli)
    watching = program("watch", run[:6])
    assert watching.stdout is not None
    assert watching.stdout.readline() == b"  root: list_dir {}\n"
    assert cli("cancel", run).code == 0
    rest, err = watching.communicate()
    assert (watching.returncode, err) == (130, b"")
    assert rest.startswith(b'[lead] Ended (cancelled): "x"\n  Duration: ')
    assert rest.endswith(b"  Reason: stopped by the user\n  Result: I look.\n")
    process.communicate()


def test_the_events_of_a_run_are_followed_as_json(cli: Cli, serve: Serve, program: Program) -> None:
    server = serve(HANG)
    process = program("run", "-q", "x", "-m", server.model)
    server.received(1)
    run = run_id(cli)
    watching = program("watch", "--json", run)
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["type"] == "run.started"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    out, err = watching.communicate()
    last = json.loads(out.splitlines()[-1])
    assert (last["type"], err) == ("run.suspended", b"")
    assert watching.returncode == 130
    process.communicate()


def test_a_run_that_is_over_is_told_from_its_beginning(
    cli: Cli, script: Script, project: Path
) -> None:
    model = script(
        """
        rules:
          - match: You are a coding agent
            steps:
              - {call: spawn_agent, args: {role: planner, task: Look}}
              - say: All is seen.
          - match: ""
            steps: [{call: list_dir}, {say: Looked.}]
        """
    )
    assert cli("run", "-q", "-m", model, "See").code == 0
    done = cli("watch", run_id(cli))
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == '  root: spawn_agent {"role":"planner","task":"Look"}'
    assert lines[1:3] == ["  root/planner.1: created: Look", "  root/planner.1: list_dir {}"]
    assert lines[3] == '[planner] Completed: "Look"'
    assert lines[-1] == "  Result: All is seen."


def test_a_run_is_watched_on_a_terminal_and_left(
    cli: Cli, serve: Serve, program: Program, terminal: Start
) -> None:
    server = serve(SPAWN, HANG, say("Over."))
    process = program("run", "-q", "Survey it", "-m", server.model)
    server.received(2)
    run = run_id(cli)
    left = terminal("watch", run)
    left.see('researcher.1 "Wait for ever" (turn 1/50, ', "Ctrl-C stops watching")
    left.type("\x03")
    assert left.end() == 130
    assert left.text == ""
    assert left.cursor_is_shown
    stayed = terminal("watch", run)
    stayed.see('researcher.1 "Wait for ever" (turn 1/50, ')
    assert cli("cancel", run, "a1").code == 0
    assert stayed.end() == 0
    text = stayed.text
    assert '[researcher] Ended (cancelled): "Wait for ever"' in text
    assert '\n✓ lead "Survey it" (2 turns, ' in text
    assert "\n  ■ researcher.1 cancelled: stopped by the user" in text
    assert text.endswith("\n  Result: Over.")
    process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize("command", ["watch", "cancel"])
def test_an_unknown_run_is_told(cli: Cli, project: Path, script: Script, command: str) -> None:
    db = project / ".retinue" / "retinue.db"
    yet = f"retinue: There is no journal at {db} yet; run something first.\n"
    assert cli(command, "zzzz") == (1, "", yet)
    cli("run", "-q", "-m", script("steps: [{say: ok}]"), "x")
    unknown = f"retinue: No run 'zzzz' in {db}; `retinue runs` lists them.\n"
    assert cli(command, "zzzz") == (1, "", unknown)
