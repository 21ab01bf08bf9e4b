"""`retinue trust`."""

from __future__ import annotations

import json
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


def test_project_without_requests_needs_no_trust(cli: Cli, project: Path) -> None:
    assert cli("trust").out == f"{project} needs no trust.\n"


def test_mistakes(cli: Cli) -> None:
    assert cli("trust", "nowhere").err == "retinue: There is no directory 'nowhere'.\n"
    done = cli("trust", "--list", "--revoke")
    assert done == (2, "", "retinue: --revoke and --list cannot be combined.\n")


def test_project_text_has_no_control_characters(cli: Cli, project: Path) -> None:
    entry = {"command": "\x1b[2Jtouch", "args": ["\r\u202e\x9b"]}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"x": entry}}))
    assert cli("trust").out.splitlines()[1] == (
        "  MCP server x (.mcp.json): it starts ?[2Jtouch ???"
    )
