"""Work on a run until it is done, or until an event at which this process kills itself.

work.py PROJECT MODEL NOTES KILL_AT PLAN [RUN]: prints the id of the run, and at its end the status.
KILL_AT is the number of the event; with `+0.02`, the process lives so many seconds more. PLAN is a
file with a plan or a race, or - where a model leads.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import msgspec

import retinue
from retinue.domain.events import Event

PROJECT, MODEL, NOTES, KILL_AT, PLAN, *RUN = sys.argv[1:]
PLANNED = {} if PLAN == "-" else msgspec.json.decode(Path(PLAN).read_bytes())
RACE = PLANNED.get("race")


@retinue.tool(effect="execute")
async def note(text: str) -> str:
    """Write a line into a file that nobody else sees: what cannot be taken back."""
    os.write(notes, f"{text}\n".encode())
    return "noted"


notes = os.open(NOTES, os.O_WRONLY | os.O_APPEND)


class Fuse:
    def __init__(self, at: str) -> None:
        event, _, later_s = at.partition("+")
        self._left = int(event)
        self._later_s = float(later_s or 0)

    def __call__(self, event: Event) -> None:
        if event.seq == 1:
            print(event.run_id, flush=True)
        self._left -= 1
        if self._left == 0:
            kill = (os.getpid(), signal.SIGKILL)
            if not self._later_s:
                os.kill(*kill)
            later = threading.Timer(self._later_s, os.kill, kill)
            later.daemon = True
            later.start()


async def work() -> None:
    async with retinue.open(
        PROJECT,
        model=MODEL,
        mode="auto",
        cache=False,
        shell=RACE is not None,
        unsafe_no_sandbox=shutil.which("bwrap") is None,
        limits=PLANNED.get("limits"),
        tools=[note],
        max_concurrent=4,
        listeners=retinue.Listeners(on_event=Fuse(KILL_AT)),
    ) as rt:
        result: retinue.RunResult | retinue.PlanResult | retinue.RaceResult
        if RUN:
            result = await rt.resume(RUN[0])
        elif RACE is not None:
            result = await rt.race(**RACE)
        elif PLANNED:
            result = await rt.execute(PLANNED)
        else:
            result = await rt.run("Lead.")
        print(result.status, result.error or "", flush=True)


asyncio.run(work())
