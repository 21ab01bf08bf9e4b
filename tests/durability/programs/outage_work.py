"""Work on a run, whose process may be killed at any moment.

outage_work.py PROJECT MODEL COMMAND CHILDREN [RUN]: prints the id of the run and its status, or 75
as its exit code if the run waits for its model. The last line is the peak of memory in KiB.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys

import retinue
from retinue.errors import RunSuspended
from tests.durability.test_outages import long_task, plan, tasks

PROJECT, MODEL, COMMAND, CHILDREN, *RUN = sys.argv[1:]


async def work(rt: retinue.Runtime) -> str:
    count = int(CHILDREN)
    if RUN:
        return (await rt.resume(RUN[0])).status
    if COMMAND == "run":
        return (await rt.run("Lead.")).status
    if COMMAND == "plan":
        return (await rt.execute(plan(count), max_concurrent=16)).status
    given = tasks(count) if COMMAND == "fan-out" else [long_task(count)]
    done = await rt.fan_out(given, max_concurrent=16)
    return "completed" if all(result.ok for result in done) else "error"


def on_event(event: retinue.Event) -> None:
    if event.seq == 1:
        print(event.run_id, flush=True)


async def main() -> int:
    try:
        async with retinue.open(
            PROJECT,
            model=MODEL,
            mode="auto",
            cache=False,
            shell=False,
            max_concurrent=16,
            cluster=os.environ["RETINUE_CHAOS_CLUSTER"],
            limits=retinue.Limits(max_turns=1_000, max_tool_calls=1_000),
            listeners=retinue.Listeners(on_event=on_event),
        ) as rt:
            print(await work(rt))
    except RunSuspended as suspended:
        print(f"suspended: {suspended}")
        return 75
    finally:
        used = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        print(max(resource.getrusage(who).ru_maxrss for who in used))
    return 0


sys.exit(asyncio.run(main()))
