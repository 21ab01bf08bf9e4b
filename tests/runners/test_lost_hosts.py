"""Hosts that end, freeze or lose their run: their agents go on elsewhere, and do nothing twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import (
    AgentClosed,
    AgentCreated,
    AgentPlaced,
    Event,
    ModelFailed,
    ModelReplied,
)
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.project import open_journal
from retinue.runtime.history.audit import audit
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Received
from tests.runners.conftest import Place
from tests.runners.host_processes import ended, host_pids, kill
from tests.runners.writers import Writer, check_done_once, of_type, writer_tasks

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


async def fan_out_with_kills(
    project: Path,
    environment: Environment,
    opened: Opened,
    place: Place,
    *,
    kills: int,
    children: int,
    seed: int,
) -> None:
    chosen, model = random.Random(seed), Writer()
    killed: list[int] = []
    moments = sorted(chosen.sample(range(2, 5 * children), kills))

    def kill_one(number: int) -> None:
        if moments and number >= moments[0]:
            moments.pop(0)
            pids = [pid for pid in place.victims() if pid not in killed]
            if pids:
                killed.append(chosen.choice(pids))
                # Now, or a little later: while the reply is read, recorded, or its tool runs.
                delay_s = chosen.choice((0.0, 0.005, 0.02, 0.05))
                asyncio.get_running_loop().call_later(delay_s, kill, killed[-1])

    model.on_request = kill_one
    async with (
        ModelServer(model) as server,
        opened(
            project,
            model=f"openai:any@{server.base_url}",
            environment=environment,
            mode="auto",
            cluster=place.cluster,
            unsafe_no_sandbox=True,
        ) as rt,
    ):
        results = await rt.fan_out(writer_tasks(children), max_concurrent=4)
    run_id = results[0].run_id
    async with open_journal(project, environment) as store:
        events = list(await store.events(run_id))
        await audit(store, run_id)
    assert killed
    check_done_once(events, results, model.requests, project)


@pytest.mark.parametrize("seed", range(2))
async def test_hosts_that_are_killed(
    seed: int, place: Place, new_project: Any, environment: Environment, open_project: Opened
) -> None:
    project = new_project(f"killed-{seed}")
    await fan_out_with_kills(
        project, environment, open_project, place, kills=3, children=8, seed=seed
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
async def test_hosts_that_are_killed_again_and_again(
    seed: int, place: Place, new_project: Any, environment: Environment, open_project: Opened
) -> None:
    """Fifty kills in each place."""
    project = new_project(f"killed-{seed}")
    await fan_out_with_kills(
        project, environment, open_project, place, kills=5, children=12, seed=100 + seed
    )


async def test_a_host_that_is_killed_while_git_has_the_index(
    new_project: Any, environment: Environment, open_project: Opened
) -> None:
    """Its git ends with it, and leaves the lock of an index that other processes need."""
    project = new_project("index")
    copies = environment.cache_dir / "worktrees"

    def kill_while_git_reads(hosts: list[int]) -> None:
        while not any(copies.glob("*/index.lock")) and not any(copies.glob("*/*/index.lock")):
            pass  # Git has the lock for as long as it reads a large file.
        for pid in hosts:
            kill(pid)

    steps = [
        call("run_command", command="truncate -s 60M large"),
        call("run_command", command="rm large; echo one > a.txt"),
        say("Written."),
    ]
    killing: list[asyncio.Task[None]] = []

    def answer(request: Received) -> ScriptedReply:
        if not killing:
            killing.append(
                asyncio.create_task(asyncio.to_thread(kill_while_git_reads, host_pids()))
            )
        answered: int = sum(message["role"] == "tool" for message in request.json["messages"])
        return steps[answered]

    async with (
        ModelServer(answer) as server,
        open_project(
            project,
            model=f"openai:any@{server.base_url}",
            environment=environment,
            mode="auto",
            cluster="local:1",
            unsafe_no_sandbox=True,
        ) as rt,
    ):
        result = await rt.spawn("executor", "Write a.txt.")
        await killing[0]
        state = retinue.fold([event async for event in rt.events(result.run_id)])
    assert result.ok, result.error
    assert (project / "a.txt").read_text() == "one\n"
    assert [agent.placement for agent in state.agents.values()] == [0, 2]


@pytest.fixture
def disk(request: pytest.FixtureRequest, other_disk: Callable[[], None]) -> None:
    """Where the hosts of the test have their files."""
    if request.param == "other":
        other_disk()


DISKS = pytest.mark.parametrize("disk", ["same", "other"], indirect=True)


async def test_an_agent_under_which_three_hosts_die_fails(
    new_project: Any, environment: Environment, open_project: Opened
) -> None:
    model = Writer()

    def kill_all(_: int) -> None:
        for pid in host_pids():
            kill(pid)

    model.on_request = kill_all
    events: list[Event] = []
    async with (
        ModelServer(model) as server,
        open_project(
            new_project("killed"),
            model=f"openai:any@{server.base_url}",
            environment=environment,
            cluster="local:1",
            on_event=events.append,
        ) as rt,
    ):
        result = await rt.spawn("researcher", "Look at a.txt now.")
    assert result.status is retinue.Status.ERROR
    assert (result.error or "").startswith("3 hosts were lost under it; the last: local-1 (process")
    assert (result.error or "").endswith("has ended")
    assert model.requests == 3
    placed = [fact for event in events if isinstance(fact := event.fact, AgentPlaced)]
    assert [fact.placement for fact in placed if fact.host] == [1, 2, 3]
    waits = [fact.reason for fact in placed if not fact.host]
    assert waits, "while another host starts, the agent waits"
    assert all(reason.startswith("waits for a host: local-1 (process ") for reason in waits)


@pytest.mark.slow
@DISKS
async def test_a_frozen_host_is_replaced(
    disk: None, new_project: Any, environment: Environment, open_project: Opened
) -> None:
    model, frozen = Writer(), []

    def freeze(number: int) -> None:
        if number == 2:
            frozen.extend(host_pids())
            for pid in frozen:
                kill(pid, signal.SIGSTOP)

    model.on_request = freeze
    project = new_project("frozen")
    events: list[Event] = []
    async with (
        ModelServer(model) as server,
        open_project(
            project,
            model=f"openai:any@{server.base_url}",
            environment=environment,
            mode="auto",
            cluster="local:1",
            unsafe_no_sandbox=True,
            on_event=events.append,
        ) as rt,
    ):
        result = await rt.spawn("executor", "Write f0.txt now.")
        # It was killed before the next one began.
        assert not {*frozen} & {*host_pids()}
    assert result.ok, result.error
    assert (project / "f0.txt").read_text() == "one\nmore\n"
    placed = [fact for event in events if isinstance(fact := event.fact, AgentPlaced)]
    assert placed[-1].placement == 2
    assert placed[-1].reason == "local-1 has not answered for 10 s"


async def test_commands_end_with_their_host(
    new_project: Any, environment: Environment, open_project: Opened
) -> None:
    """Also without a sandbox, where nothing else would end them."""
    project = new_project("commands")
    fifo = project.parent / "started"
    os.mkfifo(fifo)
    command = f"echo $$ > {fifo}; while sleep 0.02; do :; done"
    steps = [call("run_command", command=command), say("It was interrupted.")]
    model = ModelServer(lambda request: steps["interrupted" in request.body.decode()])
    async with (
        model as server,
        open_project(
            project,
            model=f"openai:any@{server.base_url}",
            environment=environment,
            mode="auto",
            cluster="local:1",
            unsafe_no_sandbox=True,
        ) as rt,
    ):
        job = await rt.start("executor", "Tick.")
        shell = int(await asyncio.to_thread(fifo.read_text))
        for host in host_pids():
            kill(host)
        await ended(shell)
        result = await job.result()
    assert result.response == "It was interrupted."


OWNER = """
import asyncio, sys
import retinue

async def main(project, model, cluster):
    async with retinue.open(project, model=model, mode="auto", cluster=cluster) as rt:
        await rt.fan_out([("researcher", f"Look at f{n}.txt now.") for n in range(4)])

asyncio.run(main(*sys.argv[1:]))
"""


def start_owner(
    project: Path, model: str, cluster: str, environment: Environment
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, str(project), model, cluster], env=dict(environment.variables)
    )


async def test_hosts_end_with_their_run_and_another_process_resumes_it(
    place: Place, new_project: Any, environment: Environment, open_project: Opened
) -> None:
    project, model = new_project("owner"), Writer()
    asked = asyncio.Event()
    model.on_request = lambda number: asked.set() if number == 6 else None
    async with ModelServer(model) as server:
        name = f"openai:any@{server.base_url}"
        owner = start_owner(project, name, place.cluster, environment)
        try:
            await asked.wait()
            hosts = place.hosts(owner.pid)
            assert len(hosts) == 2
            kill(hosts[0], signal.SIGSTOP)  # One that cannot notice by itself.
        finally:
            owner.kill()
            owner.wait()
        for pid in hosts:
            await ended(pid)
        async with open_project(
            project, model=name, environment=environment, cluster=place.cluster, mode="auto"
        ) as rt:
            async with open_journal(project, environment) as store:
                (row,) = await store.runs()
            result = await rt.resume(row.id)
    assert [one.status for one in result.results] == [retinue.Status.COMPLETED] * 4
    async with open_journal(project, environment) as store:
        await audit(store, row.id)
        events = list(await store.events(row.id))
    assert {fact.placement for fact in of_type(events, "agent.placed")} >= {1, 2}
    assert len(of_type(events, "agent.subagent_attempt")) == 4


class Allotted:
    """A model that is never done, and how many tokens are spent or may be, at any moment.

    Its bills are honest: a token for four bytes of the prompt, no more output than it may. A reply
    may still cost its prompt, as far as it is new, and its longest output until it is on record.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.on_request: Callable[[int], None] = lambda number: None
        self.requests = 0
        self._open: dict[str, int] = {}
        self._moved: set[str] = set()
        """Tasks that have ended, or are on another host: until its first reply, requests may be
        those of the lost one."""
        self._spent: dict[str, int] = {}
        self._tasks: dict[str, str] = {}
        self.most = 0

    def __call__(self, request: Received) -> ScriptedReply:
        self.requests += 1
        self.on_request(self.requests)
        prompt = len(request.body) // 4
        longest = request.json["max_tokens"]
        task = next(m["content"] for m in request.json["messages"] if m["role"] == "user")
        task = task.partition(".")[0]
        self._open[task] = max(0, prompt - self._spent.get(task, 0)) + longest
        self._count()
        output = self._random.randint(1, min(longest, 300))
        return call("list_dir", path=".").using(prompt, output)

    def note(self, event: Event) -> None:
        match event.fact:
            case AgentCreated(title=title):
                self._tasks[event.agent_id] = title.partition(".")[0]
            case ModelReplied(usage=usage) | ModelFailed(usage=usage):
                task = self._tasks[event.agent_id]
                self._spent[task] = self._spent.get(task, 0) + usage.tokens
                self._open.pop(task, None)
                self._moved.discard(task)
                self._count()
            case AgentPlaced(placement=number, host=host) if number > 1 or not host:
                self._moved.add(self._tasks[event.agent_id])
            case AgentClosed() if event.agent_id in self._tasks:
                self._moved.add(self._tasks[event.agent_id])

    def _count(self) -> None:
        allotted = sum(worst for task, worst in self._open.items() if task not in self._moved)
        self.most = max(self.most, self.spent + allotted)

    @property
    def spent(self) -> int:
        return sum(self._spent.values())


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(9))])
async def test_what_is_spent_and_allotted_stays_below_the_limit_while_hosts_die(
    seed: int, place: Place, new_project: Any, environment: Environment, open_project: Opened
) -> None:
    chosen, model = random.Random(seed), Allotted(seed)
    limit, kills = chosen.randrange(20_000, 60_000), {chosen.randrange(2, 24) for _ in range(3)}

    def kill_one(number: int) -> None:
        if number in kills and (pids := place.victims()):
            kill(chosen.choice(pids))

    model.on_request = kill_one
    async with (
        ModelServer(model) as server,
        open_project(
            new_project("limit"),
            model=f"openai:any@{server.base_url}",
            environment=environment,
            cluster=place.cluster,
            limits=retinue.Limits(max_tokens=limit),
            cache=False,
            on_event=model.note,
        ) as rt,
    ):
        tasks = [("researcher", f"Look {n}.") for n in range(10)]
        results = await rt.fan_out(tasks, max_concurrent=4)
        state = retinue.fold([event async for event in rt.events(results[0].run_id)])
    assert model.most <= limit
    assert state.usage.tokens == model.spent
    assert model.spent > limit / 2
    assert max(agent.placement for agent in state.agents.values()) > 1
