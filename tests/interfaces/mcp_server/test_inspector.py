"""The command line of the MCP inspector, in its three eras, over both transports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.interfaces.mcp_server.tool_list import TOOLS
from tests.clients import npm
from tests.interfaces.cli.mcp_client import READS
from tests.interfaces.cli.rpc_client import RETINUE

pytestmark = pytest.mark.services
ERAS = ("legacy", "modern", "auto")


def test_inspector_lists_and_calls(tmp_path: Path) -> None:
    inspector = npm.program("mcp-inspector")
    project = tmp_path / "project"
    project.mkdir()
    (project / "script.yaml").write_text(READS)
    retinue = [sys.executable, "-c", RETINUE, "mcp", "-m", "scripted:script.yaml"]
    variables = {"HOME": str(tmp_path)}
    with subprocess.Popen(
        [*retinue, "--http", "0"],
        cwd=project,
        env=npm.environment(**variables),
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[1]
            token = server.stdout.readline().split()[1]
            over_http = ["--transport", "http", "--header", f"Authorization: Bearer {token}"]
            (tmp_path / "retinue").write_text(
                f'#!/bin/sh\nexec {sys.executable} -c "{RETINUE}" "$@"\n'
            )
            (tmp_path / "retinue").chmod(0o755)
            over_stdio = [str(tmp_path / "retinue"), *retinue[3:]]
            for target in ([url, *over_http], over_stdio):
                for era in ERAS:
                    command = [inspector, "--cli", *target, "--protocol-era", era]
                    listed = npm.run(
                        *command, "--method", "tools/list", cwd=project, variables=variables
                    )
                    assert listed.returncode == 0, listed.stderr
                    found = {tool["name"] for tool in json.loads(listed.stdout)["tools"]}
                    assert found == set(TOOLS), (target, era)
                    arguments = json.dumps({"task": f"Look, {era}", "role": "researcher"})
                    called = npm.run(
                        *(*command, "--method", "tools/call", "--tool-name", "delegate"),
                        *("--tool-args-json", arguments),
                        cwd=project,
                        variables=variables,
                    )
                    assert called.returncode == 0, called.stdout
                    assert "There is one file." in called.stdout, (target, era)
        finally:
            server.terminate()
