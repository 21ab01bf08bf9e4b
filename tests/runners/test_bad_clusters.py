"""Clusters that cannot be used: each is refused with one message, before any work."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import AgentPlaced, Event
from retinue.models.scripted.model import say
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Received, Response, streamed
from retinue.version import VERSION
from tests.runners.ray_nodes import RayNodes, is_installed, ray_nodes

PROGRAM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from retinue.interfaces.cli.main import main
main()
"""
Refused = Callable[..., str]


@pytest.fixture
def alone() -> list[str]:
    """A command that runs another one where it sees no other processes."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if os.geteuid():
        unshare.append("--map-root-user")
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no pid namespaces here")
    return unshare


@pytest.fixture
def retinue_command(
    tmp_path: Path, new_project: Callable[[str], Path], environment: Environment
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `retinue` in a project, with modules in `tmp_path / "modules"` before all others."""
    project, modules = new_project("project"), tmp_path / "modules"
    modules.mkdir()

    def run(
        *arguments: str, before: Sequence[str] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*before, sys.executable, "-c", PROGRAM, str(modules), *arguments],
            cwd=project,
            env={**environment.variables, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def refused(retinue_command: Callable[..., subprocess.CompletedProcess[str]]) -> Refused:
    """Starts a run on a cluster; returns its message."""

    def run(cluster: str, code: int = 1, before: Sequence[str] = (), **variables: str) -> str:
        arguments = ("spawn", "researcher", "Read.", "-m", "openai:any@http://127.0.0.1:9/v1")
        done = retinue_command(*arguments, "--cluster", cluster, before=before, **variables)
        assert (done.returncode, done.stdout) == (code, "")
        *waits, line = done.stderr.splitlines()
        assert all(one.startswith(("  joining the Ray ", "  starting ")) for one in waits), waits
        return line

    return run


def test_a_version_of_ray_that_is_too_old(refused: Refused, tmp_path: Path) -> None:
    """Only its name and version are looked at, so this needs no Ray."""
    (tmp_path / "modules" / "ray").mkdir()
    (tmp_path / "modules" / "ray" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    information = tmp_path / "modules" / "ray-2.9.3.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.9.3\n")
    assert refused("auto", code=2) == (
        "retinue: Ray 2.9.3 is installed, and retinue needs 2.52 or newer, before 3:"
        " pip install 'retinue[ray]'."
    )


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that answers no more connections: its queue is full."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(server.getsockname())
            waiting.append(one)
        yield server.getsockname()[1]
        for one in waiting:
            one.close()


@pytest.mark.services
@pytest.mark.xdist_group("ray")
@pytest.mark.skipif(not is_installed, reason="Ray is not installed")
class TestAddresses:
    def test_nothing_listens(self, refused: Refused) -> None:
        with socket.socket() as bound:  # It does not listen, and nobody else can.
            bound.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{bound.getsockname()[1]}"
            assert refused(address) == (
                f"retinue: No Ray cluster runs at {address}: the connection was refused."
            )

    def test_nothing_answers(self, refused: Refused, silent_port: int) -> None:
        address = f"127.0.0.1:{silent_port}"
        assert refused(address) == f"retinue: Nothing answers at {address}: timed out."

    @pytest.mark.slow
    def test_something_else_listens(self, refused: Refused) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            assert refused(address) == (
                f"retinue: What listens at {address} has not answered like Ray for 45 s."
            )

    def test_a_name_that_does_not_exist(self, refused: Refused) -> None:
        line = refused("head.invalid:6379")
        assert line.startswith("retinue: Nothing answers at head.invalid:6379: ")

    def test_this_machine_has_joined_none(
        self, refused: Refused, alone: Sequence[str], tmp_path: Path
    ) -> None:
        """Ray also looks for a head among the processes: other tests may have one."""
        assert refused("auto", before=alone, RAY_TMPDIR=str(tmp_path)) == (
            "retinue: No Ray cluster runs on this machine: start one with `ray start --head`, or"
            " name the head of one that this machine has joined, as in --cluster 10.0.0.1:6379."
        )

    def test_another_version_of_ray(
        self, refused: Refused, nodes: RayNodes, tmp_path: Path
    ) -> None:
        modules = tmp_path / "modules"
        (modules / "ray.py").write_text(
            "import sys\n"
            f"sys.path.remove({str(modules)!r}); del sys.modules['ray']\n"
            "import ray\n"
            "ray.__version__ = '2.53.1'\n"
        )
        line = refused(nodes.address)
        start = f"retinue: The Ray cluster at {nodes.address} has other versions. "
        assert line.startswith(start)
        assert "2.53.1" in line


@pytest.fixture
def node_with(nodes: RayNodes, environment: Environment) -> Iterator[Callable[[str, str], None]]:
    """Starts a node with another file in its `retinue` package. The settings choose it."""
    started = []
    folder = nodes.folder / "odd"

    def start(file: str, text: str) -> None:
        package = folder / "retinue"
        package.mkdir(parents=True)
        real = Path(retinue.__file__).parent
        (package / "__init__.py").write_text(f"__path__ = [{str(package)!r}, {str(real)!r}]\n")
        (package / file).write_text(text)
        variables = {"PYTHONPATH": str(package.parent)}
        started.append(nodes.add(labels={"kind": "odd"}, env_vars=variables))
        environment.user_settings_file.write_text('[cluster.labels]\nkind = "odd"\n')

    yield start
    for raylet in started:
        nodes.remove(raylet, graceful=True)
    shutil.rmtree(folder)


@pytest.mark.services
@pytest.mark.xdist_group("ray")
class TestNodes:
    def test_another_version_of_retinue(
        self,
        node_with: Callable[[str, str], None],
        refused: Refused,
        retinue_command: Callable[..., subprocess.CompletedProcess[str]],
        nodes: RayNodes,
    ) -> None:
        node_with("version.py", "VERSION = '0.0.1'\n")
        line = refused(nodes.address)
        assert line.startswith("retinue: No host could be started: ray-1@")
        why = f"has retinue 0.0.1, and the run {VERSION}; install the same"
        assert line.endswith(f" {why}.")
        listed = retinue_command("nodes", "--cluster", nodes.address, "--json")
        assert listed.returncode == 1
        assert why in [json.loads(one)["problem"] for one in listed.stdout.splitlines()]

    def test_no_retinue(
        self, node_with: Callable[[str, str], None], refused: Refused, nodes: RayNodes
    ) -> None:
        node_with("__init__.py", "raise ImportError('not here')\n")
        line = refused(nodes.address)
        assert f" has no retinue for {os.path.realpath(sys.prefix)}" in line
        assert line.endswith(f"(not here); install {VERSION} there.")

    async def test_no_sandbox(
        self,
        node_with: Callable[[str, str], None],
        retinue_command: Callable[..., subprocess.CompletedProcess[str]],
        new_project: Callable[[str], Path],
        environment: Environment,
        open_project: Callable[..., AbstractAsyncContextManager[Runtime]],
        nodes: RayNodes,
    ) -> None:
        """It reads, and whoever runs commands stays in the process of the run."""
        real = Path(retinue.__file__).parent / "agent_setup.py"
        node_with(
            "agent_setup.py",
            f"exec(open({str(real)!r}).read())\nasync def find_sandbox_here(*_, **__): pass\n",
        )
        seen: list[Event] = []
        async with (
            ModelServer(lambda _: streamed(say("Done."))) as server,
            open_project(
                new_project("sandbox"),
                model=f"openai:any@{server.base_url}",
                environment=environment,
                cluster=nodes.address,
                mode="auto",
                on_event=seen.append,
            ) as rt,
        ):
            for role in ("researcher", "tester"):
                assert (await rt.spawn(role, "Look.")).ok
        reads, tests = [event.fact for event in seen if isinstance(event.fact, AgentPlaced)]
        assert reads.host.startswith("ray-1@")
        assert tests.reason == f"runs here: {reads.host} has no sandbox, so it takes no commands"
        listed = await asyncio.to_thread(retinue_command, "nodes", "--cluster", nodes.address)
        assert "takes no commands: it has no sandbox" in listed.stdout


@pytest.mark.services
@pytest.mark.xdist_group("ray")
@pytest.mark.skipif(not is_installed, reason="Ray is not installed")
async def test_a_lost_head(
    new_project: Callable[[str], Path],
    environment: Environment,
    open_project: Callable[..., AbstractAsyncContextManager[Runtime]],
) -> None:
    """Ray ends its own processes then. The child waits, and goes on without the cluster."""
    quickly = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3"}
    gate, waits = asyncio.Event(), asyncio.Event()
    project, seen = new_project("head"), list[Event]()

    def note(event: Event) -> None:
        seen.append(event)
        if isinstance(fact := event.fact, AgentPlaced) and fact.reason.startswith("waits"):
            waits.set()

    async def suspend_without_head(nodes: RayNodes, server: ModelServer, options: Any) -> None:
        async with open_project(project, cluster=nodes.address, **options) as rt:
            work = asyncio.create_task(rt.spawn("researcher", "Read."))
            await server.received()
            os.kill(nodes.gcs_pid, signal.SIGKILL)
            await waits.wait()
            idle = asyncio.Event()
            rt.suspend("the head is lost", idle.set)
            await idle.wait()
            work.cancel()
            await work

    def answer(_: Received) -> Response:
        return Response(body=streamed(say("Read.")).body, gate=gate)

    with ray_nodes(1, RAY_gcs_rpc_server_reconnect_timeout_s="3") as nodes:
        async with ModelServer(answer) as server:
            options: dict[str, Any] = {
                "model": f"openai:any@{server.base_url}",
                "environment": Environment(variables={**environment.variables, **quickly}),
                "on_event": note,
            }
            with pytest.raises(asyncio.CancelledError):
                await suspend_without_head(nodes, server, options)
            gate.set()
            async with open_project(project, **options) as rt:
                result = await rt.resume(seen[0].run_id)
    assert [one.response for one in result.results] == ["Read."]
    placed = [event.fact for event in seen if isinstance(event.fact, AgentPlaced)]
    assert placed[0].host.startswith("ray-1@")
    assert placed[1].reason == (
        f"waits for a host: {placed[0].host} was lost: the head of the Ray cluster does not answer,"
        " so Ray has ended its driver"
    )
