"""acpx, a client of the Agent Client Protocol for the command line, drives `retinue acp`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients import npm
from tests.interfaces.cli.commands.test_acp import DELEGATES
from tests.interfaces.cli.rpc_client import RETINUE

pytestmark = pytest.mark.services


class Acpx:
    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "script.yaml").write_text(DELEGATES)
        subprocess.run(["git", "init", "-q"], cwd=self.project, check=True)
        self._program = npm.program("acpx")
        self._variables = {"HOME": str(folder)}
        agent = folder / "agent"
        agent.write_text(
            f'#!/bin/sh\nexec {sys.executable} -c "{RETINUE}" acp -m scripted:script.yaml\n'
        )
        agent.chmod(0o755)
        self._agent = str(agent)

    def __call__(self, *arguments: str, approve: str = "--approve-all") -> list[dict[str, Any]]:
        """Run acpx, and return the messages of the protocol."""
        options = ("--agent", self._agent, "--cwd", str(self.project), approve, "--format", "json")
        done = npm.run(
            self._program, *options, *arguments, cwd=self.project, variables=self._variables
        )
        assert done.returncode in (0, 5), done.stdout + done.stderr  # 5: something was denied
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture
def acpx(tmp_path: Path) -> Acpx:
    return Acpx(tmp_path)


def _found(messages: list[dict[str, Any]], wanted: Callable[[Any], bool]) -> list[Any]:
    """Values anywhere in the messages."""
    found: list[Any] = []

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            if wanted(value):
                found.append(value)
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                visit(item)

    visit(messages)
    return found


def test_child_diff_and_approval(acpx: Acpx) -> None:
    messages = acpx("exec", "Delegate it")
    children = _found(messages, lambda value: "retinue" in (value.get("_meta") or {}))
    assert children[-1]["status"] == "completed"
    diffs = _found(messages, lambda value: value.get("type") == "diff")
    assert any(diff["newText"] == "hi\n" for diff in diffs)
    assert (acpx.project / "a.txt").read_text() == "hi\n"


def test_denied_change_leaves_the_file(acpx: Acpx) -> None:
    (acpx.project / "a.txt").write_text("old\n")
    messages = acpx("exec", "Delegate it", approve="--deny-all")
    assert _found(messages, lambda value: value.get("stopReason") == "end_turn")
    assert (acpx.project / "a.txt").read_text() == "old\n"


def test_sessions_continue_and_change_their_mode(acpx: Acpx) -> None:
    acpx("sessions", "new")
    acpx("set-mode", "plan")
    acpx("prompt", "Delegate it")
    assert not (acpx.project / "a.txt").exists()
    acpx("sessions", "close")  # Ends the process that acpx keeps for the session.
