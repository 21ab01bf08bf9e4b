"""What is piped to `retinue run`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Serve

from retinue.models.scripted.model import say

RETINUE = [sys.executable, "-c", "from retinue.interfaces.cli.main import main; main()"]


@pytest.mark.parametrize("given", ["pipe", "file"])
def test_a_pipe_goes_along_with_the_task(serve: Serve, project: Path, given: str) -> None:
    server = serve(say("Two lines."))
    command = [*RETINUE, "run", "-q", "-m", server.model, "How long is this log?"]
    (project / "log").write_bytes(b"one\ntwo \xff\n")
    with (project / "log").open("rb") as file:
        if given == "file":
            done = subprocess.run(command, stdin=file, capture_output=True, cwd=project)
        else:
            done = subprocess.run(command, input=file.read(), capture_output=True, cwd=project)
    assert (done.returncode, done.stdout) == (0, b"Two lines.\n"), done.stderr
    (request,) = server.requests
    assert "How long is this log?" in str(request)
    assert "Text from standard input:" in str(request)
    assert "\\ntwo" in str(request)


def test_the_task_can_be_piped(serve: Serve, project: Path) -> None:
    server = serve(say("Done."))
    command = [*RETINUE, "run", "-q", "-m", server.model, "-"]
    done = subprocess.run(command, input=b"Count to three.\n", capture_output=True, cwd=project)
    assert (done.returncode, done.stdout) == (0, b"Done.\n"), done.stderr
    assert "Count to three." in str(server.requests[0])
    done = subprocess.run(command, input=b"", capture_output=True, cwd=project)
    assert (done.returncode, done.stderr.decode()) == (
        2,
        "retinue: The task - is read from standard input, but that is empty.\n",
    )


def test_piped_text_attaches_no_file(serve: Serve, project: Path) -> None:
    (project / "a.py").write_text("SECRET = 1\n")
    server = serve(say("Done."))
    command = [*RETINUE, "run", "-q", "-m", server.model, "-"]
    done = subprocess.run(command, input=b"See @a.py.\n", capture_output=True, cwd=project)
    assert (done.returncode, done.stdout) == (0, b"Done.\n"), done.stderr
    assert "SECRET" not in str(server.requests[0])
