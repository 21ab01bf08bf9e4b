"""retinue, with the fan-out started by a model: one reply that spawns every child."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import retinue
from benchmarks.contest import FanOut, Job, main
from benchmarks.workload import LEADER

# The root's own limits are not what is measured: it makes one call for each child, and is told of
# all of them.
LIMITS: retinue.LimitOptions = {"max_tool_calls": 1_000_000, "max_context_tokens": 100_000_000}
# Nor is the length of a reply: the one that spawns all children is far longer than usual.
SETTINGS = "[sampling]\nmax_output_tokens = 1_000_000\n"


def _write_settings() -> None:
    settings = Path(os.environ["XDG_CONFIG_HOME"], "retinue", "config.toml")
    settings.parent.mkdir()
    settings.write_text(SETTINGS)


@asynccontextmanager
async def contestant(job: Job) -> AsyncIterator[FanOut]:
    _write_settings()
    begun = 0
    async with retinue.open(
        job.workdir,
        model=f"openai:{LEADER}@{job.base_url}",
        limits=LIMITS,
        max_concurrent=job.concurrency,
    ) as rt:

        async def fan_out(count: int) -> int:
            nonlocal begun
            result = await rt.run(f"Lead {count} children from part {begun}.")
            begun += count
            # With a failed child, the run is not ok.
            return result.children if result.ok else 0

        yield fan_out


if __name__ == "__main__":
    main(contestant)
