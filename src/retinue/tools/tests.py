"""Tool that runs the project's own tests."""

from __future__ import annotations

import re

from retinue.domain.messages import Effect
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.tools.excerpt import MAX_BYTES, lines_that_fit
from retinue.tools.function import tool

MAX_FAILURES = 40
MAX_LINE_CHARS = 300
_TAIL_BYTES = MAX_BYTES // 2
# For pytest, unittest, go, cargo, jest, mocha, TAP, JUnit, rspec, dotnet, phpunit and compilers.
_FAILURE = re.compile(
    r"^\s*(?:FAILED\b|ERROR\b|FAIL[: ]|--- FAIL|not ok\b|[✕✗×✘] |\d+\) |E\s{2,}\S|rspec \./"
    r"|\[FAIL\]|Failed \w|thread '.*' panicked|error(?:\[E\d+\])?: |panic: |\[ERROR\] "
    r"|AssertionError)|\.{3} FAILED$|: (?:fatal )?error: |<<< (?:FAILURE|ERROR)!"
)


@tool(effect=Effect.CHECK)
async def run_tests(ctx: ToolContext, selector: str | None = None) -> ToolOutcome:
    """Run the project's tests, or only selector (a file or test)."""
    if ctx.tests is None:
        raise ToolFailure("The project has no test command.")
    run = await ctx.tests.run(selector or "")
    done = run.result
    if done.timed_out:
        head = "The tests were killed: they took too long."
    else:
        head = "The tests passed." if done.exit_code == 0 else "The tests failed."
    parts = [f"{head} Exit code {done.exit_code}: {run.command}", *([run.note] if run.note else [])]
    passed = done.exit_code == 0 and not done.timed_out
    return ToolOutcome(
        content="\n".join([*parts, *_report(done.output, passed=passed)]),
        ok=passed,
        command=run.command,
        exit_code=done.exit_code,
        changed=done.changed,
    )


def _report(output: str, *, passed: bool) -> list[str]:
    """The lines about failures, then the end of the output, where most programs sum up."""
    lines = [line[:MAX_LINE_CHARS] for line in output.rstrip().split("\n")]
    parts: list[str] = []
    if not passed:
        failures = list(dict.fromkeys(line.strip() for line in lines if _FAILURE.search(line)))
        shown = lines_that_fit(failures[:MAX_FAILURES], MAX_BYTES - _TAIL_BYTES)
        if shown:
            more = len(failures) - len(shown)
            parts = ["Failures:", *shown, *([f"[{more} more]"] if more else [])]
    tail = lines_that_fit(lines[::-1], _TAIL_BYTES)[::-1]
    if tail != [""]:
        cut = len(lines) - len(tail)
        parts += [f"Output (the last {len(tail):,} lines):" if cut else "Output:", *tail]
    return parts
