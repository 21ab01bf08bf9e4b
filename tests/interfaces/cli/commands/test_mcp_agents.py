"""The real codex, opencode and Claude Code use `retinue mcp`, each with a model on loopback.

`script/services --agents` installs them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from retinue.interfaces.mcp_server.client_config import http_config
from retinue.models.scripted.model import say
from retinue.testing.server import Response, ResponseEnding
from tests.clients import npm
from tests.interfaces.cli.agent_model import SAID, calls_tool
from tests.interfaces.cli.conftest import Serving
from tests.interfaces.cli.mcp_client import READS
from tests.interfaces.cli.rpc_client import RETINUE

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Program, Script, Serve

pytestmark = pytest.mark.services

AGENTS = ("codex", "opencode", "claude")
LOOK = {"task": "Look", "role": "researcher"}
LONG_S = 70
"""Longer than codex waits by default."""


class Agent:
    """Another agent, configured by what `retinue mcp --print-config` prints."""

    def __init__(self, name: str, url: str, project: Path, config: str) -> None:
        self._project = project
        # opencode believes PWD, and not where it was started.
        self.variables = {"HOME": str(project.parent), "PWD": str(project)}
        program = npm.program(name, agent=True)
        match name:
            case "codex":
                home = project.parent / "codex"
                home.mkdir()
                provider = f'name = "any"\nbase_url = "{url}"\nwire_api = "responses"\n'
                (home / "config.toml").write_text(
                    'model = "any"\nmodel_provider = "any"\napproval_policy = "never"\n'
                    f'sandbox_mode = "danger-full-access"\n'
                    f"[model_providers.any]\n{provider}{config}\n"
                )
                self.variables["CODEX_HOME"] = str(home)
                self.command = [program, "exec", "--json", "--skip-git-repo-check", "Delegate"]
            case "opencode":
                options = {"baseURL": url, "apiKey": "x"}
                provider_of_models = {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": options,
                    "models": {"any": {"name": "any"}},
                }
                settings = _json(config) | {"provider": {"any": provider_of_models}}
                (project / "opencode.json").write_text(json.dumps(settings))
                self.command = [program, "run", "-m", "any/any", "--format", "json", "Delegate"]
            case "claude":
                (project / "mcp.json").write_text(json.dumps(_json(config)))
                self.variables |= {
                    "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
                    "ANTHROPIC_API_KEY": "x",
                    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                }
                self.command = [
                    *(program, "-p", "Delegate", "--strict-mcp-config", "--mcp-config", "mcp.json"),
                    *("--allowedTools", "mcp__retinue__delegate,mcp__retinue__fan_out"),
                ]

    def run(self) -> str:
        done = npm.run(*self.command, cwd=self._project, variables=self.variables)
        return done.stdout + done.stderr

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            cwd=self._project,
            env=npm.environment(**self.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _json(config: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(config.partition("\n")[2])
    return found


@pytest.fixture(params=AGENTS)
def agent(
    request: pytest.FixtureRequest, project: Path
) -> Iterator[Callable[[str, dict[str, Any], str], Agent]]:
    """Starts an agent whose model calls this tool once; retinue's children have another model."""

    stack = ExitStack()

    def start(tool: str, arguments: dict[str, Any], model: str) -> Agent:
        printed = subprocess.run(
            [sys.executable, "-c", RETINUE, "mcp", "-m", model, "--print-config", request.param],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        its_model = stack.enter_context(Serving(calls_tool(tool, arguments), {}))
        return Agent(request.param, its_model.url, project, printed)

    with stack:
        yield start


StartAgent = Callable[[str, dict[str, Any], str], Agent]


def test_first_turn_delegates_and_gets_the_answer(agent: StartAgent, script: Script) -> None:
    out = agent("delegate", LOOK, script(READS)).run()
    assert SAID in out, out
    assert "There is one file." in out


def test_fan_out_of_five_with_one_failure(agent: StartAgent, script: Script) -> None:
    tasks = [LOOK | {"task": task} for task in ("one", "two", "task bad", "four", "five")]
    out = agent("fan_out", {"tasks": tasks}, script(READS)).run()
    # Claude Code shows its model the structured content.
    shown = "structured" if '\\"failed\\":1' in out else "text"
    assert shown == "structured" or "4 of 5 tasks are done." in out, out
    assert out.count("There is one file.") >= 4


def test_interrupted_agent_leaves_no_process_and_an_ended_run(
    agent: StartAgent, serve: Serve, cli: Cli
) -> None:
    model = serve(Response(ending=ResponseEnding.HANG))
    process = agent("delegate", LOOK, model.model).start()
    model.received(1)
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=60)
    run = json.loads(cli("runs", "--json").out.splitlines()[0])
    show = cli("show", run["id"]).out
    # Codex cancels the call; the others end the server, which suspends the run.
    assert "cancelled by the MCP client" in show or run["status"] is None
    deadline = time.monotonic() + 30
    while left := _processes_of("retinue", "mcp", model.model):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)  # The server gives its agents a moment, which outlives some clients.


@pytest.mark.parametrize("name", AGENTS)
def test_configuration_for_http_connects(
    name: str, program: Program, script: Script, project: Path
) -> None:
    command = ("mcp", "--http", "0", "-m", script(READS))
    with program(*command) as server, Serving(calls_tool("delegate", LOOK), {}) as model:
        try:
            assert server.stdout is not None
            url, token = (server.stdout.readline().decode().split()[1] for _ in range(2))
            out = Agent(name, model.url, project, http_config(name, url, token)).run()
        finally:
            server.terminate()
    assert "There is one file." in out, out


@pytest.mark.slow
def test_long_call_is_not_dropped(agent: StartAgent, serve: Serve) -> None:
    slow = msgspec.structs.replace(say("It took a while."), delay_s=LONG_S)
    out = agent("delegate", LOOK, serve(slow).model).run()
    assert "It took a while." in out, out


def _processes_of(*words: str) -> list[str]:
    lines = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words):
            lines.append(line)
    return lines
