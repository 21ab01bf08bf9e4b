"""Fixtures: runs that several commands are tried on, and clients of `retinue mcp`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interfaces.cli.mcp_client import Client, HttpServer

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Program, Script


WRITES = """
rules:
  - match: task bad
    steps:
      - {call: write_file, args: {path: bad.txt, content: "b\\n"}}
      - {fail: refused, message: No.}
  - match: ""
    steps: [{call: write_file, args: {path: a.txt, content: "2\\n"}}, {say: Done.}]
"""


@pytest.fixture
def run(cli: Cli, script: Script, project: Path) -> str:
    """A run with a child that has written, and one that failed."""
    (project / "a.txt").write_text("1\n")
    subprocess.run(["git", "init", "-q"], check=True)
    done = cli(
        "fan-out",
        "-m",
        script(WRITES),
        "--mode",
        "auto",
        "executor: task good",
        "executor: task bad",
    )
    assert done.code == 1, done.err
    return str(json.loads(cli("runs", "--json").out.splitlines()[0])["id"])


TWO_TASKS = """
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
    done = cli("fan-out", "--json", "-m", script(TWO_TASKS), "task good", "task bad")
    run_id = json.loads(done.out.splitlines()[0])["run_id"]
    assert isinstance(run_id, str)
    return run_id


LOOK = """
rules:
  - match: ""
    steps:
      - call: list_dir
      - say: There is one file.
"""


@pytest.fixture
def looks(script: Script) -> str:
    """A model that lists the directory once."""
    return script(LOOK)


WRITE = """
steps:
  - call: write_file
    args: {path: a.txt, content: "hi\\n"}
  - say: Wrote it.
"""


@pytest.fixture
def writes(script: Script) -> str:
    """A model that writes a file, once."""
    return script(WRITE)


ALWAYS = """
rules:
  - match: ""
    steps: [{call: write_file, args: {path: a.txt, content: "hi\\n"}}, {say: Wrote it.}]
"""


@pytest.fixture
def always_writes(script: Script) -> str:
    """A model that writes a file for everybody who asks."""
    return script(ALWAYS)


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Starts `retinue mcp` with these arguments, and connects to it."""
    with ExitStack() as stack:

        def start(*argv: str) -> Client:
            client = Client(*argv)
            stack.callback(client.kill)
            return client

        yield start


@pytest.fixture
def serve_http(program: Program) -> Iterator[Callable[..., HttpServer]]:
    """Starts `retinue mcp --http` with these arguments."""
    pytest.importorskip("mcp")
    with ExitStack() as stack:

        def start(*argv: str) -> HttpServer:
            process = stack.enter_context(program("mcp", "--http", "0", *argv))
            stack.callback(process.kill)
            return HttpServer(process)

        yield start


@pytest.fixture
def repository(project: Path) -> Path:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    return project
