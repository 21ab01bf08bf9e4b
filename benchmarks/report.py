"""What a run found, as tables for the terminal and as docs/benchmarks.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import msgspec

from benchmarks.calls import LAPS, Cost
from benchmarks.goals import Goal
from benchmarks.machine import Machine
from benchmarks.race import Heat
from benchmarks.resumption import Resumption
from benchmarks.startup import Startup
from benchmarks.workload import PLAIN, STREAM, STREAM_CHUNKS

PICTURE = "benchmarks.svg"

_HEADINGS = (
    "contestant",
    "version",
    "N",
    "CPU ms/child",
    "lowest–highest",
    "× floor",
    "wall s",
    "peak MiB",
    "kB sent/child",
)


_CALL_HEADINGS = ("one call", "bare CPU µs", "retinue CPU µs", "× bare")
_CALL_NAMES = {PLAIN: "plain", STREAM: f"a stream of {STREAM_CHUNKS} chunks"}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    concurrency: int
    heats: tuple[Heat, ...]
    calls: tuple[Cost, ...]
    startup: Startup | None
    resumption: Resumption | None
    goals: tuple[Goal, ...]
    failures: tuple[str, ...]

    @property
    def caption(self) -> str:
        laps = ", ".join(
            f"{len(heat.floor.laps)} at N = {heat.floor.children:,}" for heat in self.heats
        )
        return (
            f"{self.machine}; at most {self.concurrency} children at once;"
            f" medians of interleaved laps ({laps})"
        )


def rows(heats: Sequence[Heat]) -> list[tuple[str, ...]]:
    return [
        (
            score.contender.name,
            score.contender.version,
            f"{score.children:,}",
            f"{score.cpu_ms:.2f}",
            "–".join(f"{bound:.2f}" for bound in score.cpu_ms_range),
            f"{heat.times_floor(score):.2f}",
            f"{score.wall_s:.2f}",
            f"{score.peak_mb:.0f}",
            f"{score.sent_kb:.1f}",
        )
        for heat in heats
        for score in sorted(heat.scores, key=lambda score: score.cpu_ms)
    ]


def call_rows(calls: Sequence[Cost]) -> list[tuple[str, ...]]:
    return [
        (
            _CALL_NAMES[cost.model],
            f"{cost.bare_us:.0f}",
            f"{cost.retinue_us:.0f}",
            f"{cost.times_bare:.2f}",
        )
        for cost in calls
    ]


def plain(report: Report) -> str:
    """The report for a terminal."""
    lines = [report.caption, "", *_aligned((_HEADINGS, *rows(report.heats)), names=2)]
    if report.calls:
        lines += ["", *_aligned((_CALL_HEADINGS, *call_rows(report.calls)), names=1)]
    if report.startup is not None:
        lines += ["", _startup_line(report.startup)]
    if report.resumption is not None:
        lines += ["", report.resumption.line]
    lines += ["", "Goals", *(f"  {goal.line}" for goal in report.goals)]
    if report.failures:
        lines += ["", "Broken", *(textwrap.indent(each, "  ") for each in report.failures)]
    return "\n".join(lines)


def plain_calls(machine: Machine, calls: Sequence[Cost], goals: Sequence[Goal]) -> str:
    """What single calls cost, for a terminal."""
    table = _aligned((_CALL_HEADINGS, *call_rows(calls)), names=1)
    return "\n".join([str(machine), "", *table, "", "Goals", *(f"  {goal.line}" for goal in goals)])


def _aligned(table: Sequence[tuple[str, ...]], *, names: int) -> list[str]:
    """The lines of a table: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < names else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _piped(table: Sequence[tuple[str, ...]], *, names: int) -> str:
    """The same as Markdown."""
    rule = tuple("---" if column < names else "---:" for column in range(len(table[0])))
    return "\n".join("| " + " | ".join(row) + " |" for row in (table[0], rule, *table[1:]))


def _startup_line(startup: Startup) -> str:
    return (
        f"Start-up, CPU over a bare interpreter ({startup.bare_ms:.0f} ms), median of "
        f"{startup.runs}: `retinue --help` {startup.help_over_bare_ms:.0f} ms, "
        f"`import retinue` {startup.import_over_bare_ms:.0f} ms"
    )


def markdown(report: Report) -> str:
    """The page docs/benchmarks.md, with the picture beside it."""
    sections = [_ABOUT, f"![CPU per child]({PICTURE})", "## Speed", report.caption]
    sections += [_piped((_HEADINGS, *rows(report.heats)), names=2), _READING]
    if report.calls:
        table = _piped((_CALL_HEADINGS, *call_rows(report.calls)), names=1)
        sections += ["## One call", table, _CALLS]
    if report.startup is not None:
        sections += ["## Start-up", _startup_line(report.startup) + "."]
    if report.resumption is not None:
        sections += ["## Going on", report.resumption.line]
    goals = "\n".join(f"- {goal.line}" for goal in report.goals)
    sections += ["## Goals", goals]
    if report.failures:
        listed = "\n".join(f"- {failure.splitlines()[0]}" for failure in report.failures)
        sections += ["## Broken in this run", listed]
    return "\n\n".join([*sections, _AGAIN])


_ABOUT = """\
# Benchmarks

What does an agent runtime cost, apart from the model? Here N children each make four model calls
and three tool calls (`read_file`, `list_dir`, `read_file` on real files) against an
OpenAI-compatible server on loopback that answers at once from a script. With a model that takes
no time, whatever is left is the runtime.

The **floor** is the same HTTP traffic from bare aiohttp and msgspec with no agent in it. Times are
given as a multiple of it, because a multiple survives a change of machine better than a time."""

_READING = """\
CPU is user and system time of all threads of the contestant's process, and of the processes it
waited for, over the fan-out alone: imports come before, and a warm-up of as many children as run
at once. The server is another process and is not counted. It counts requests, and counts a child
as done only when the results of all three tools came back to it; a lap with any other number of
requests or of finished children is thrown out as broken.

- **retinue** is used by its public API with its journal on, and streams. The floor streams too. The
  report files of a fan-out by a program are written in the pause after it, 0.03 to 0.07 ms a child
  that its figure does not hold; where a model leads, it does.
- **Peers** are used in their plain idiom, one `await` of their run method for each child, with
  asynchronous tools, without streaming where they offer the choice, without a journal, and with
  tracing and telemetry off. deepagents uses the file tools that it brings, and sends its own long
  instructions with them.
- The other peers send the schemas of two tools where retinue and the floor send more, which is in
  their favour; "kB sent" says how much each sent."""

_CALLS = f"""\
The same request to the same server on loopback: by our client as a run has it, mending included,
and by the barest client of aiohttp and msgspec that checks the status, reads every chunk into
typed values, hands its text on and notices a stream that was cut off. Both give aiohttp the same
settings. Both call from one process, eight calls at once, {LAPS} laps in turn; the cheapest lap of
each counts. A plain call is answered in one piece; a stream comes in one HTTP chunk per event, all
of them in one write, which leaves the client nothing to wait for."""

_AGAIN = """\
## Run it again

```console
$ script/bench --quick              # 100 and 300 children, no peers
$ script/bench --calls              # single calls only
$ script/bench --resume             # how soon a run goes on, only
$ script/bench --peers              # everything
$ script/bench --peers --write      # and write this page and its picture
```

The peers' versions are pinned in `benchmarks/contestants/peers.toml`. Each is installed on its
first run into a venv of its own under `.bench/`. Close other programs first: a lap is CPU time, and
a busy machine makes all of it slower, the floor included.
"""
