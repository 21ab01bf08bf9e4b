from __future__ import annotations

import pytest

from retinue.workspace.file_changes import count_changed_lines


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (b"", b"a\nb\n", (2, 0)),
        (b"a\nb\n", b"", (0, 2)),
        (b"a\nb\n", b"a\nc\nb\n", (1, 0)),
        (b"a\na\n", b"a\n", (0, 1)),
        (b"a", b"a\n", (1, 1)),
        (b"a\nb\n", b"b\na\n", (0, 0)),
        (b"a\n", b"a\r\n", (1, 1)),
    ],
)
def test_count_changed_lines(before: bytes, after: bytes, expected: tuple[int, int]) -> None:
    assert count_changed_lines(before, after) == expected
