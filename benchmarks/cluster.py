"""What hosts and Postgres cost the process of a run, against a run without hosts, in SQLite.

The children do what they do in the other benchmarks: four model calls and three file tools. Each
lap is a process of its own; laps of all kinds alternate, and ratios are of medians. Counted is the
CPU of the run's process: children's work elsewhere, the Ray driver and the server are not in it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

import retinue
from benchmarks.endpoint import endpoint
from benchmarks.machine import this_machine
from benchmarks.workload import task, write_notes
from retinue.config.environment import Environment
from retinue.domain.events import AgentPlaced, Event
from retinue.extras import is_installed
from retinue.testing.server import ModelServer, Response
from tests.runners.ray_nodes import RayNodes, ray_nodes
from tests.runners.ray_nodes import is_installed as ray_is_installed
from tests.store.postgres_server import postgres_server, programs

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = 100
FEW = 2
"""So many children at a time measure how soon one begins: more wait for cores."""
ALONE, RAY, POSTGRES = "alone", "two Ray nodes", "Postgres"
LIMITS = {RAY: 1.0, POSTGRES: 1.3}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    base_url: str
    folder: str
    children: int
    cluster: str | None = None
    store: str = ""


class Lap(msgspec.Struct, frozen=True, kw_only=True):
    """CPU per child in ms, peak memory in MiB, events per child, and ms from placement to event."""

    cpu_ms: float
    peak_mb: float
    events: float
    first_ms: tuple[float, ...]


class _Placements:
    """Counts events, and measures how long after its placement a child has its first one."""

    def __init__(self) -> None:
        self.events = 0
        self.first_ms: list[float] = []
        self._placed: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        self.events += 1
        if isinstance(event.fact, AgentPlaced):
            self._placed[event.agent_id] = time.perf_counter()
        elif (placed := self._placed.pop(event.agent_id, None)) is not None:
            self.first_ms.append(1_000 * (time.perf_counter() - placed))


def _environment(job: Job) -> Environment:
    variables = {"HOME": job.folder, "PATH": os.environ["PATH"]}
    return Environment(variables=variables | ({"RETINUE_STORE": job.store} if job.store else {}))


async def _lap(job: Job) -> Lap:
    project, seen, numbers = Path(job.folder, "project"), _Placements(), itertools.count()
    write_notes(project)
    async with retinue.open(
        project,
        model=f"openai:bench@{job.base_url}",
        environment=_environment(job),
        cluster=job.cluster,
        listeners=retinue.Listeners(on_event=seen),
    ) as rt:

        async def fan_out(count: int, at_once: int) -> None:
            tasks = [("researcher", task(next(numbers))) for _ in range(count)]
            results = await rt.fan_out(tasks, max_concurrent=at_once)
            if failed := [result.error for result in results if not result.ok]:
                raise RuntimeError(f"{len(failed)} of {count} children failed: {failed[0]}")

        await fan_out(min(AT_ONCE, job.children), AT_ONCE)
        events, cpu_s = seen.events, time.process_time()
        await fan_out(job.children, AT_ONCE)
        cpu_s, events = time.process_time() - cpu_s, seen.events - events
        seen.first_ms.clear()
        await fan_out(40, FEW)
    return Lap(
        cpu_ms=1_000 * cpu_s / job.children,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        events=events / job.children,
        first_ms=tuple(seen.first_ms),
    )


def _run_lap(job: Job) -> Lap:
    """One lap, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        job = msgspec.structs.replace(job, folder=folder)
        command = [sys.executable, "-m", "benchmarks.cluster", msgspec.json.encode(job).decode()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"a lap ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout, type=Lap)


async def _takeover_s(job: Job, fault: Callable[[], None]) -> float:
    """Seconds from a fault to the moment at which its children go on elsewhere."""
    project = Path(job.folder, "project")
    write_notes(project)
    again, never = asyncio.Event(), asyncio.Event()

    def note(event: Event) -> None:
        if isinstance(fact := event.fact, AgentPlaced) and fact.host and fact.placement > 1:
            again.set()

    async with (
        # It does not answer, so the children are at work when the fault comes.
        ModelServer(lambda request: Response(body=b"", gate=never)) as server,
        retinue.open(
            project,
            model=f"openai:bench@{server.base_url}",
            environment=_environment(job),
            cluster=job.cluster,
            listeners=retinue.Listeners(on_event=note),
        ) as rt,
    ):
        jobs = [await rt.start("researcher", task(n)) for n in range(4)]
        await server.received()
        began = time.perf_counter()
        await asyncio.to_thread(fault)
        await again.wait()
        took_s = time.perf_counter() - began
        for one in jobs:
            rt.cancel(one.id)
        for one in jobs:
            await one.result()
    return took_s


def _takeovers(nodes: RayNodes) -> Iterator[str]:
    def kill_host() -> None:
        os.kill(nodes.host_pids()[0], signal.SIGKILL)

    def kill_worker() -> None:
        os.kill(nodes.victims()[2], signal.SIGKILL)

    def remove_node() -> None:
        nodes.remove(nodes.raylets[-1])

    for name, fault in (
        ("host killed", kill_host),
        ("Ray worker killed", kill_worker),
        ("node lost", remove_node),
    ):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            job = Job(base_url="", folder=folder, children=4, cluster=nodes.address)
            took_s = asyncio.run(_takeover_s(job, fault))
            yield f"{name}: children go on after {took_s:.1f} s"


@contextmanager
def _kinds(base_url: str, children: int) -> Iterator[tuple[dict[str, Job], RayNodes | None]]:
    """The kinds of laps that can be measured here, and the Ray nodes."""
    alone = Job(base_url=base_url, folder="", children=children)
    kinds, nodes = {ALONE: alone}, None
    with ExitStack() as stack:
        if ray_is_installed:
            nodes = stack.enter_context(ray_nodes(2))
            kinds[RAY] = msgspec.structs.replace(alone, cluster=nodes.address)
        if programs() is not None and is_installed("postgres"):
            server = stack.enter_context(postgres_server())
            kinds[POSTGRES] = msgspec.structs.replace(alone, store=server.url)
        yield kinds, nodes


def measure_cluster(children: int, repeat: int) -> Iterator[str]:
    """The lines of the report, as they are known."""
    yield f"{this_machine()}"
    yield f"{children:,} children, medians of {repeat} laps"
    with endpoint(ROOT) as server, _kinds(server.base_url, children) as (kinds, nodes):
        laps: dict[str, list[Lap]] = {kind: [] for kind in kinds}
        for number, (kind, job) in itertools.product(range(repeat), kinds.items()):
            if job.store:
                job = msgspec.structs.replace(job, store=f"{job.store}?schema=lap_{number}")
            laps[kind].append(_run_lap(job))
        alone_ms = statistics.median(lap.cpu_ms for lap in laps[ALONE])
        for kind, each in laps.items():
            cpu_ms = statistics.median(lap.cpu_ms for lap in each)
            line = f"{kind:15} {cpu_ms:6.2f} ms CPU/child  {cpu_ms / alone_ms:5.2f} ×"
            line += f"  {statistics.median(lap.peak_mb for lap in each):5.0f} MiB"
            line += f"  {statistics.median(lap.events for lap in each):5.1f} events/child"
            if kind in LIMITS:
                line += f"  (at most {LIMITS[kind]:g} ×)"
            if first := [ms for lap in each for ms in lap.first_ms]:
                line += f"  first event after {statistics.median(first):.0f} ms (at most 20)"
            yield line
        if nodes is not None:
            yield from _takeovers(nodes)


if __name__ == "__main__":
    print(
        msgspec.json.encode(asyncio.run(_lap(msgspec.json.decode(sys.argv[1], type=Job)))).decode()
    )
