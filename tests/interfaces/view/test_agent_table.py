from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.interfaces.view.agent_table import Columns, Line, Tone
from retinue.interfaces.view.agent_tree import Mark, Row
from retinue.interfaces.view.formatting import cells


def row(mark: Mark, **changes: object) -> Row:
    fields = {
        "key": "k",
        "run_id": "r",
        "agent_id": "a1",
        "mark": mark,
        "depth": 1,
        "name": "researcher.13",
        "task": "Where are errors logged?",
        "turn": 3,
        "max_turns": 10,
        "tool_calls": 7,
        "tokens": 12_345,
        "seconds": 12.4,
        **changes,
    }
    return Row(**fields)  # type: ignore[arg-type]


def text(line: Line) -> str:
    return "".join(span.text for span in line)


def toned(line: Line, tone: Tone) -> str:
    return "".join(span.text for span in line if span.tone is tone)


RUNNING = row(Mark.RUNNING, doing="read_file src/log.py")
FAILED = row(Mark.FAILED, doing="timeout after 300 s")


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (
            40,
            [
                "agent         task                  time",
                "  ● resea….13 Where are errors…    12.4s",
                "  ✗ resea….13 timeout after 300…   12.4s",
            ],
        ),
        (
            80,
            [
                "agent             task                                 turn calls tokens    time",
                "  ● researcher.13 Where are errors logged?  read_fil…  3/10     7  12.3k   12.4s",
                "  ✗ researcher.13 timeout after 300 s  Where are err…     3     7  12.3k   12.4s",
            ],
        ),
    ],
)
def test_columns_by_width(width: int, lines: list[str]) -> None:
    columns = Columns.fitting([RUNNING, FAILED], width)
    assert [columns.heading(), *(text(columns.line(row)) for row in (RUNNING, FAILED))] == lines


def test_a_long_name_gives_way_before_a_figure_does() -> None:
    long = row(Mark.RUNNING, depth=2, name="security-researcher.13")
    columns = Columns.fitting([long], 62)  # As wide as the agents are beside 120 columns of talk.
    assert columns.heading() == "agent              task              turn calls tokens    time"
    assert text(columns.line(long)).startswith("    ● security….13 Where are error…")


def test_why_it_failed_stands_before_what_it_was() -> None:
    line = Columns(100).line(FAILED)
    assert "timeout after 300 s  Where are errors logged?" in text(line)
    assert toned(line, Tone.FAILED) == "✗ timeout after 300 s"


def test_money_has_a_column_where_there_is_a_price() -> None:
    paid = row(Mark.DONE, cost_usd=0.34)
    assert "$0.34" in text(Columns(120, priced=True).line(paid))
    assert "cost" in Columns(120, priced=True).heading()
    assert "$" not in text(Columns(120).line(paid))


def test_a_row_for_many_begins_with_their_number() -> None:
    line = text(Columns(80).line(row(Mark.DONE, count=1_234, name="researcher", task="")))
    assert "✓ 1,234× r" in line
    assert " done " in line


def test_what_a_shut_row_hides_is_said() -> None:
    shut = row(Mark.DONE, below=5, failed_below=2)
    line = Columns(100).line(shut)
    assert "2 failed below Where are errors logged? +5" in text(line)
    assert "2 failed below" in toned(line, Tone.FAILED)
    assert "failed below" not in text(Columns(100).line(row(Mark.DONE, failed_below=2, open=True)))


def test_a_cached_result_took_no_time() -> None:
    assert text(Columns(80).line(row(Mark.DONE, cached=True))).endswith(" cached")


def test_a_spinner_can_stand_for_the_sign() -> None:
    assert text(Columns(80).line(RUNNING, sign="⠋")).startswith("  ⠋ researcher.13")


rows = st.builds(
    Row,
    key=st.just("k"),
    run_id=st.just("r"),
    agent_id=st.just("a"),
    mark=st.sampled_from(Mark),
    depth=st.integers(0, 30),
    name=st.sampled_from(["lead", "researcher.13", "日本語.4", "claude:code-reviewer.1000"]),
    count=st.sampled_from([1, 1, 3, 12_345]),
    task=st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=60),
    doing=st.sampled_from(["", "thinking", "x" * 200, "日本" * 30]),
    turn=st.integers(0, 200),
    max_turns=st.just(200),
    tool_calls=st.integers(0, 10_000),
    tokens=st.integers(0, 10**9),
    cost_usd=st.floats(0, 900),
    seconds=st.floats(0, 80_000),
    below=st.integers(0, 500),
    failed_below=st.integers(0, 500),
    open=st.booleans(),
    cached=st.booleans(),
)


@given(rows, st.integers(28, 220), st.booleans())
def test_a_line_is_exactly_as_wide_as_asked(one: Row, width: int, priced: bool) -> None:
    columns = Columns(width, priced=priced)
    assert cells(text(columns.line(one))) == width
    assert cells(columns.heading()) == width


def test_a_narrow_row_tells_what_happened_and_not_at_which_address() -> None:
    failed = row(Mark.FAILED, doing="http://127.0.0.1:8080/v1 wants an API key (403 Forbidden).")
    assert " wants an API ke" in text(Columns(40).line(failed))
    assert " http://127.0.0.1:8080/v1 wants" in text(Columns(200).line(failed))
