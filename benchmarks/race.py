"""Laps: one contestant's process run once, checked against what the server saw, and summed up."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.contest import warm_up_children
from benchmarks.endpoint import Endpoint
from benchmarks.workload import MODEL_CALLS, write_notes

_LAP_TIMEOUT_S = 1800

# Peers that report home would dial out of the benchmark, and pay for it. Each name is one
# that the peer, or the tracing library it brings, reads.
_QUIET = {
    "AGNO_TELEMETRY": "false",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}
_PROXIES = {"http_proxy", "https_proxy", "all_proxy"}


class LapError(Exception):
    """A contestant did not do the work, so its time means nothing."""


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    python: Path
    module: str


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a contestant prints."""

    children: int
    ok_children: int
    cpu_s: float
    wall_s: float
    max_rss_mb: float


class Lap(msgspec.Struct, frozen=True, kw_only=True):
    reading: Reading
    sent_bytes_per_child: float


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The laps of one contestant at one number of children."""

    contender: Contender
    children: int
    laps: tuple[Lap, ...]

    @property
    def cpu_ms(self) -> float:
        """CPU per child, the median of the laps."""
        return statistics.median(self._cpu_ms_of_laps())

    @property
    def cpu_ms_range(self) -> tuple[float, float]:
        each = self._cpu_ms_of_laps()
        return min(each), max(each)

    @property
    def wall_s(self) -> float:
        return statistics.median(lap.reading.wall_s for lap in self.laps)

    @property
    def peak_mb(self) -> float:
        """The largest lap: a limit on memory holds only if every lap kept it."""
        return max(lap.reading.max_rss_mb for lap in self.laps)

    @property
    def sent_kb(self) -> float:
        return statistics.median(lap.sent_bytes_per_child for lap in self.laps) / 1000

    def _cpu_ms_of_laps(self) -> list[float]:
        return [1000 * lap.reading.cpu_s / lap.reading.children for lap in self.laps]


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """Contestants that ran interleaved at one number of children; the floor is among them."""

    floor: Score
    others: tuple[Score, ...]
    failures: tuple[str, ...] = ()
    """Why a contestant is missing from `others`."""

    @property
    def scores(self) -> tuple[Score, ...]:
        return (self.floor, *self.others)

    def times_floor(self, score: Score) -> float:
        return score.cpu_ms / self.floor.cpu_ms


def _environment(settings: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.lower() not in _PROXIES}
    # The settings of whoever runs this must not change what is measured.
    return kept | _QUIET | {"XDG_CONFIG_HOME": str(settings)}


def run_lap(
    contender: Contender,
    *,
    endpoint: Endpoint,
    children: int,
    concurrency: int,
    root: Path,
    scratch: Path,
) -> Lap:
    """Run one contestant once in a fresh folder. Raises LapError unless it did all the work."""
    label = f"{contender.name} at {children} children"
    # Nobody deletes it before the last lap is over: for a minute ext4 does not give out the inodes
    # of deleted files, and looks at each of them anew whenever a file is made. What one lap deleted
    # made a file of the next cost up to ten times as much.
    folder = tempfile.mkdtemp(dir=scratch)
    workdir, settings = Path(folder, "work"), Path(folder, "settings")
    settings.mkdir()
    write_notes(workdir)
    before = endpoint.tally()
    command = [str(contender.python), "-m", contender.module]
    command += [endpoint.base_url, str(children), str(concurrency), str(workdir)]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=_environment(settings),
            capture_output=True,
            text=True,
            timeout=_LAP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise LapError(f"{label} was stopped after {_LAP_TIMEOUT_S} s") from None
    seen = endpoint.tally().since(before)
    if done.returncode != 0:
        raise LapError(f"{label} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    reading = msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=Reading)
    total = children + warm_up_children(children, concurrency)
    if reading.ok_children != children:
        raise LapError(f"{label}: only {reading.ok_children} ended well")
    if seen.finished != total or seen.requests != total * MODEL_CALLS:
        raise LapError(
            f"{label}: the server saw {seen.requests} requests and {seen.finished} finished "
            f"children, and expected {total * MODEL_CALLS} and {total}"
        )
    return Lap(reading=reading, sent_bytes_per_child=seen.body_bytes / total)


def run_heat(
    floor: Contender,
    others: Sequence[Contender],
    *,
    endpoint: Endpoint,
    children: int,
    concurrency: int,
    repeat: int,
    root: Path,
    scratch: Path,
) -> Heat:
    """Run the contestants in turn, `repeat` times, so that a slow minute of the machine falls on
    all of them. One that fails is left out with its reason; without a floor there is no heat."""
    laps: dict[str, list[Lap]] = {contender.name: [] for contender in (floor, *others)}
    failures: dict[str, str] = {}
    for _ in range(repeat):
        for contender in (floor, *others):
            if contender.name in failures:
                continue
            try:
                lap = run_lap(
                    contender,
                    endpoint=endpoint,
                    children=children,
                    concurrency=concurrency,
                    root=root,
                    scratch=scratch,
                )
            except LapError as error:
                if contender is floor:
                    raise
                failures[contender.name] = str(error)
            else:
                laps[contender.name].append(lap)
    scores = [
        Score(contender=contender, children=children, laps=tuple(laps[contender.name]))
        for contender in (floor, *others)
        if contender.name not in failures
    ]
    return Heat(floor=scores[0], others=tuple(scores[1:]), failures=tuple(failures.values()))
