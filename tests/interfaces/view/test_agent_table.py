from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.interfaces.view.agent_table import TableLayout
from retinue.interfaces.view.agent_tree import DisplayState, TreeRow
from retinue.interfaces.view.formatting import cell_width
from retinue.interfaces.view.styled_text import Line, Tone


def row(state: DisplayState, **changes: object) -> TreeRow:
    fields = {
        "key": "k",
        "run_id": "r",
        "agent_id": "a1",
        "state": state,
        "depth": 1,
        "name": "researcher.13",
        "task": "Where are errors logged?",
        "turn": 3,
        "max_turns": 10,
        "tool_calls": 7,
        "tokens": 12_345,
        "elapsed_s": 12.4,
        **changes,
    }
    return TreeRow(**fields)  # type: ignore[arg-type]


def text(line: Line) -> str:
    return line.plain


def toned(line: Line, tone: Tone) -> str:
    return "".join(line.plain[s.start : s.end] for s in line.spans if s.style == tone)


def test_tasks_that_begin_alike_are_shown_from_where_they_differ() -> None:
    tasks = ["Inspect the module a.py", "Inspect the module b.py", "Inspect the module c.py"]
    rows = [row(DisplayState.RUNNING, task=task) for task in tasks]
    shown = [text(TableLayout.fitting(rows, 40).line(one)) for one in rows]
    assert ["…a.py" in shown[0], "…b.py" in shown[1], "…c.py" in shown[2]] == [True] * 3
    wide = TableLayout.fitting(rows, 120).line(rows[0])
    assert "Inspect the module a.py" in text(wide)
    two = text(TableLayout.fitting(rows[:2], 40).line(rows[0]))
    assert "Inspect the m…" in two, "few tasks are no pattern"


RUNNING = row(DisplayState.RUNNING, activity="read_file src/log.py")
FAILED = row(DisplayState.FAILED, activity="timeout after 300 s")


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (
            40,
            [
                "agent             task              time",
                "  ● researcher.13 Where are err…   12.4s",
                "  ✗ researcher.13 timeout after…   12.4s",
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
    columns = TableLayout.fitting([RUNNING, FAILED], width)
    assert [columns.heading(), *(text(columns.line(row)) for row in (RUNNING, FAILED))] == lines


def test_long_name_shrinks_before_a_column_goes() -> None:
    long = row(DisplayState.RUNNING, depth=2, name="security-researcher.13")
    columns = TableLayout.fitting(
        [long], 62
    )  # As wide as the agents are beside 120 columns of talk.
    assert columns.heading() == "agent                task            turn calls tokens    time"
    assert text(columns.line(long)).startswith("    ● security-r….13 Where are err…")


def test_reason_comes_before_the_task() -> None:
    line = TableLayout(100).line(FAILED)
    assert "timeout after 300 s  Where are errors logged?" in text(line)
    assert toned(line, Tone.FAILED) == "✗ timeout after 300 s"


def test_cost_column_if_priced() -> None:
    paid = row(DisplayState.DONE, cost_usd=0.34)
    assert "$0.34" in text(TableLayout(120, priced=True).line(paid))
    assert "cost" in TableLayout(120, priced=True).heading()
    assert "$" not in text(TableLayout(120).line(paid))


def test_group_row_starts_with_its_count() -> None:
    line = text(
        TableLayout(80).line(row(DisplayState.DONE, count=1_234, name="researcher", task=""))
    )
    assert "✓ 1,234× r" in line
    assert " done " in line


def test_collapsed_row_counts_what_it_hides() -> None:
    shut = row(DisplayState.DONE, child_count=5, failed_descendants=2)
    line = TableLayout(100).line(shut)
    assert "2 failed below Where are errors logged? +5" in text(line)
    assert "2 failed below" in toned(line, Tone.FAILED)
    assert "failed below" not in text(
        TableLayout(100).line(row(DisplayState.DONE, failed_descendants=2, expanded=True))
    )


def test_cached_result() -> None:
    assert text(TableLayout(80).line(row(DisplayState.DONE, cached=True))).endswith(" cached")


rows = st.builds(
    TreeRow,
    key=st.just("k"),
    run_id=st.just("r"),
    agent_id=st.just("a"),
    state=st.sampled_from(DisplayState),
    depth=st.integers(0, 30),
    name=st.sampled_from(["lead", "researcher.13", "日本語.4", "claude:code-reviewer.1000"]),
    count=st.sampled_from([1, 1, 3, 12_345]),
    task=st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=60),
    activity=st.sampled_from(["", "thinking", "x" * 200, "日本" * 30]),
    turn=st.integers(0, 200),
    max_turns=st.just(200),
    tool_calls=st.integers(0, 10_000),
    tokens=st.integers(0, 10**9),
    cost_usd=st.floats(0, 900),
    elapsed_s=st.floats(0, 80_000),
    child_count=st.integers(0, 500),
    failed_descendants=st.integers(0, 500),
    expanded=st.booleans(),
    cached=st.booleans(),
)


@given(rows, st.integers(28, 220), st.booleans())
def test_line_has_exactly_the_width(one: TreeRow, width: int, priced: bool) -> None:
    columns = TableLayout(width, priced=priced)
    assert cell_width(text(columns.line(one))) == width
    assert cell_width(columns.heading()) == width


def test_narrow_row_drops_the_address() -> None:
    failed = row(
        DisplayState.FAILED, activity="http://127.0.0.1:8080/v1 wants an API key (403 Forbidden)."
    )
    assert " wants an API" in text(TableLayout(40).line(failed))
    assert " http://127.0.0.1:8080/v1 wants" in text(TableLayout(200).line(failed))
