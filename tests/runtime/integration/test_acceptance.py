"""What work must pass; `test_merge_queue` has the checks and scopes of whole children."""

from __future__ import annotations

import pytest

from retinue.runtime.integration.acceptance import shown_paths


@pytest.mark.parametrize(("count", "more"), [(10, ""), (13, " and 3 more")])
def test_at_most_ten_paths_are_shown(count: int, more: str) -> None:
    paths = [f"{number}.py" for number in range(count)]
    assert shown_paths(paths) == ", ".join(paths[:10]) + more
