"""Limits on the size of modules and pages, which keep the code easy to enter."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "retinue"
MOST_LINES = 600
LISTS_OF_FACTS = {"domain/events.py"}
"""Modules without logic, which may be longer."""
PAGES = {"README.md": 150, "docs/architecture.md": 200}


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def test_no_module_is_too_long_to_read_at_once() -> None:
    lines = {path.relative_to(SOURCE).as_posix(): _lines(path) for path in SOURCE.rglob("*.py")}
    assert lines.keys() >= LISTS_OF_FACTS
    too_long = {name for name, count in lines.items() if count > MOST_LINES}
    assert too_long <= LISTS_OF_FACTS


@pytest.mark.parametrize(("page", "most_lines"), PAGES.items())
def test_first_pages_stay_short(page: str, most_lines: int) -> None:
    assert _lines(ROOT / page) <= most_lines
