"""Interrupted commands suspend their run."""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.testing.server import Response, ResponseEnding

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Program, Script, Serve


@pytest.mark.parametrize(
    ("command", "number"),
    [(("run", "x"), signal.SIGINT), (("fan-out", "x", "y", "z"), signal.SIGTERM)],
)
def test_interrupted_run_is_suspended(
    cli: Cli, serve: Serve, program: Program, number: signal.Signals, command: tuple[str, ...]
) -> None:
    server = serve(*[Response(ending=ResponseEnding.HANG)] * 3)
    process = program(*command, "-q", "-m", server.model)
    server.received(len(command) - 1)
    process.send_signal(number)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 130
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    assert row["status"] is None
    told = f"retinue: interrupted; resume with: retinue resume {row['id']}\n"
    assert (out, err) == (b"", told.encode())
    assert "  interrupted " in cli("runs").out
    assert cli("show", row["id"]).out.startswith(f"run {row['id']}: interrupted\n")
    assert cli("audit", row["id"]).code == 0
    shown = [json.loads(line) for line in cli("show", "--json", row["id"]).out.splitlines()]
    assert (shown[-1]["type"], shown[-1]["payload"]["reason"]) == (
        "run.suspended",
        "interrupted by the user",
    )


def test_interrupted_json_run_prints_only_events(serve: Serve, program: Program) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    process = program("run", "--json", "x", "-m", server.model)
    server.received(1)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (130, b"")
    assert json.loads(out.splitlines()[-1])["type"] == "run.suspended"


def test_interrupt_kills_running_commands(script: Script, program: Program, project: Path) -> None:
    os.mkfifo(project / "pid")
    model = script(
        """
        steps:
          - call: run_command
            args: {command: "echo $$ > pid; exec sleep 1000"}
        """
    )
    options = ("--mode", "auto", "--unsafe-no-sandbox", "-q", "-m", model)
    # Held open for writing too: opening it does not wait for the command, nor does the end come.
    fifo = os.open(project / "pid", os.O_RDWR)
    process = program("run", "x", *options)
    assert process.stdout is not None
    ready, _, _ = select.select([fifo, process.stdout.fileno()], [], [])
    assert fifo in ready, process.communicate()
    pid = int(os.read(fifo, 100))
    os.close(fifo)
    os.kill(pid, 0)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_closed_pipe_ends_the_run(cli: Cli, serve: Serve, program: Program) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    process = program("run", "--json", "x", "-m", server.model)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    assert row["status"] == "error"
    assert cli("audit", row["id"]).code == 0
