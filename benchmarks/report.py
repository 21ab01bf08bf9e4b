"""What a run found, as tables for the terminal and as docs/benchmarks.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import msgspec

from benchmarks.goals import Goal
from benchmarks.machine import Machine
from benchmarks.race import Heat
from benchmarks.startup import Startup

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


class Report(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    concurrency: int
    repeat: int
    heats: tuple[Heat, ...]
    startup: Startup | None
    goals: tuple[Goal, ...]
    failures: tuple[str, ...]

    @property
    def caption(self) -> str:
        laps = "1 lap" if self.repeat == 1 else f"median of {self.repeat} interleaved laps"
        return f"{self.machine}; at most {self.concurrency} children at once; {laps}"


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


def plain(report: Report) -> str:
    """The report for a terminal."""
    table = [_HEADINGS, *rows(report.heats)]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEADINGS))]
    lines = [report.caption, ""]
    for row in table:
        # Names to the left, numbers to the right.
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    if report.startup is not None:
        lines += ["", _startup_line(report.startup)]
    lines += ["", "Goals", *(f"  {goal.line}" for goal in report.goals)]
    if report.failures:
        lines += ["", "Broken", *(textwrap.indent(each, "  ") for each in report.failures)]
    return "\n".join(lines)


def _startup_line(startup: Startup) -> str:
    return (
        f"Start-up, CPU over a bare interpreter ({startup.bare_ms:.0f} ms), median of "
        f"{startup.runs}: `retinue --help` {startup.help_over_bare_ms:.0f} ms, "
        f"`import retinue` {startup.import_over_bare_ms:.0f} ms"
    )


def markdown(report: Report) -> str:
    """The page docs/benchmarks.md, with the picture beside it."""
    sections = [_ABOUT, f"![CPU per child]({PICTURE})", "## Speed", report.caption]
    rule = tuple("---" if column < 2 else "---:" for column in range(len(_HEADINGS)))
    sections.append(
        "\n".join("| " + " | ".join(row) + " |" for row in (_HEADINGS, rule, *rows(report.heats)))
    )
    sections.append(_READING)
    if report.startup is not None:
        sections += ["## Start-up", _startup_line(report.startup) + "."]
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

- **retinue** is used by its public API with its journal on, and streams. The floor streams too.
- **Peers** are used in their plain idiom, one `await` of their run method for each child, with
  asynchronous tools, without streaming where they offer the choice, without a journal, and with
  tracing and telemetry off. deepagents uses the file tools that it brings, and sends its own long
  instructions with them.
- The other peers send the schemas of two tools where retinue and the floor send more, which is in
  their favour; "kB sent" says how much each sent."""

_AGAIN = """\
## Run it again

```
script/bench --quick              # 100 and 300 children, no peers
script/bench --peers              # everything
script/bench --peers --write      # and write this page and its picture
```

The peers' versions are pinned in `benchmarks/contestants/peers.toml`. Each is installed on its
first run into a venv of its own under `.bench/`. Close other programs first: a lap is CPU time, and
a busy machine makes all of it slower, the floor included.
"""
