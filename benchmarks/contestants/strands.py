"""strands: an agent per child, since an agent holds its conversation, over one shared model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from strands import Agent, tool
from strands.models.openai import OpenAIModel

from benchmarks.contest import FanOut, Job, bounded, main
from benchmarks.workload import INSTRUCTIONS, task


@asynccontextmanager
async def contestant(job: Job) -> AsyncIterator[FanOut]:
    model = OpenAIModel(
        client_args={"base_url": job.base_url, "api_key": "bench"}, model_id="bench"
    )

    @tool
    async def read_file(path: str) -> str:
        """Read a text file of the project.

        Args:
            path: The file, relative to the project.
        """
        return (job.workdir / path).read_text()

    @tool
    async def list_dir(path: str) -> str:
        """List the names in a folder of the project.

        Args:
            path: The folder, relative to the project.
        """
        return "\n".join(sorted(entry.name for entry in (job.workdir / path).iterdir()))

    async def child(number: int) -> bool:
        agent = Agent(
            model=model,
            system_prompt=INSTRUCTIONS,
            tools=[read_file, list_dir],
            callback_handler=None,
        )
        result = await agent.invoke_async(task(number))
        return bool(str(result).strip())

    async def fan_out(count: int) -> int:
        return await bounded(child, count, job.concurrency)

    yield fan_out


if __name__ == "__main__":
    main(contestant)
