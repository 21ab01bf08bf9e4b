"""The goals, and whether a run met them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from benchmarks.calls import Cost
from benchmarks.race import Heat, Score
from benchmarks.resumption import Resumption
from benchmarks.startup import Startup
from benchmarks.workload import PLAIN, RESPONSES, STREAM

JUDGED = 1000
"""The number of children by which retinue is held against the floor."""
TIMES_FLOOR = 2.0
TIMES_UNTRACED = 1.15
GROWTH = 1.3
TIMES_BARE = 1.3
PEAK_MB = 1024
HELP_MS = 120
IMPORT_MS = 80
RESUMED_MS = 2_000
TIMES_AUDIT = 2.5


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """`measured` is None where the run did not include what the goal is about."""

    name: str
    limit: float
    measured: float | None
    unit: str

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured in this run"
        value = f"{self.measured:.2f}{self.unit}" if self.unit == "×" else self._whole()
        if self.measured <= self.limit:
            return f"met: {value}"
        over = 100 * (self.measured / self.limit - 1)
        return f"missed by {over:.0f} %: {value}"

    def _whole(self) -> str:
        return f"{self.measured:.0f} {self.unit}"

    @property
    def line(self) -> str:
        limit = f"{self.limit:g}{'' if self.unit == '×' else ' '}{self.unit}"
        return f"{self.name} (at most {limit}): {self.verdict}"


LED = "retinue, led by a model"
TRACED = "retinue, with telemetry"


def _retinue(heats: Mapping[int, Heat], children: int, *, name: str = "retinue") -> Score | None:
    heat = heats.get(children)
    if heat is None:
        return None
    return next((s for s in heat.others if s.contender.name == name), None)


def judge(
    heats: Mapping[int, Heat],
    calls: Sequence[Cost],
    startup: Startup | None,
    resumption: Resumption | None,
) -> list[Goal]:
    few, some, many = (_retinue(heats, children) for children in (100, JUDGED, 10_000))
    led = _retinue(heats, JUDGED, name=LED)
    traced = _retinue(heats, JUDGED, name=TRACED)
    times_bare = {cost.model: cost.times_bare for cost in calls}
    return [
        Goal(
            name=f"CPU of a child against the floor, N = {JUDGED:,}",
            limit=TIMES_FLOOR,
            measured=None if some is None else heats[JUDGED].times_floor(some),
            unit="×",
        ),
        Goal(
            name="the same, with the fan-out started by a model through spawn_agent",
            limit=TIMES_FLOOR,
            measured=None if led is None else heats[JUDGED].times_floor(led),
            unit="×",
        ),
        Goal(
            name="CPU of a child with telemetry against one without",
            limit=TIMES_UNTRACED,
            measured=None if traced is None or some is None else traced.cpu_ms / some.cpu_ms,
            unit="×",
        ),
        Goal(
            name="CPU of a child at N = 10,000 against N = 100",
            limit=GROWTH,
            measured=None if many is None or few is None else many.cpu_ms / few.cpu_ms,
            unit="×",
        ),
        Goal(
            name="CPU of a plain call against bare aiohttp and msgspec",
            limit=TIMES_BARE,
            measured=times_bare.get(PLAIN),
            unit="×",
        ),
        Goal(
            name="CPU of a stream of 200 chunks against bare aiohttp and msgspec",
            limit=TIMES_BARE,
            measured=times_bare.get(STREAM),
            unit="×",
        ),
        Goal(
            name="CPU of the same stream by the Responses API against bare aiohttp and msgspec",
            limit=TIMES_BARE,
            measured=times_bare.get(RESPONSES),
            unit="×",
        ),
        Goal(
            name="peak memory at N = 10,000",
            limit=PEAK_MB,
            measured=None if many is None else many.peak_mb,
            unit="MiB",
        ),
        Goal(
            name="`retinue --help` over a bare interpreter",
            limit=HELP_MS,
            measured=None if startup is None else startup.help_over_bare_ms,
            unit="ms CPU",
        ),
        Goal(
            name="`import retinue` over a bare interpreter",
            limit=IMPORT_MS,
            measured=None if startup is None else startup.import_over_bare_ms,
            unit="ms CPU",
        ),
        Goal(
            name="from `rt.resume` of a run with 1,000 closed children to its next model call",
            limit=RESUMED_MS,
            measured=None if resumption is None else 1000 * resumption.resumed_s,
            unit="ms",
        ),
        Goal(
            name="the same against reading and checking its journal",
            limit=TIMES_AUDIT,
            measured=None if resumption is None else resumption.times_audit,
            unit="×",
        ),
    ]
