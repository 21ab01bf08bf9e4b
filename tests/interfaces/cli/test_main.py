"""The command itself: its help, its version, and being interrupted."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from retinue.interfaces.cli.main import COMMANDS
from retinue.testing.server import Response, ResponseEnding
from retinue.version import VERSION


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Serving(Protocol):
    @property
    def model(self) -> str: ...

    def received(self, count: int) -> None: ...


Cli = Callable[..., Done]
Script = Callable[[str], str]
Serve = Callable[..., Serving]
Program = Callable[..., subprocess.Popen[bytes]]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(cli: Cli, command: str) -> None:
    done = cli(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Usage: retinue {command} " in done.out
    assert f"Example: retinue {command}" in done.out
    assert cli(command, "-h") == done


def test_the_help_lists_every_command_and_the_exit_codes(cli: Cli) -> None:
    done = cli("--help")
    assert done.code == 0
    for command, (_, text) in COMMANDS.items():
        assert f"  {command} " in done.out
        assert text in done.out
    words = " ".join(done.out.split())
    assert "Exit codes: 0 done, 1 failed, 2 usage, 3 a limit was reached" in words
    assert "130 interrupted." in words


def test_where_nobody_can_talk_it_helps(cli: Cli) -> None:
    assert cli() == cli("--help")
    assert cli("chat") == (
        2,
        "",
        'retinue: The chat needs a terminal. Without one, use `retinue run "…"`.\n',
    )
    assert cli("-c").err == cli("chat").err, "options of the chat need no name of it"


def test_options_may_stand_before_the_command(cli: Cli, script: Callable[[str], str]) -> None:
    model = script("steps: [{say: Hello.}]")
    assert cli("-m", model, "--mode", "plan", "run", "-q", "Greet me") == (0, "Hello.\n", "")
    assert "The chat needs a terminal" in cli("-m", "run").err


def test_the_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"retinue, version {VERSION}\n", "")


@pytest.mark.parametrize(
    ("command", "number"),
    [(("run", "x"), signal.SIGINT), (("fan-out", "x", "y", "z"), signal.SIGTERM)],
)
def test_interrupted_nothing_is_lost(
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


def test_interrupted_in_json_nothing_else_is_printed(serve: Serve, program: Program) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    process = program("run", "--json", "x", "-m", server.model)
    server.received(1)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (130, b"")
    assert json.loads(out.splitlines()[-1])["type"] == "run.suspended"


def test_interrupted_no_process_is_left(script: Script, program: Program, project: Path) -> None:
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


def test_a_reader_who_goes_away_ends_the_run(cli: Cli, serve: Serve, program: Program) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    process = program("run", "--json", "x", "-m", server.model)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    assert row["status"] == "error"
    assert cli("audit", row["id"]).code == 0


def test_the_package_can_be_run_as_the_command() -> None:
    command = [sys.executable, "-m", "retinue", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"retinue, version {VERSION}\n"
