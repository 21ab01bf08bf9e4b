"""`retinue trust`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli


@pytest.fixture
def server(project: Path, tmp_path: Path) -> Path:
    """The file that the project's own server makes when it is started."""
    started = tmp_path / "started"
    entry = {"command": "touch", "args": [str(started)], "env": {"KEY": "${TOKEN:-}"}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"toucher": entry}}))
    return started


def test_trust_is_granted_listed_and_revoked(cli: Cli, project: Path, server: Path) -> None:
    (project / "retinue.toml").write_text('model = "openai:m@http://gpu.example.com/v1"')
    done = cli("trust")
    assert done == (
        0,
        f"{project} is trusted. It may use:\n"
        f"  MCP server toucher (.mcp.json): it starts touch {server} in the sandbox, without"
        " network, and is given TOKEN\n"
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


def test_project_without_requests_needs_no_trust(cli: Cli, project: Path) -> None:
    assert cli("trust").out == f"{project} needs no trust.\n"


def test_mistakes(cli: Cli) -> None:
    assert cli("trust", "nowhere").err == "retinue: There is no directory 'nowhere'.\n"
    message = "retinue: Only one of --revoke, --list and --journal is possible.\n"
    for pair in (("--list", "--revoke"), ("--list", "--journal"), ("--revoke", "--journal")):
        assert cli("trust", *pair) == (2, "", message)


def test_project_text_has_no_control_characters(cli: Cli, project: Path) -> None:
    entry = {"command": "\x1b[2Jtouch", "args": ["\r\u202e\x9b"]}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"x": entry}}))
    assert cli("trust").out.splitlines()[1] == (
        "  MCP server x (.mcp.json): it starts ?[2Jtouch ??? in the sandbox, without network"
    )


def test_journal_that_the_project_brings(
    cli: Cli, script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = script("steps: [{say: Yes.}]")
    assert cli("run", "Is it so?", "-m", model).out == "Yes.\n"
    run = str(json.loads(cli("runs", "--json").out)["id"])
    monkeypatch.setenv("HOME", str(tmp_path / "another"))
    refusal = (
        f"retinue: Run {run} was not started by you in this directory, so it can be shown and"
        " nothing else; if it is yours (from an earlier version, or a copied project),"
        " `retinue trust --journal` accepts all runs here.\n"
    )
    for command in (("run", "-c", "Go on."), ("run", "-r", run, "Go on."), ("resume", run)):
        done = cli(*command, *(("-m", model) if command[0] == "run" else ()))
        assert (done.code, done.err) == (1, refusal)
    assert cli("undo", run).err == refusal
    for command in (("show", run), ("audit", run), ("diff", run), ("export", run)):
        assert cli(*command).code == 0
    assert (
        cli("trust", "--journal").out == f"1 run of {tmp_path / 'project'} accepted as your own.\n"
    )
    assert cli("run", "-c", "Go on.", "-m", model).code == 0
    assert {json.loads(line)["session"] for line in cli("runs", "--json").out.splitlines()} == {run}


def test_there_is_no_journal_to_accept(cli: Cli, project: Path) -> None:
    assert cli("trust", "--journal").out == f"0 runs of {project} accepted as your own.\n"
    assert not (project / ".retinue").exists()
