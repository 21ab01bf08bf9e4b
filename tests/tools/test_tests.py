from __future__ import annotations

import msgspec
import pytest

from retinue.errors import ToolFailure
from retinue.ports.sandbox import CommandResult
from retinue.ports.tool import SuiteRun, ToolContext
from retinue.tools.tests import run_tests


class Suite:
    """A test suite that has run."""

    def __init__(self, output: str, exit_code: int, *, timed_out: bool = False) -> None:
        self._result = CommandResult(exit_code=exit_code, output=output, timed_out=timed_out)

    async def run(self, selector: str) -> SuiteRun:
        return SuiteRun(command=f"pytest {selector}".strip(), result=self._result)


def with_suite(ctx: ToolContext, *args: object, **kwargs: object) -> ToolContext:
    return msgspec.structs.replace(ctx, tests=Suite(*args, **kwargs))  # type: ignore[arg-type]


async def test_passed(ctx: ToolContext) -> None:
    done = await run_tests.run({"selector": "a.py"}, with_suite(ctx, "1 passed\n", 0))
    assert done.content == "The tests passed. Exit code 0: pytest a.py\nOutput:\n1 passed"
    assert (done.ok, done.command, done.exit_code) == (True, "pytest a.py", 0)


async def test_failures_come_first(ctx: ToolContext) -> None:
    noise = "".join(f"test {n} ... ok\n" for n in range(5_000))
    output = f"FAILED a.py::test_one - assert 1 == 2\n{noise}1 failed\n"
    done = await run_tests.run({}, with_suite(ctx, output, 1))
    lines = done.content.split("\n")
    assert lines[:3] == [
        "The tests failed. Exit code 1: pytest",
        "Failures:",
        "FAILED a.py::test_one - assert 1 == 2",
    ]
    assert lines[3].startswith("Output (the last ")
    assert lines[-1] == "1 failed"
    assert len(done.content.encode()) < 17_000
    assert not done.ok


@pytest.mark.parametrize(
    "line",
    [
        "--- FAIL: TestSell (0.00s)",
        "test shop::sells ... FAILED",
        "not ok 3 - sells",
        "  ✕ sells (3 ms)",
        "FAIL: test_sell (shop.Test)",
        "src/a.c:3:1: error: expected ';'",
        "error[E0425]: cannot find value",
        "[ERROR] ShopTest.sells:12 expected 1",
        "rspec ./spec/shop_spec.rb:3 # sells",
    ],
)
async def test_failures_of_many_programs(ctx: ToolContext, line: str) -> None:
    done = await run_tests.run({}, with_suite(ctx, f"noise\n{line}\nend\n", 1))
    assert done.content.split("\n")[1:3] == ["Failures:", line.strip()]


async def test_killed(ctx: ToolContext) -> None:
    done = await run_tests.run({}, with_suite(ctx, "", -9, timed_out=True))
    assert done.content == "The tests were killed: they took too long. Exit code -9: pytest"
    assert not done.ok


async def test_no_command(ctx: ToolContext) -> None:
    with pytest.raises(ToolFailure, match="no test command"):
        await run_tests.run({}, ctx)
