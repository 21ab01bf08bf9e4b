from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.messages import estimate_tokens
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import FileChange, Receipt, Result, Spent, Status, cap


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            FileChange(path="tests/auth.test.ts", added=82, new=True),
            "tests/auth.test.ts (+82 lines, new file)",
        ),
        (FileChange(path="a.py", added=3, removed=2), "a.py (+3/-2 lines)"),
        (FileChange(path="a.py", removed=2), "a.py (-2 lines)"),
        (FileChange(path="a.py", added=1), "a.py (+1 line)"),
        (FileChange(path="a.py", removed=1), "a.py (-1 line)"),
        (FileChange(path="a.py", added=1, removed=1), "a.py (+1/-1 lines)"),
        (FileChange(path="a.py"), "a.py (+0 lines)"),
        (FileChange(path="a.py", new=True), "a.py (+0 lines, new file)"),
    ],
)
def test_a_change_reads_as_one_line(change: FileChange, text: str) -> None:
    assert str(change) == text


@given(st.text(st.sampled_from("a é😀\n"), max_size=60), st.integers(0, 20))
def test_a_cap_keeps_the_beginning_and_whole_characters(text: str, tokens: int) -> None:
    kept, was_cut = cap(text, tokens)

    assert text.startswith(kept)
    assert estimate_tokens(kept) <= tokens
    assert was_cut == (estimate_tokens(text) > tokens) == (kept != text)


@given(st.text(st.sampled_from("aé😀"), min_size=1, max_size=60), st.integers(1, 20))
def test_a_cap_without_lines_wastes_less_than_a_character(text: str, tokens: int) -> None:
    kept, was_cut = cap(text, tokens)

    if was_cut:
        following = text[: len(kept) + 1]
        assert len(following.encode()) > 4 * tokens


@given(st.text(st.characters(), max_size=40), st.integers(0, 8))
def test_a_cap_holds_for_text_that_is_not_quite_unicode(text: str, tokens: int) -> None:
    kept, was_cut = cap(text, tokens)

    assert estimate_tokens(kept) <= tokens
    assert was_cut == (estimate_tokens(text) > tokens)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("1234567\n9012345", "1234567"),
        ("123\n56789012345", "123\n56789012"),
        ("123456789012\n", "123456789012"),
    ],
)
def test_a_cap_ends_at_a_line_if_one_is_near(text: str, kept: str) -> None:
    assert cap(text, 3) == (kept, True)


@pytest.mark.parametrize("status", Status)
def test_only_a_completed_result_is_ok(status: Status) -> None:
    result = Result(status=status, agent_id="a", run_id="r", role="coder", task="t")

    assert result.ok == (status == "completed")


def test_the_statuses_keep_their_spelling() -> None:
    assert list(Status) == [
        "completed",
        "budget_exceeded",
        "timeout",
        "error",
        "cancelled",
        "conflict",
        "rejected",
    ]


def test_a_run_result_survives_its_json() -> None:
    result = RunResult(
        status=Status.TIMEOUT,
        agent_id="a",
        run_id="r",
        role="coder",
        task="t",
        error="too slow",
        usage=Spent(tool_calls=2, tokens_in=10, tokens_out=5, cost_usd=0.25),
        files_modified=(FileChange(path="a.py", added=1),),
        receipts=(Receipt(tool="shell", ok=False, output_sha256="0", exit_code=1),),
        total=Spent(tokens_in=100),
        children=3,
    )

    assert msgspec.json.decode(msgspec.json.encode(result), type=RunResult) == result
    assert result.id == "r"
    assert result.usage.tokens == 15


def ended(**fields: Any) -> Result:
    terms = {"status": Status.COMPLETED, "agent_id": "a1", "run_id": "r", "role": "c", "task": "t"}
    return Result(**(terms | fields))


ANSWER = """Three patterns:

- **JWT** in `auth.py`,
  with a middleware
  - a detail
* basic auth

1. sessions
not an item
```
- code
```
-5 is no item
"""


def test_findings_are_the_list_items_of_the_answer() -> None:
    assert ended(response=ANSWER).findings == (
        "**JWT** in `auth.py`, with a middleware - a detail",
        "basic auth",
        "sessions",
    )
    assert ended(response="Nothing.").findings == ()


def test_findings_of_an_answer_that_is_data() -> None:
    assert ended(response="- x", data={"findings": ["a", 2]}).findings == ("a", "2")
    assert ended(response="- x", data={"other": 1}).findings == ("x",)


def test_calls_by_tool() -> None:
    receipts = tuple(Receipt(tool=t, ok=True, output_sha256="") for t in ("read", "ls", "read"))
    assert ended(receipts=receipts).calls_by_tool == {"read": 2, "ls": 1}
