from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.sandbox.unconfined import Unconfined
from retinue.tools.shell import run_command


@pytest.fixture
def able(ctx: ToolContext) -> ToolContext:
    return msgspec.structs.replace(ctx, sandbox=Unconfined({"PATH": "/usr/bin:/bin"}))


async def refusal(ctx: ToolContext, **arguments: Any) -> str:
    with pytest.raises(ToolFailure) as caught:
        await run_command.run(arguments, ctx)
    return str(caught.value)


async def test_command(able: ToolContext, root: Path) -> None:
    (root / "a").touch()
    assert await run_command.run({"command": "ls"}, able) == ToolOutcome(
        content="Exit code 0\na\n", command="ls", exit_code=0
    )


async def test_failing_command(able: ToolContext) -> None:
    assert await run_command.run({"command": "exit 3"}, able) == ToolOutcome(
        content="Exit code 3", ok=False, command="exit 3", exit_code=3
    )


async def test_command_timeout(able: ToolContext) -> None:
    done = await run_command.run({"command": "sleep 60", "timeout_s": 0.5}, able)
    assert done == ToolOutcome(
        content="Killed after 0.5 s, with everything it had started.",
        ok=False,
        command="sleep 60",
        exit_code=-9,
    )


async def test_long_output(able: ToolContext) -> None:
    done = await run_command.run({"command": "seq 10000"}, able)
    assert done.content.startswith("Exit code 0\n1\n2\n")
    assert "\n[… 32,894 bytes cut …]\n" in done.content
    assert done.content.endswith("\n9999\n10000\n")
    assert len(done.content.encode()) < 16_100


async def test_no_sandbox(ctx: ToolContext) -> None:
    assert await refusal(ctx, command="ls") == (
        "Shell commands are off: no sandbox is available here. Work without them; only the user"
        " can allow commands without a sandbox, with --unsafe-no-sandbox."
    )


async def test_wrong_arguments(able: ToolContext) -> None:
    assert await refusal(able, command=" ") == "run_command: 'command' is empty."
    for timeout_s, shown in ((0, "0"), (-1, "-1"), ("nan", "nan")):
        assert await refusal(able, command="ls", timeout_s=timeout_s) == (
            f"run_command: 'timeout_s' must be positive, not {shown}."
        )
