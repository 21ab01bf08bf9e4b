"""Give a child one of your functions as a tool: python examples/custom_tool.py DIR"""

from __future__ import annotations

import asyncio
import sys

import retinue

STOCK = {"apples": 3, "pears": 0}


@retinue.tool(effect="read")
async def in_stock(item: str) -> str:
    """Say how many of an item are in stock."""
    if item not in STOCK:
        # The model gets the text of the exception as the answer, and can correct its call.
        raise ValueError(f"There is no item {item!r}; there are: {', '.join(STOCK)}.")
    return f"{STOCK[item]} {item}"


async def main(directory: str) -> None:
    async with retinue.open(directory, tools=[in_stock]) as rt:
        task = retinue.Task(role="planner", task="What must be ordered?", tools=("in_stock",))
        [result] = await rt.fan_out([task])
    print(result.response)
    for receipt in result.receipts:
        print(f"  {receipt.tool}: {'ok' if receipt.ok else 'failed'}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
