"""`retinue watch`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.models.scripted.model import call, calls, say
from retinue.testing.server import Response, ResponseEnding

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Program, Script, Serve, Start


HANG = Response(ending=ResponseEnding.HANG)


SPAWN = call("spawn_agent", role="researcher", task="Wait for ever")


def run_id(cli: Cli) -> str:
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    return str(row["id"])


def test_a_run_is_followed_to_its_end(cli: Cli, serve: Serve, program: Program) -> None:
    first = calls(call("list_dir"), text="I look.")
    server = serve(first, HANG)
    process = program("run", "-q", "x", "-m", server.model)
    server.received(2)
    run = run_id(cli)
    watching = program("watch", run[:6])
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith(b"  root: note: the context window of")
    assert watching.stdout.readline() == b"  root: list_dir {}\n"
    assert cli("cancel", run).code == 0
    rest, err = watching.communicate()
    assert (watching.returncode, err) == (130, b"")
    assert rest.startswith(b'[lead] Ended (cancelled): "x"\n  Duration: ')
    assert rest.endswith(b"  Reason: stopped by the user\n  Result: I look.\n")
    process.communicate()


def test_watch_as_json_prints_the_events(cli: Cli, serve: Serve, program: Program) -> None:
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


def test_finished_run_is_shown_from_its_start(cli: Cli, script: Script, project: Path) -> None:
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


def test_ctrl_c_stops_watching_and_not_the_run(
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
def test_unknown_run_is_an_error(cli: Cli, project: Path, script: Script, command: str) -> None:
    db = project / ".retinue" / "retinue.db"
    yet = f"retinue: There is no journal at {db} yet; run something first.\n"
    assert cli(command, "zzzz") == (1, "", yet)
    cli("run", "-q", "-m", script("steps: [{say: ok}]"), "x")
    unknown = f"retinue: No run 'zzzz' in {db}; `retinue runs` lists them.\n"
    assert cli(command, "zzzz") == (2, "", unknown)
