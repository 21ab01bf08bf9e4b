"""Work on a run until it is done, or until an event at which this process kills itself.

work.py PROJECT MODEL NOTES KILL_AT PLAN [RUN]: prints the id of the run, and at its end the status.
PLAN is a file, or - where a model leads.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

import retinue
from retinue.domain.events import Event

PROJECT, MODEL, NOTES, KILL_AT, PLAN, *RUN = sys.argv[1:]
PLANNED = b"" if PLAN == "-" else Path(PLAN).read_bytes()


@retinue.tool(effect="execute")
async def note(text: str) -> str:
    """Write a line into a file that nobody else sees: what cannot be taken back."""
    os.write(notes, f"{text}\n".encode())
    return "noted"


notes = os.open(NOTES, os.O_WRONLY | os.O_APPEND)


class Fuse:
    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, event: Event) -> None:
        if event.seq == 1:
            print(event.run_id, flush=True)
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def work() -> None:
    async with retinue.open(
        PROJECT,
        model=MODEL,
        mode="auto",
        cache=False,
        shell=False,
        tools=[note],
        max_concurrent=4,
        listeners=retinue.Listeners(on_event=Fuse(int(KILL_AT))),
    ) as rt:
        result: retinue.RunResult | retinue.PlanResult
        if RUN:
            result = await rt.resume(RUN[0])
        elif not PLANNED:
            result = await rt.run("Lead.")
        else:
            result = await rt.execute(msgspec.json.decode(PLANNED))
        print(result.status, result.error or "", flush=True)


asyncio.run(work())
