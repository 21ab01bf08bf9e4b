"""Summarize each file that matches, in one sentence: python examples/batch.py DIR "docs/*.md"

Each child gets its file with its task and needs no tools: RETINUE_MODEL=embedded is enough.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import retinue


async def main(directory: str, pattern: str) -> None:
    root = Path(directory)
    files = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
    tasks = [
        retinue.Task(
            role="researcher",
            task=f"In one sentence: what is {file} about?",
            context_files=(file,),
            tools=(),
        )
        for file in files
    ]
    # The limit is for all children together, however many files there are.
    async with retinue.open(root, limits=retinue.Limits(max_tokens=200_000)) as rt:
        results = await rt.fan_out(tasks, max_concurrent=3)
    for file, result in zip(files, results, strict=True):
        print(f"{file}: {result.response if result.ok else result.error}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
