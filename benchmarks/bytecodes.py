"""How many bytecodes the event loop executes for a child: `script/bench --bytecodes`.

Unlike time, the count is the same on a busy machine, so it shows what a change of a percent does.
It leaves out what is not Python: SQLite and its thread, system calls, parsers, hashes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks.contest import Contestant, Job
from benchmarks.contestants import retinue, retinue_led
from benchmarks.endpoint import endpoint
from benchmarks.floor import floor
from benchmarks.workload import write_notes

CHILDREN = 50
SHOWN = 30
CONTESTANTS: dict[str, Contestant] = {
    "floor": floor,
    "led by a program": retinue.contestant,
    "led by a model": retinue_led.contestant,
}


def measure_bytecodes(root: Path) -> str:
    """The count of each contestant, and the functions of the last one with the highest counts."""
    lines: list[str] = []
    counts: Counter[CodeType] = Counter()
    with endpoint(root) as server:
        for name, contestant in CONTESTANTS.items():
            counts = _counted(contestant, server.base_url)
            lines.append(f"{counts.total() / CHILDREN:10,.0f}  {name}")
    lines.append("")
    for code, count in counts.most_common(SHOWN):
        module = Path(code.co_filename).name
        lines.append(f"{count / CHILDREN:10,.0f}  {code.co_qualname} ({module})")
    return "\n".join(lines)


def _counted(contestant: Contestant, base_url: str) -> Counter[CodeType]:
    counts: Counter[CodeType] = Counter()

    def enter(frame: FrameType, _event: str, _argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    def count(frame: FrameType, event: str, _argument: Any) -> Any:
        counts[frame.f_code] += event == "opcode"
        return count

    async def run(job: Job) -> None:
        async with contestant(job) as fan_out:
            await fan_out(job.concurrency)
            sys.settrace(enter)
            try:
                succeeded = await fan_out(job.children)
            finally:
                sys.settrace(None)
            assert succeeded == job.children, f"{succeeded} of {job.children} ended well"

    with tempfile.TemporaryDirectory() as folder:
        settings, workdir = Path(folder, "settings"), Path(folder, "work")
        settings.mkdir()
        write_notes(workdir)
        os.environ.update(XDG_CONFIG_HOME=str(settings), OTEL_SDK_DISABLED="true")
        asyncio.run(
            run(Job(base_url=base_url, children=CHILDREN, concurrency=CHILDREN, workdir=workdir))
        )
    return counts
