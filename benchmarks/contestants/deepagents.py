"""deepagents: one graph with its own file tools on a folder, `await graph.ainvoke(…)` per child."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langchain_openai import ChatOpenAI

from benchmarks.contest import FanOut, Job, bounded, main
from benchmarks.workload import INSTRUCTIONS, task


@asynccontextmanager
async def contestant(job: Job) -> AsyncIterator[FanOut]:
    graph = create_deep_agent(
        # The name that makes the server ask for `ls` and `read_file(file_path)`.
        model=ChatOpenAI(model="bench-ls", base_url=job.base_url, api_key="bench"),
        system_prompt=INSTRUCTIONS,
        backend=FilesystemBackend(root_dir=job.workdir, virtual_mode=True),
    )

    async def child(number: int) -> bool:
        state = await graph.ainvoke({"messages": [{"role": "user", "content": task(number)}]})
        return bool(state["messages"][-1].content)

    async def fan_out(count: int) -> int:
        return await bounded(child, count, job.concurrency)

    yield fan_out


if __name__ == "__main__":
    main(contestant)
