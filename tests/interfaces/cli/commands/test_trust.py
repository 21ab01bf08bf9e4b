"""Folder trust at the command line: the command, and the question at a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest


class Done(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Done]
Script = Callable[[str], str]
HELLO = "steps: [{say: Hello.}]"


@pytest.fixture
def server(project: Path, tmp_path: Path) -> Path:
    """The file that the project's own server makes when it is started."""
    started = tmp_path / "started"
    entry = {"command": "touch", "args": [str(started)], "env": {"KEY": "${TOKEN:-}"}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"toucher": entry}}))
    return started


def test_what_is_trusted_is_shown_listed_and_forgotten(
    cli: Cli, project: Path, server: Path
) -> None:
    (project / "retinue.toml").write_text('model = "openai:m@http://gpu.example.com/v1"')
    done = cli("trust")
    assert done == (
        0,
        f"{project} is trusted. It may use:\n"
        f"  MCP server toucher (.mcp.json): it starts touch {server}, and is given TOKEN\n"
        "  model openai:m@http://gpu.example.com/v1 (retinue.toml): it is sent prompts, and so"
        " your files\n",
        "",
    )
    listed = cli("trust", "--list").out
    assert listed.startswith(f"{project}  2 trusted, ")
    assert cli("trust", "--revoke", str(project)).out == f"{project} is no longer trusted.\n"
    assert cli("trust", "--revoke").out == f"{project} is not trusted.\n"
    assert cli("trust", "--list") == (0, "", "")
    assert not server.exists()


def test_a_project_that_asks_for_nothing(cli: Cli, project: Path) -> None:
    assert cli("trust").out == f"{project} needs no trust.\n"


def test_mistakes(cli: Cli) -> None:
    assert cli("trust", "nowhere").err == "retinue: There is no directory 'nowhere'.\n"
    done = cli("trust", "--list", "--revoke")
    assert done == (2, "", "retinue: --revoke and --list cannot be combined.\n")


def test_where_nobody_can_be_asked_it_is_not_started_and_told_how(
    cli: Cli, script: Script, server: Path
) -> None:
    model = script(HELLO)
    done = cli("run", "-m", model, "x")
    assert (done.code, done.out) == (0, "Hello.\n")
    assert (
        "  root: note: without MCP server toucher: this folder is not trusted; `retinue trust`"
        " allows it\n"
    ) in done.err
    assert not server.exists()
    cli("trust")
    done = cli("run", "-m", model, "x")
    assert (done.code, done.out) == (0, "Hello.\n")
    assert "note: without the MCP server toucher: it ended with exit code 0" in done.err
    assert server.exists()


def test_words_of_a_project_cannot_act_on_the_terminal(cli: Cli, project: Path) -> None:
    entry = {"command": "\x1b[2Jtouch", "args": ["\r\u202e\x9b"]}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"x": entry}}))
    assert cli("trust").out.splitlines()[1] == (
        "  MCP server x (.mcp.json): it starts ?[2Jtouch ???"
    )


# At a terminal


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


@pytest.mark.parametrize(
    ("answer", "starts", "kept"),
    [
        ("y\n", True, "1 trusted"),
        ("n\n", False, ""),
        ("\n", False, ""),
        ("never\n", False, "1 refused"),
    ],
)  # fmt: skip
def test_a_person_is_asked(
    cli: Cli, script: Script, project: Path, server: Path, answer: str, starts: bool, kept: str
) -> None:
    script(HELLO)
    code, printed = asked(answer)
    assert code == 0
    assert f"The project in {project} wants to use:\n" in printed
    assert f"  MCP server toucher (.mcp.json): it starts touch {server}, and is" in printed
    assert "Do you trust it? [y]es, [N]o, ne[v]er: " in printed
    assert server.exists() is starts
    listed = cli("trust", "--list").out
    assert kept in listed
    assert bool(listed) is bool(kept)


def test_who_said_never_is_not_asked_again(script: Script, server: Path) -> None:
    script(HELLO)
    asked("v\n")
    code, printed = asked("")
    assert code == 0
    assert "Hello." in printed
    assert "trust" not in printed


def test_a_person_who_goes_away_stops_the_command(script: Script, server: Path) -> None:
    script(HELLO)
    code, printed = asked("\x04")
    assert code == 130
    assert "Hello." not in printed
    assert not server.exists()
