"""What going on costs: from `rt.resume` of a run with many closed children to its next model call.

Beside it, in the same process and in turn, the run's journal is read and checked as `retinue audit`
does. A resumption has to do as much before it may believe what it reads.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import msgspec

import retinue
from retinue.config.environment import Environment
from retinue.domain.messages import Request
from retinue.errors import RunSuspended, Unreachable
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, say
from retinue.project import open_journal
from retinue.runtime.history.audit import audit

CHILDREN = 1_000
LAPS = 5
GONE = Unreachable("gone")
LIMITS: retinue.LimitOptions = {"max_tool_calls": 1_000_000, "max_context_tokens": 100_000_000}


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of wall-clock seconds."""

    children: int
    laps: int
    resumed_s: float
    audited_s: float

    @property
    def times_audit(self) -> float:
        return self.resumed_s / self.audited_s

    @property
    def line(self) -> str:
        return (
            f"A run with {self.children:,} closed children calls its model {self.resumed_s:.2f} s"
            f" after `rt.resume`. That is {self.times_audit:.2f} × the time to read and check its"
            f" journal ({self.audited_s:.2f} s). Median of {self.laps} alternating laps."
        )


def measure_resumption(*, children: int = CHILDREN, laps: int = LAPS) -> Resumption:
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        project, home = Path(scratch, "project"), Path(scratch, "home")
        project.mkdir()
        home.mkdir()
        environment = Environment(variables={"HOME": str(home), "PATH": "/usr/bin:/bin"})
        return asyncio.run(_measured(project, environment, children, laps))


async def _measured(
    project: Path, environment: Environment, children: int, laps: int
) -> Resumption:
    run_id = await _left(project, environment, children)
    resumed: list[float] = []
    audited: list[float] = []
    for _ in range(laps):
        resumed.append(await _resumed(project, environment, run_id, children))
        audited.append(await _audited(project, run_id))
    return Resumption(
        children=children,
        laps=laps,
        resumed_s=statistics.median(resumed),
        audited_s=statistics.median(audited),
    )


def _script(children: int, then: Step) -> ScriptedModel:
    """A root that has children, and then `then`."""
    spawns = [call("spawn_agent", task=f"part {n}", role="researcher") for n in range(children)]
    rules: dict[str, list[Step]] = {
        "part": [call("list_dir"), say("Done.")],
        "": [calls(*spawns), then],
    }
    return ScriptedModel(rules, strict=False)


async def _left(project: Path, environment: Environment, children: int) -> str:
    """The id of a run whose model was lost when all of its children were done."""
    model = _script(children, fail(GONE))
    async with retinue.open(project, model=model, environment=environment, limits=LIMITS) as rt:
        try:
            run = await rt.run("Lead.")
        except RunSuspended as suspended:
            return suspended.run_id
    raise RuntimeError(f"the run to go on with ended with {run.status}: {run.error}")


async def _resumed(project: Path, environment: Environment, run_id: str, children: int) -> float:
    """Seconds until the model is asked again, which is then as lost as it was."""
    asked = 0.0

    def then(_: Request) -> Step:
        nonlocal asked
        asked = time.perf_counter()
        return fail(GONE)

    model = _script(children, then)
    async with retinue.open(project, model=model, environment=environment, limits=LIMITS) as rt:
        began = time.perf_counter()
        with suppress(RunSuspended):
            await rt.resume(run_id)
    return asked - began


async def _audited(project: Path, run_id: str) -> float:
    async with open_journal(project) as store:
        began = time.perf_counter()
        await audit(store, run_id)
        return time.perf_counter() - began
