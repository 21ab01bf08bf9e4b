"""Ask one child about a directory: python examples/ask.py DIR "How is it tested?" """

from __future__ import annotations

import asyncio
import sys

import retinue


async def main(directory: str, question: str) -> None:
    async with retinue.open(directory, limits=retinue.Limits(max_tokens=100_000)) as rt:
        result = await rt.spawn("researcher", question)
    if not result.ok:
        sys.exit(f"{result.status}: {result.error}")
    print(result.response)
    print(f"({result.usage.turns} turns, {result.usage.tokens:,} tokens)", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
