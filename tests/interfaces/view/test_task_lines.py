from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.interfaces.view.agent_tree import DisplayState, TreeRow
from retinue.interfaces.view.formatting import cell_width
from retinue.interfaces.view.styled_text import Line, Tone
from retinue.interfaces.view.task_lines import task_line


def row(**fields: object) -> TreeRow:
    usual = {"key": "k", "run_id": "r", "agent_id": "a1", "state": DisplayState.RUNNING, "depth": 1}
    return TreeRow(**usual | {"name": "tester.1"} | fields)  # type: ignore[arg-type]


def text(line: Line) -> str:
    return line.plain


RUNNING = row(
    task="Write tests for auth.ts",
    turn=3,
    max_turns=10,
    elapsed_s=12.4,
    activity="read_file auth.ts",
)


def test_running_task() -> None:
    line = task_line(RUNNING, width=79, symbol="⠋")
    assert text(line) == (
        '  ⠋ tester.1 "Write tests for auth.ts" (turn 3/10, 12.4s)  read_file auth.ts'
    )
    assert line.spans[-1].style == Tone.DIM, "its tool calls are dimmed"


def test_long_task_leaves_room_for_the_activity() -> None:
    long = row(
        task="Write tests " * 20, turn=3, max_turns=10, elapsed_s=12.4, activity="read_file a.py"
    )
    told = text(task_line(long, width=79, symbol="⠋"))
    assert told == '  ⠋ tester.1 "Write tests Write tests Writ…" (turn 3/10, 12.4s)  read_file a.py'


def test_narrow_line_keeps_name_and_progress() -> None:
    assert text(task_line(RUNNING, width=36, symbol="⠋")) == "  ⠋ tester.1 (turn 3/10, 12.4s)"


def test_finished_tasks() -> None:
    done = row(state=DisplayState.DONE, task="Look", turn=6, elapsed_s=34.2, child_count=2)
    assert text(task_line(done, width=79, symbol="✓")) == '  ✓ tester.1 "Look" (6 turns, 34.2s, +2)'
    cached = row(state=DisplayState.DONE, task="Look", cached=True)
    assert text(task_line(cached, width=79, symbol="✓")) == '  ✓ tester.1 "Look" (cached)'
    waits = row(state=DisplayState.WAITING, task="Look")
    assert text(task_line(waits, width=79, symbol="○")) == '  ○ tester.1 "Look" (waiting)'
    failed = row(
        state=DisplayState.FAILED, task="Look", activity="error: No.", turn=1, elapsed_s=0.2
    )
    line = task_line(failed, width=79, symbol="✗")
    assert text(line) == '  ✗ tester.1 error: No. "Look" (1 turn, 0.2s)'
    assert Tone.FAILED in [span.style for span in line.spans]


def test_group_row() -> None:
    done = row(
        state=DisplayState.DONE,
        name="tester",
        count=1200,
        tool_calls=3000,
        elapsed_s=4.1,
        child_count=1200,
    )
    assert text(task_line(done, width=79, symbol="✓")) == (
        "  ✓ 1,200× tester (3,000 tool calls, 4.1s)"
    )
    hidden = row(
        state=DisplayState.DONE,
        task="Look",
        turn=1,
        elapsed_s=1,
        child_count=3,
        failed_descendants=2,
    )
    assert text(task_line(hidden, width=79, symbol="✓")) == (
        '  ✓ tester.1 2 failed below "Look" (1 turn, 1.0s, +3)'
    )


words = st.text(st.sampled_from("ab 世…"), max_size=60)


@given(
    width=st.integers(20, 120),
    one=st.builds(
        row,
        state=st.sampled_from(list(DisplayState)),
        depth=st.integers(0, 9),
        name=words,
        task=words,
        activity=words,
        count=st.sampled_from([1, 40_000]),
        turn=st.sampled_from([0, 3, 40_000]),
        max_turns=st.just(50_000),
        elapsed_s=st.sampled_from([0.0, 12.3, 100_000.0]),
        child_count=st.sampled_from([0, 7]),
        failed_descendants=st.sampled_from([0, 100_000]),
        expanded=st.booleans(),
    ),
)
def test_line_does_not_exceed_the_width(width: int, one: TreeRow) -> None:
    assert cell_width(text(task_line(one, width=width, symbol="⠋"))) <= width
