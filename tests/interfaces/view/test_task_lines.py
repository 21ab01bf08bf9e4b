"""A task under way in one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.interfaces.view.agent_table import Line, Tone
from retinue.interfaces.view.agent_tree import Mark, Row
from retinue.interfaces.view.formatting import cells
from retinue.interfaces.view.task_lines import task_line


def row(**fields: object) -> Row:
    usual = {"key": "k", "run_id": "r", "agent_id": "a1", "mark": Mark.RUNNING, "depth": 1}
    return Row(**usual | {"name": "tester.1"} | fields)  # type: ignore[arg-type]


def text(line: Line) -> str:
    return "".join(span.text for span in line)


RUNNING = row(
    task="Write tests for auth.ts", turn=3, max_turns=10, seconds=12.4, doing="read_file auth.ts"
)


def test_a_task_under_way() -> None:
    line = task_line(RUNNING, width=79, sign="⠋")
    assert text(line) == (
        '  ⠋ tester.1 "Write tests for auth.ts" (turn 3/10, 12.4s)  read_file auth.ts'
    )
    assert line[-1].tone is Tone.DIM, "its tool calls are dimmed"


def test_a_long_task_leaves_room_for_what_is_done() -> None:
    long = row(task="Write tests " * 20, turn=3, max_turns=10, seconds=12.4, doing="read_file a.py")
    told = text(task_line(long, width=79, sign="⠋"))
    assert told == '  ⠋ tester.1 "Write tests Write tests Writ…" (turn 3/10, 12.4s)  read_file a.py'


def test_a_narrow_screen_keeps_who_and_how_far() -> None:
    assert text(task_line(RUNNING, width=36, sign="⠋")) == "  ⠋ tester.1 (turn 3/10, 12.4s)"


def test_how_a_task_ended() -> None:
    done = row(mark=Mark.DONE, task="Look", turn=6, seconds=34.2, below=2)
    assert text(task_line(done, width=79, sign="✓")) == '  ✓ tester.1 "Look" (6 turns, 34.2s, +2)'
    cached = row(mark=Mark.DONE, task="Look", cached=True)
    assert text(task_line(cached, width=79, sign="✓")) == '  ✓ tester.1 "Look" (cached)'
    waits = row(mark=Mark.WAITING, task="Look")
    assert text(task_line(waits, width=79, sign="○")) == '  ○ tester.1 "Look" (waiting)'
    failed = row(mark=Mark.FAILED, task="Look", doing="error: No.", turn=1, seconds=0.2)
    line = task_line(failed, width=79, sign="✗")
    assert text(line) == '  ✗ tester.1 error: No. "Look" (1 turn, 0.2s)'
    assert line[3].tone is Tone.FAILED


def test_several_in_one_row() -> None:
    done = row(mark=Mark.DONE, name="tester", count=1200, tool_calls=3000, seconds=4.1, below=1200)
    assert text(task_line(done, width=79, sign="✓")) == (
        "  ✓ 1,200× tester (3,000 tool calls, 4.1s)"
    )
    hidden = row(mark=Mark.DONE, task="Look", turn=1, seconds=1, below=3, failed_below=2)
    assert text(task_line(hidden, width=79, sign="✓")) == (
        '  ✓ tester.1 2 failed below "Look" (1 turn, 1.0s, +3)'
    )


words = st.text(st.sampled_from("ab 世…"), max_size=60)


@given(
    width=st.integers(20, 120),
    one=st.builds(
        row,
        mark=st.sampled_from(list(Mark)),
        depth=st.integers(0, 9),
        name=words,
        task=words,
        doing=words,
        count=st.sampled_from([1, 40_000]),
        turn=st.sampled_from([0, 3, 40_000]),
        max_turns=st.just(50_000),
        seconds=st.sampled_from([0.0, 12.3, 100_000.0]),
        below=st.sampled_from([0, 7]),
        failed_below=st.sampled_from([0, 100_000]),
        open=st.booleans(),
    ),
)
def test_nothing_is_ever_wider_than_its_place(width: int, one: Row) -> None:
    assert cells(text(task_line(one, width=width, sign="⠋"))) <= width
