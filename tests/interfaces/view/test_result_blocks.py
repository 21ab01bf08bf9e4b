from __future__ import annotations

from collections.abc import Awaitable, Callable

from retinue.domain.events import Event
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import FileChange, Result, Spent, Status
from retinue.domain.run_state import fold
from retinue.errors import ProviderError
from retinue.interfaces.view.result_blocks import agent_block, result_block
from retinue.interfaces.view.styled_text import plain_text
from retinue.models.scripted.model import call, fail, say

Record = Callable[..., Awaitable[list[Event]]]


async def test_completed_agent(record: Record) -> None:
    lines = "\n".join(["x"] * 82)
    write = call("write_file", path="tests/auth_test.py", content=lines).using(900, 100)
    spawn = call("spawn_agent", role="executor", task="Write tests for auth.py", mode="auto")
    events = await record(
        {
            "Write tests": [write, say("Created 5 test cases.").using(200, 34)],
            "": [spawn, say("done")],
        }
    )
    child = fold(events).agents["a1"]
    assert plain_text(agent_block(child, width=80)) == (
        '[executor] Completed: "Write tests for auth.py"\n'
        "  Duration: 0.0s (2 turns, 1 tool call, 1,034 tokens)\n"
        "  Files modified: tests/auth_test.py (+82 lines, new file)\n"
        "  Result: Created 5 test cases."
    )


async def test_failed_agent(record: Record) -> None:
    spawn = call("spawn_agent", role="researcher", task="Look")
    broken = fail(ProviderError("The server\nsaid no."))
    events = await record({"Look": [broken], "": [spawn, say("done")]})
    assert plain_text(agent_block(fold(events).agents["a1"], width=80)) == (
        '[researcher] Ended (error): "Look"\n'
        "  Duration: 0.0s (0 turns, 0 tool calls, 0 tokens)\n"
        "  Reason: The server\n"
        "          said no."
    )


RESULT = Result(
    status=Status.COMPLETED,
    agent_id="a1",
    run_id="r",
    role="executor",
    task="Write tests",
    response="\n".join(f"line {n}" for n in range(9)),
    usage=Spent(turns=6, tool_calls=8, tokens_in=100, duration_s=34.2, cost_usd=0.02),
    files_modified=(FileChange(path="a.py", added=1), FileChange(path="b.py", removed=3)),
    cached=True,
)


def test_long_result_is_shortened_and_files_are_listed() -> None:
    assert plain_text(result_block(RESULT, width=80, max_lines=2)) == (
        '[executor] Completed: "Write tests"\n'
        "  Duration: 34.2s (6 turns, 8 tool calls, 100 tokens, $0.02, cached)\n"
        "  Files modified:\n"
        "    a.py (+1 line)\n"
        "    b.py (-3 lines)\n"
        "  Result: line 0\n"
        "          line 1\n"
        "          … 7 more lines"
    )


def test_result_can_be_left_out() -> None:
    assert "line 0" not in plain_text(result_block(RESULT, width=80, max_lines=0))


def test_run_block_has_total_usage() -> None:
    fields = {name: getattr(RESULT, name) for name in RESULT.__struct_fields__}
    total = Spent(turns=60, tool_calls=80, duration_s=99.0)
    run = RunResult(**fields, total=total, children=5)
    assert "Duration: 99.0s (60 turns, 80 tool calls" in plain_text(result_block(run, width=80))


def test_blocks_do_not_exceed_the_width() -> None:
    for width in (30, 40, 80):
        assert max(map(len, plain_text(result_block(RESULT, width=width)).splitlines())) <= width
