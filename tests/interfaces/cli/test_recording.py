"""`--record FILE` and `-m replay:FILE`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.models.scripted.model import call, say
from retinue.testing.server import failing

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Serve


@pytest.mark.parametrize(
    "command",
    [
        ("run", "What is in a.txt?"),
        ("spawn", "researcher", "What is in a.txt?"),
        ("fan-out", "What is in a.txt?", "What is in it?"),
    ],
)
def test_command_is_recorded_and_replayed(
    cli: Cli, serve: Serve, project: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (project / "a.txt").write_text("A heron.\n")
    file = tmp_path / "run.jsonl"
    # One at a time: the server answers in the order of asking.
    alone = ("--max-concurrent", "1") if command[0] == "fan-out" else ()
    server = serve(
        failing(503, "Loading model"),
        call("read_file", path="a.txt"),
        say("A heron is in it."),
        call("read_file", path="a.txt"),
        say("A bird is in it."),
    )
    first = cli(*command, *alone, "-q", "-m", server.model, "--record", str(file))
    assert first.code == 0, first.err
    assert cli(*command, *alone, "-q", "-m", f"replay:{file}") == first
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["type"] == "recording"
    assert [line["failure"]["kind"] for line in lines if "failure" in line] == ["Overloaded"]


def test_replay_with_recorded_timing(cli: Cli, serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    cli("run", "-m", serve(say("Hi.")).model, "--record", str(file), "Greet me")
    assert cli("run", "-q", "-m", f"replay:{file}@recorded", "Greet me") == (0, "Hi.\n", "")


def test_replay_of_another_task_fails(cli: Cli, serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    cli("run", "-m", serve(say("Hi.")).model, "--record", str(file), "Greet me")
    done = cli("run", "-q", "-m", f"replay:{file}", "Greet her")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"retinue: error: replay:{file}: root sent a request that is not recorded: message 2"
        r" (user) is 'Greet her\n\nDirectory: ⟨project⟩\nBudget: 100 tool calls, 200 '…, and"
        r" 'Greet me\n\nDirectory: ⟨project⟩\nBudget: 100 tool calls, 200 t'… in line 4, of root."
        " Replay it on the files that it was recorded with, or record it again.\n"
    )


def test_unwritable_recording_is_an_error(cli: Cli, script: Script, project: Path) -> None:
    model = script("steps: [{say: Hi.}]")
    done = cli("run", "-m", model, "--record", "/nowhere/run.jsonl", "x")
    why = "Cannot record to '/nowhere/run.jsonl': No such file or directory."
    assert done == (2, "", f"retinue: {why}\n")
    done = cli("run", "-m", model, "--record", "run.jsonl", "x")
    assert done.code == 2
    assert "Name a file outside the project, or .retinue/run.jsonl." in done.err
    assert not (project / "run.jsonl").exists()


def test_recording_is_not_written_through_a_link(
    cli: Cli, script: Script, project: Path, tmp_path: Path
) -> None:
    (project / ".retinue").mkdir()
    (project / ".retinue" / "run.jsonl").symlink_to(tmp_path / "planted")
    model = script("steps: [{say: Hi.}]")
    done = cli("run", "-m", model, "--record", ".retinue/run.jsonl", "x")
    assert done.code == 2
    assert "run.jsonl is a symbolic link; remove it, or name another file." in done.err
    assert not (tmp_path / "planted").exists()


def test_full_disk_ends_the_recording_but_not_the_run(cli: Cli, script: Script) -> None:
    done = cli("run", "-q", "-m", script("steps: [{say: Hi.}]"), "--record", "/dev/full", "x")
    assert (done.code, done.out) == (1, "Hi.\n")
    why = (
        "The recording '/dev/full' is incomplete: No space left on device. The run is not affected."
    )
    assert done.err == f"retinue: {why}\n"
