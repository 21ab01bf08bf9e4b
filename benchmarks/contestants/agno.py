"""agno: one agent, `await agent.arun(task)` for each child, telemetry off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agno.agent import Agent
from agno.models.openai.like import OpenAILike

from benchmarks.contest import FanOut, Job, bounded, main
from benchmarks.workload import INSTRUCTIONS, task


@asynccontextmanager
async def contestant(job: Job) -> AsyncIterator[FanOut]:
    async def read_file(path: str) -> str:
        """Read a text file of the project."""
        return (job.workdir / path).read_text()

    async def list_dir(path: str) -> str:
        """List the names in a folder of the project."""
        return "\n".join(sorted(entry.name for entry in (job.workdir / path).iterdir()))

    agent = Agent(
        model=OpenAILike(id="bench", base_url=job.base_url, api_key="bench"),
        instructions=INSTRUCTIONS,
        tools=[read_file, list_dir],
        telemetry=False,
    )

    async def child(number: int) -> bool:
        # A session of its own, or the children would share one history.
        result = await agent.arun(task(number), session_id=f"child-{number}")
        return bool(result.content)

    async def fan_out(count: int) -> int:
        return await bounded(child, count, job.concurrency)

    yield fan_out


if __name__ == "__main__":
    main(contestant)
