"""The question whether to trust a project."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


HELLO = "steps: [{say: Hello.}]"
STARTED = "it ended with exit code 0"


@pytest.fixture
def server(project: Path, tmp_path: Path) -> Path:
    """The file that the project's own server would make outside the sandbox."""
    started = tmp_path / "started"
    entry = {"command": "touch", "args": [str(started)], "env": {"KEY": "${TOKEN:-}"}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"toucher": entry}}))
    return started


def asked(answer: str) -> tuple[int, str]:
    """Run an agent at a terminal where somebody answers; the exit code and what was printed."""
    run = "from retinue.interfaces.cli.main import main; main()"
    argv = [sys.executable, "-c", run, "run", "-m", "scripted:script.yaml", "x"]
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        printed = b""
        while True:
            try:
                data = os.read(ours, 65_536)
            except OSError:  # Linux says so when the last one has closed it.
                break
            printed += data
    os.close(ours)
    return process.returncode, printed.decode().replace("\r\n", "\n")


def test_untrusted_server_is_not_started_without_a_terminal(
    cli: Cli, script: Script, server: Path
) -> None:
    model = script(HELLO)
    done = cli("run", "-m", model, "x")
    assert (done.code, done.out) == (0, "Hello.\n")
    assert (
        "  root: note: without MCP server toucher: this folder is not trusted; `retinue trust`"
        " allows it\n"
    ) in done.err
    cli("trust")
    done = cli("run", "-m", model, "x")
    assert (done.code, done.out) == (0, "Hello.\n")
    assert f"note: without the MCP server toucher: {STARTED}" in done.err
    assert not server.exists()


@pytest.mark.parametrize(
    ("answer", "starts", "kept"),
    [
        ("y\n", True, "1 trusted"),
        ("n\n", False, ""),
        ("\n", False, ""),
        ("never\n", False, "1 refused"),
    ],
)  # fmt: skip
def test_trust_prompt_stores_the_answer(
    cli: Cli, script: Script, project: Path, server: Path, answer: str, starts: bool, kept: str
) -> None:
    script(HELLO)
    code, printed = asked(answer)
    assert code == 0
    assert f"The project in {project} asks to use:\n" in printed
    starting = f"  MCP server toucher (.mcp.json): it starts touch {server} in the sandbox, without"
    assert starting in printed
    assert "Do you trust it? [y]es, [N]o, ne[v]er: " in printed
    assert (STARTED in cli("run", "-m", "scripted:script.yaml", "x").err) is starts
    assert not server.exists()
    listed = cli("trust", "--list").out
    assert kept in listed
    assert bool(listed) is bool(kept)


def test_never_is_remembered(script: Script, server: Path) -> None:
    script(HELLO)
    asked("v\n")
    code, printed = asked("")
    assert code == 0
    assert "Hello." in printed
    assert "trust" not in printed


def test_closed_terminal_stops_the_command(script: Script, server: Path) -> None:
    script(HELLO)
    code, printed = asked("\x04")
    assert code == 130
    assert "Hello." not in printed
    assert not server.exists()


@pytest.mark.parametrize("mode", ["plan", "normal", "auto"])
def test_home_directory_is_refused_without_a_terminal(
    cli: Cli, script: Script, project: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("HOME", str(project))
    model = script(HELLO)
    done = cli("run", "--mode", mode, "-m", model, "x")
    assert done == (
        4,
        "",
        f"retinue: {project} is a home directory: it contains private files, which agents could"
        f" read and change. Work in a folder of it, with -C DIR; or allow it with `retinue trust"
        f" {project}`.\n",
    )
    assert not (project / ".retinue").exists()
    assert cli("trust", str(project)).code == 0
    assert cli("run", "-q", "--mode", mode, "-m", model, "x") == (0, "Hello.\n", "")


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 4)])
def test_home_directory_is_asked_about(
    script: Script, project: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    monkeypatch.setenv("HOME", str(project))
    script(HELLO)
    found, printed = asked(answer)
    assert found == code
    assert f"  directory {project} (a home directory): it contains private files" in printed
    assert "outside the sandbox" not in printed
    assert ("Hello." in printed) is (code == 0)
