"""What each contestant's process does: warm up, fan out, print what it cost.

Standard library only, because the peers' interpreters import it too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Job:
    base_url: str
    children: int
    concurrency: int
    workdir: Path


FanOut = Callable[[int], Awaitable[int]]
"""Runs that many children and returns how many of them ended well."""

Contestant = Callable[[Job], AbstractAsyncContextManager[FanOut]]


def warm_up_children(children: int, concurrency: int) -> int:
    """As many as run at once, so that every connection is open before the clock starts. With
    fewer, a small fan-out would pay for connecting and a large one would look cheap beside it."""
    return min(children, concurrency)


async def bounded(child: Callable[[int], Awaitable[bool]], count: int, concurrency: int) -> int:
    """Run `child(0..count-1)`, at most `concurrency` at a time, for contestants that have no
    fan-out of their own. A fixed set of workers is the cheapest way to bound it that we know."""
    numbers = iter(range(count))
    succeeded = 0

    async def worker() -> None:
        nonlocal succeeded
        for number in numbers:
            if await child(number):
                succeeded += 1

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, count)):
            workers.create_task(worker())
    return succeeded


def _cpu_s() -> float:
    """User and system time of all threads, and of subprocesses that have been waited for.

    Not os.times(): it counts in ticks of 10 ms, a tenth of what a hundred children cost."""
    spawned = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + spawned.ru_utime + spawned.ru_stime


def _peak_rss_mb() -> float:
    # ru_maxrss survives exec, so a small contestant would report the size of the process that
    # started it; VmHWM belongs to this program's memory alone.
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _measure(contestant: Contestant, job: Job) -> dict[str, float]:
    async with contestant(job) as fan_out:
        await fan_out(warm_up_children(job.children, job.concurrency))
        cpu_s, wall_s = _cpu_s(), time.perf_counter()
        succeeded = await fan_out(job.children)
        cpu_s, wall_s = _cpu_s() - cpu_s, time.perf_counter() - wall_s
    return {
        "children": job.children,
        "ok_children": succeeded,
        "cpu_s": round(cpu_s, 6),
        "wall_s": round(wall_s, 6),
        "max_rss_mb": round(_peak_rss_mb(), 1),
    }


def main(contestant: Contestant) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("base_url")
    parser.add_argument("children", type=int)
    parser.add_argument("concurrency", type=int)
    parser.add_argument("workdir", type=Path)
    given = parser.parse_args()
    job = Job(
        base_url=given.base_url,
        children=given.children,
        concurrency=given.concurrency,
        workdir=given.workdir.resolve(),
    )
    print(json.dumps(asyncio.run(_measure(contestant, job))), flush=True)
