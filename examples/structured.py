"""Answers as values: python examples/structured.py DIR FILE"""

from __future__ import annotations

import asyncio
import sys

import msgspec

import retinue


class Finding(msgspec.Struct):
    line: int
    problem: str


class Review(msgspec.Struct):
    findings: list[Finding]


async def main(directory: str, file: str) -> None:
    async with retinue.open(directory) as rt:
        result = await rt.spawn(
            "reviewer",
            f"List the problems of {file}.",
            context_files=(file,),
            output=Review,
        )
    if result.data is None:
        sys.exit(f"{result.status}: {result.error}")
    for finding in result.data.findings:
        print(f"{file}:{finding.line}: {finding.problem}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
