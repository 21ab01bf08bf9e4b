"""pydantic-ai: one agent, `await agent.run(task)` for each child."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.contest import FanOut, Job, bounded, main
from benchmarks.workload import INSTRUCTIONS, task


@asynccontextmanager
async def contestant(job: Job) -> AsyncIterator[FanOut]:
    provider = OpenAIProvider(base_url=job.base_url, api_key="bench")
    agent = Agent(OpenAIChatModel("bench", provider=provider), instructions=INSTRUCTIONS)

    @agent.tool_plain
    async def read_file(path: str) -> str:
        """Read a text file of the project."""
        return (job.workdir / path).read_text()

    @agent.tool_plain
    async def list_dir(path: str) -> str:
        """List the names in a folder of the project."""
        return "\n".join(sorted(entry.name for entry in (job.workdir / path).iterdir()))

    async def child(number: int) -> bool:
        result = await agent.run(task(number))
        return bool(result.output)

    async def fan_out(count: int) -> int:
        return await bounded(child, count, job.concurrency)

    yield fan_out


if __name__ == "__main__":
    main(contestant)
