"""Runs one workload with the children in the process of the run, and with them on hosts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from retinue.config.environment import Environment
from retinue.domain.events import Event
from retinue.models.scripted.model import ScriptedReply
from retinue.project import open_journal
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Received, Response
from tests.canonical_journal import canonical_journal
from tests.runners.host_processes import host_pids
from tests.runners.ray_nodes import RAY, RayNodes, is_installed, ray_nodes

# So that an executor has children in every way.
SETTINGS = """
[roles.executor]
tools = ["list_dir", "read_file", "write_file", "run_command", "spawn_await", "delegate_task"]
"""
Script = dict[str, Sequence[ScriptedReply | Response]]
# Durations, the start of the run's id, and numbers of events, which follow each placement too.
VOLATILE = re.compile(r"\b\d+\.\d+ ?s\b|\brun \w{4}…|\"request\":\d+")


# Runs Python, but hosts in mounts of their own.
OTHER_DISK = """#!/bin/sh
case "$*" in
*host_program*) ;;
*) exec {python} "$@" ;;
esac
exec {unshare} --mount --propagation private /bin/sh -c '
mount {mount} {hidden} && exec {python} "$@"' host "$@"
"""


class Scripted:
    """A model server that answers each agent by the words of its task, one reply per turn."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._failed: set[tuple[str, int]] = set()
        self.on_request: Callable[[], None] = lambda: None

    def __call__(self, request: Received) -> ScriptedReply | Response:
        self.on_request()
        messages = request.json["messages"]
        opening = msgspec.json.encode(messages[:2]).decode()
        turn = sum(message["role"] == "assistant" for message in messages)
        word = next(word for word in self._script if word in opening)
        steps = self._script[word]
        step: ScriptedReply | Response = steps[turn]
        if isinstance(step, Response) and (word, turn) not in self._failed:
            self._failed.add((word, turn))  # Only the first try fails.
            return step
        return steps[turn + 1] if isinstance(step, Response) else step


class Course:
    """What one run did: its events in canonical order, without addresses and durations."""

    def __init__(self, events: Sequence[Event], port: int) -> None:
        self.events = events
        lines = (msgspec.json.encode(fact).decode() for fact in canonical_journal(events))
        self.lines = [VOLATILE.sub("-", line.replace(f":{port}/", ":PORT/")) for line in lines]

    @property
    def hosts(self) -> list[str]:
        """The kind of the host of each agent, or why it has none, in the order of the agents."""
        placed = [event for event in self.events if event.type == "agent.placed"]
        facts: list[Any] = [event.fact for event in placed]
        return [fact.host.partition("-")[0] or fact.reason for fact in facts]


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """A Ray cluster with two nodes, which are there again after each test.

    As nodes on other machines do, they do not see the files of the tests.
    """
    if not is_installed:
        pytest.skip("Ray is not installed; script/services installs it")
    with ray_nodes(2, hidden=tmp_path_factory.getbasetemp()) as found:
        yield found


class Place(NamedTuple):
    """Two hosts, their processes, and those that end one of them if they are killed."""

    cluster: str
    hosts: Callable[[int], list[int]]
    """The hosts that a process has started."""
    victims: Callable[[], list[int]]


@pytest.fixture(params=["same disk", "other disk", pytest.param("ray", marks=RAY)])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "ray":
        nodes: RayNodes = request.getfixturevalue("nodes")
        return Place(nodes.address, lambda _: nodes.host_pids(), nodes.victims)
    if request.param == "other disk":
        request.getfixturevalue("other_disk")()
    return Place("local:2", host_pids, host_pids)


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """On the nodes of Ray it has the same path, so that prompts are the same."""
    if request.node.get_closest_marker("xdist_group") is None:
        return tmp_path / "home"
    home: Path = request.getfixturevalue("nodes").home
    for entry in home.iterdir():
        shutil.rmtree(entry)
    return home


@pytest.fixture
def environment(home: Path) -> Environment:
    settings = home / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(SETTINGS)
    return Environment(variables={"HOME": str(home), "PATH": os.environ["PATH"]})


@pytest.fixture
def other_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Starts hosts that see another folder where this test has its files.

    It is the same for all hosts, unless it has a size.
    """
    unshare = ["unshare"] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
    if subprocess.run([*unshare, "--mount", "true"], check=False).returncode:
        pytest.skip("no mount namespaces here")

    def start_hosts_there(size: str = "") -> None:
        program = tmp_path.with_name(f"{tmp_path.name}-python")
        other = tmp_path.with_name(f"{tmp_path.name}-other")
        other.mkdir(exist_ok=True)
        program.write_text(
            OTHER_DISK.format(
                python=shlex.quote(sys.executable),
                unshare=" ".join(unshare),
                mount=f"-t tmpfs -o size={size} tmpfs" if size else f"--bind {other}",
                hidden=shlex.quote(str(tmp_path)),
            )
        )
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return start_hosts_there


@pytest.fixture
def new_project(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a repository with one file."""

    def make(name: str) -> Path:
        project = tmp_path / name / "project"
        project.mkdir(parents=True)
        (project / "a.txt").write_text("hello\n")
        subprocess.run(["git", "init", "-q"], cwd=project, check=True)
        return project

    return make


@pytest.fixture
def course(
    new_project: Callable[[str], Path],
    environment: Environment,
    open_project: Callable[..., AbstractAsyncContextManager[Runtime]],
) -> Callable[..., Any]:
    """Runs `work` in a project of its own; returns its course and the files afterwards."""

    async def run(
        work: Callable[[Runtime], Any], script: Script, cluster: str | None, **options: Any
    ) -> tuple[Course, dict[str, str]]:
        # Names of one length: prompts have the same number of tokens.
        project = new_project("here" if cluster is None else "away")
        async with ModelServer(Scripted(script)) as server:
            async with open_project(
                project,
                model=f"openai:any@{server.base_url}",
                environment=environment,
                cluster=cluster,
                cache=False,
                **{"mode": "auto", **options},
            ) as rt:
                run_id = await work(rt)
            async with open_journal(project, environment) as store:
                events = await store.events(run_id)
        files = {path.name: path.read_text() for path in project.iterdir() if path.is_file()}
        return Course(events, server.port), files

    return run
