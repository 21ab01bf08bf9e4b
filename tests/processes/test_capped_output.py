from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.processes.capped_output import CappedOutput


def test_beginning_and_end_are_kept() -> None:
    output = CappedOutput(10)
    for part in (b"0123", b"456", b"78", b"9abcdef"):
        output.feed(part)
    assert output.text() == "01234\n[… 6 bytes cut …]\nbcdef"
    assert output.truncated_bytes == 6


@given(st.lists(st.binary(max_size=9)), st.integers(0, 12))
def test_nothing_is_cut_below_the_limit(parts: list[bytes], max_bytes: int) -> None:
    output = CappedOutput(max_bytes)
    for part in parts:
        output.feed(part)
    whole = b"".join(parts)
    assert output.truncated_bytes == max(0, len(whole) - max_bytes)
    if len(whole) <= max_bytes:
        assert output.text() == whole.decode("utf-8", "replace")


def test_memory_is_bounded() -> None:
    output = CappedOutput(100)
    for _ in range(100):
        output.feed(b"x" * 65_536)
    assert output.truncated_bytes == 6_553_500
    assert len(output.text()) < 200
