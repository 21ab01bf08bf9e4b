"""What a run found, as tables for the terminal and as docs/benchmarks.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import msgspec

from benchmarks.calls import LAPS, Cost
from benchmarks.goals import Goal
from benchmarks.machine import Machine
from benchmarks.mcp import McpCost
from benchmarks.race import Heat
from benchmarks.resumption import Resumption
from benchmarks.startup import Startup
from benchmarks.workload import PLAIN, RESPONSES, STREAM, STREAM_CHUNKS

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
_CALL_NAMES = {
    PLAIN: "plain",
    STREAM: f"a stream of {STREAM_CHUNKS} chunks",
    RESPONSES: f"a stream of {STREAM_CHUNKS} pieces by the Responses API",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    concurrency: int
    heats: tuple[Heat, ...]
    calls: tuple[Cost, ...]
    startup: Startup | None
    resumption: Resumption | None
    mcp: McpCost | None
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
    if report.mcp is not None:
        lines += ["", report.mcp.line]
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
        sections += ["## Resume", report.resumption.line]
    if report.mcp is not None:
        sections += ["## MCP", report.mcp.line]
    goals = "\n".join(f"- {goal.line}" for goal in report.goals)
    sections += ["## Goals", goals]
    if report.failures:
        listed = "\n".join(f"- {failure.splitlines()[0]}" for failure in report.failures)
        sections += ["## Broken in this run", listed]
    return "\n\n".join([*sections, _AGAIN])


_ABOUT = """\
# Benchmarks

What does an agent runtime cost, apart from the model? In this benchmark N children each make four
model calls and three tool calls (`read_file`, `list_dir`, `read_file` on real files). The server is
OpenAI-compatible, runs on loopback, and answers at once from a script. So the measured time is the
time of the runtime.

The **floor** is the same HTTP traffic with bare aiohttp and msgspec, without agents. Times are
multiples of the floor, because multiples depend less on the machine."""

_READING = """\
CPU is user and system time of all threads of the contestant's process and of the processes it
waited for, during the fan-out. Imports and a warm-up with as many children as run at once come
before it. The server is another process and is not counted. It counts requests. A child is done
when the results of all three tools have reached the server. A lap with a wrong number of requests
or finished children is discarded.

- **retinue** uses its public API, with the journal, and streams. The floor streams too. A
  thread writes report files after the measured time (0.03 to 0.07 ms per child).
- **Peers** are used as their documentation shows: one `await` of their run method per child, with
  asynchronous tools, without streaming if that is a choice, without a journal, and with tracing and
  telemetry off. deepagents uses its own file tools and sends its long instructions.
- The other peers send the schemas of two tools. retinue and the floor send more, which favours the
  peers; the column "kB sent" shows it."""

_CALLS = f"""\
The same request is sent to the same server on loopback by two clients: retinue's client as a run
uses it, with repair, and the smallest client of aiohttp and msgspec that checks the status, decodes
every chunk, passes its text on and notices a truncated stream. Both use the same aiohttp settings,
one process and eight concurrent calls, in {LAPS} alternating laps; the cheapest lap of each counts.
A plain call is answered in one piece. A stream has one HTTP chunk per event, all in one write, so
the client never waits."""

_AGAIN = """\
## Run it again

```console
$ script/bench --quick              # 100 and 300 children, no peers
$ script/bench --calls              # single calls only
$ script/bench --resume             # time to resume only
$ script/bench --mcp                # what MCP costs a child
$ script/bench --bytecodes          # what a child executes, which a busy machine does not change
$ script/bench --cluster            # what two Ray nodes and Postgres cost a run
$ script/bench --peers              # everything
$ script/bench --peers --write      # everything; writes this page and its picture
```

The peers' versions are pinned in `benchmarks/contestants/peers.toml`. Each is installed on its
first run into its own venv under `.bench/`. Close other programs first: on a busy machine all laps
take more CPU, the floor included.
"""
