"""openai-agents: one agent, `await Runner.run(agent, task)` for each child, tracing off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from benchmarks.contest import FanOut, Job, bounded, main
from benchmarks.workload import INSTRUCTIONS, task


@asynccontextmanager
async def contestant(job: Job) -> AsyncIterator[FanOut]:
    set_tracing_disabled(True)

    @function_tool
    async def read_file(path: str) -> str:
        """Read a text file of the project."""
        return (job.workdir / path).read_text()

    @function_tool
    async def list_dir(path: str) -> str:
        """List the names in a folder of the project."""
        return "\n".join(sorted(entry.name for entry in (job.workdir / path).iterdir()))

    async with AsyncOpenAI(base_url=job.base_url, api_key="bench") as client:
        agent = Agent(
            name="researcher",
            instructions=INSTRUCTIONS,
            tools=[read_file, list_dir],
            model=OpenAIChatCompletionsModel(model="bench", openai_client=client),
        )

        async def child(number: int) -> bool:
            result = await Runner.run(agent, task(number))
            return bool(result.final_output)

        async def fan_out(count: int) -> int:
            return await bounded(child, count, job.concurrency)

        yield fan_out


if __name__ == "__main__":
    main(contestant)
