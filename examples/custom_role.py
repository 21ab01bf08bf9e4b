"""A role of your own: python examples/custom_role.py DIR

The role is a file of the project, so all people who work there have it. On the command line:
`retinue spawn changelog "…"`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import retinue

ROLE = """\
---
description: Writes one line for the changelog.
tools: read_file, search_files
max_tool_calls: 8
max_tokens: 20000
---
You write one line for a changelog: what changed for the people who use it, in their words.
"""


async def main(directory: str) -> None:
    path = Path(directory, ".retinue", "agents", "changelog.md")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ROLE, "utf-8")
    async with retinue.open(directory) as rt:
        result = await rt.spawn("changelog", "Codes have six characters now, and not four.")
    print(result.response)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
