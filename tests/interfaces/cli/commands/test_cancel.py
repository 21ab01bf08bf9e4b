"""`retinue cancel`."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from retinue.models.scripted.model import call, say
from retinue.testing.server import Response, ResponseEnding

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Program, Serve


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


@pytest.mark.parametrize("name", ["a1", "root/researcher.1"])
def test_child_in_another_process_is_cancelled_for_good(
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


def test_run_in_another_process_is_cancelled(cli: Cli, serve: Serve, program: Program) -> None:
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


def test_fan_out_in_another_process_is_cancelled(cli: Cli, serve: Serve, program: Program) -> None:
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


def test_abandoned_run_is_cancelled(cli: Cli, serve: Serve, program: Program) -> None:
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
    assert "  abandoned " in cli("runs").out
    assert cli("show", run).out.startswith(f"run {run}: abandoned\n")
    assert cli("tasks").out.endswith(f"1 task in session {run}: 1 abandoned\n")
    done = cli("watch", run)
    assert (done.code, done.err) == (1, abandoned)
    assert cli("cancel", run, "a1") == (0, "a1 (root/researcher.1) was cancelled.\n", "")
    assert closings(cli, run) == {"a1": "stopped by the user"}
    assert "  interrupted " in cli("runs").out, "the rest of the run can be resumed"
    assert cli("cancel", run) == (0, f"Run {run} was cancelled.\n", "")
    assert closings(cli, run) == {"a1": "stopped by the user", "a0": "stopped by the user"}
    assert cli("audit", run).code == 0
    done = cli("resume", run)
    assert (done.code, "is over (cancelled)" in done.err) == (1, True)


def test_finished_agent_cannot_be_cancelled(cli: Cli, serve: Serve, program: Program) -> None:
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


def test_process_that_does_not_answer_is_an_error(cli: Cli, serve: Serve, program: Program) -> None:
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
