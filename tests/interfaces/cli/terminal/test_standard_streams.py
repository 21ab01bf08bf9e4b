"""Closed standard streams and full disks do not fail the work."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script

RETINUE = "from retinue.interfaces.cli.main import main; main()"
LOST = "retinue: The output could not be written: No space left on device.\n"


def run_redirected(redirection: str, *argv: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f'"$@" {redirection}', "bash", sys.executable, "-c", RETINUE, *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("command", [("run", "x"), ("fan-out", "x", "y"), ("run", "--json", "x")])
@pytest.mark.parametrize(
    ("redirection", "code"),
    [
        ("<&-", 0),
        (">&-", 0),
        ("2>&-", 0),
        ("<&- >&- 2>&-", 0),
        (">/dev/full", 1),
        ("2>/dev/full", 0),
    ],
)
def test_work_is_finished_whatever_the_streams(
    cli: Cli, script: Script, redirection: str, code: int, command: tuple[str, ...]
) -> None:
    model = script("rules: [{match: '', steps: [{call: list_dir}, {say: Hello.}]}]")
    done = run_redirected(redirection, *command, "-m", model)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if "2>" not in redirection:
        assert done.stderr.endswith(LOST) is (code == 1)
    if ">&-" not in redirection.split("2")[0] and code == 0:
        assert "Hello." in done.stdout
    (row,) = cli("runs").out.splitlines()
    assert " completed " in row


@pytest.mark.parametrize("command", [("run", "x"), ("fan-out", "x", "y"), ("run", "--json", "x")])
def test_work_is_finished_when_nobody_reads_its_progress(
    cli: Cli, script: Script, command: tuple[str, ...]
) -> None:
    """`retinue run x 2>&1 | head -1`: the reader of the pipe is gone before the run has ended."""
    model = script("rules: [{match: '', steps: [{call: list_dir}, {say: Hello.}]}]")
    reader, pipe = os.pipe()
    os.close(reader)
    try:
        argv = [sys.executable, "-c", RETINUE, *command, "-m", model]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=pipe, timeout=120, check=False)
    finally:
        os.close(pipe)
    assert (done.returncode, b"Hello." in done.stdout) == (0, True)
    (row,) = cli("runs").out.splitlines()
    assert " completed " in row


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", ">/dev/full"])
def test_listing_with_closed_streams(cli: Cli, script: Script, redirection: str) -> None:
    cli("run", "-m", script("steps: [{say: Hello.}]"), "x")
    done = run_redirected(redirection, "runs")
    assert done.returncode == (redirection == ">/dev/full")
    assert done.stderr in ("", LOST)


def test_error_keeps_its_exit_code_on_a_full_disk() -> None:
    assert run_redirected(">/dev/full 2>&-", "run", "-m", "nothing:x", "y").returncode == 2
