"""Have a thousand children at full speed, and print each one whose result was handed over.

many.py PROJECT
"""

from __future__ import annotations

import asyncio
import sys

import retinue
from retinue.models.scripted.model import ScriptedModel, call, say


async def work() -> None:
    model = ScriptedModel({"": [call("list_dir"), say("Done.")]}, strict=False)
    async with retinue.open(sys.argv[1], model=model, cache=False, shell=False) as rt:
        slots = asyncio.Semaphore(100)

        async def one(number: int) -> None:
            async with slots:
                result = await rt.spawn("researcher", f"Task {number}.")
                print(result.run_id, result.agent_id, flush=True)

        await asyncio.gather(*(one(number) for number in range(1_000)))


asyncio.run(work())
