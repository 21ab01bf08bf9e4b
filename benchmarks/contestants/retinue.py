"""retinue, by its public API, with the journal on as it is by default."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import retinue
from benchmarks.contest import FanOut, Job, main
from benchmarks.workload import task


@asynccontextmanager
async def contestant(job: Job) -> AsyncIterator[FanOut]:
    # Never the same task twice: the second would come from the cache, and cost next to nothing.
    numbers = itertools.count()
    async with retinue.open(job.workdir, model=f"openai:bench@{job.base_url}") as rt:

        async def fan_out(count: int) -> int:
            results = await rt.fan_out(
                [("researcher", task(next(numbers))) for _ in range(count)],
                max_concurrent=job.concurrency,
            )
            return sum(result.ok for result in results)

        yield fan_out
    # A fan-out that wrote nothing down would be measured at less than its price.
    journal = job.workdir / ".retinue" / "retinue.db"
    if not journal.is_file():
        raise RuntimeError(f"no journal at {journal}")


if __name__ == "__main__":
    main(contestant)
