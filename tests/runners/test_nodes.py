"""`retinue nodes`, with and without a run at work, on processes of this machine and on Ray."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.config.environment import Environment
from retinue.domain.events import AgentPlaced, Event
from retinue.models.scripted.model import say
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Response, streamed
from retinue.version import VERSION
from tests.runners.ray_nodes import RayNodes

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
PROGRAM = "from retinue.interfaces.cli.main import main; main()"


@pytest.fixture
def nodes_command(
    new_project: Any, environment: Environment
) -> tuple[Path, Callable[..., subprocess.CompletedProcess[str]]]:
    """A project, and `retinue nodes` in it."""
    project = new_project("project")

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, "nodes", "-C", str(project), *arguments],
            env={**environment.variables, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return project, run


def test_without_a_cluster(nodes_command: Any) -> None:
    _, run = nodes_command
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "retinue: No cluster is named: use --cluster auto, --cluster HOST:PORT of the head, or"
        " `address` in [cluster] of your settings.\n"
    )


def test_this_machine_before_any_run(nodes_command: Any, environment: Environment) -> None:
    project, run = nodes_command
    environment.user_settings_file.write_text('[cluster]\naddress = "local:4"\n')
    done = run("--json")
    assert (done.returncode, done.stderr) == (0, "")
    (node,) = map(json.loads, done.stdout.splitlines())
    assert node["name"] == "this machine"
    assert node["takes_children"] is True
    assert node["shares_disk"] is True
    assert node["retinue_version"] == VERSION
    assert node["cpus"] >= 1
    assert node["children"] == []
    assert not (project / ".retinue").exists(), "to look creates nothing"


def test_a_machine_without_a_sandbox(nodes_command: Any, tmp_path: Path) -> None:
    """Shell commands are off in the settings, so its host offers none."""
    project, run = nodes_command
    (project / "retinue.toml").write_text("shell = false\n")
    done = run("--cluster", "local:1")
    assert done.returncode == 0
    assert "takes no commands: it has no sandbox" in done.stdout


async def test_children_of_a_run_at_work(
    nodes_command: Any, environment: Environment, open_project: Opened
) -> None:
    project, run = nodes_command
    gate, placed = asyncio.Event(), asyncio.Event()

    def note(event: Event) -> None:
        if isinstance(event.fact, AgentPlaced):
            placed.set()

    async with (
        ModelServer(lambda _: Response(body=streamed(say("Read.")).body, gate=gate)) as server,
        open_project(
            project,
            model=f"openai:any@{server.base_url}",
            environment=environment,
            cluster="local:2",
            on_event=note,
        ) as rt,
    ):
        job = await rt.start("researcher", "Read.")
        await placed.wait()
        await server.received()
        during = await asyncio.to_thread(run, "--cluster", "local:2")
        gate.set()
        result = await job.result()
        after = await asyncio.to_thread(run, "--cluster", "local:2", "--json")
    assert f"root/researcher.1 of run {result.run_id} is on this machine (a1)\n" in during.stdout
    assert json.loads(after.stdout)["children"] == []


@pytest.mark.services
@pytest.mark.xdist_group("ray")
def test_nodes_of_a_ray_cluster(nodes_command: Any, nodes: RayNodes) -> None:
    """The head takes no work; hosts of the others are asked, and end."""
    project, run = nodes_command
    (project / ".retinue").mkdir()
    done = run("--cluster", nodes.address, "--json")
    assert done.stderr == ""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    takers = [node for node in found if node["takes_children"]]
    assert len(takers) == 2
    assert {node["retinue_version"] for node in takers} == {VERSION}
    problems = [node["problem"] for node in found if not node["takes_children"]]
    assert problems == ["has no CPU, so it takes no children"]
    assert nodes.host_pids() == []
