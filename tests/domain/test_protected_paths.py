"""Which changes affect a protected path: of the path, below it, and of the folders above it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.protected_paths import ProtectedPaths, find_protected

NAMES = st.lists(st.sampled_from(["a", "b", ".venv", "B", "é"]), min_size=1, max_size=5)
PATHS = NAMES.map("/".join)


@pytest.mark.parametrize("path", ["a/.venv", "a/.venv/x", "a/.VENV/lib/x", "a", "A", "."])
def test_change_at_below_or_above_is_found(path: str) -> None:
    assert find_protected(path, ("a/.venv",)) == "a/.venv"


@pytest.mark.parametrize("path", ["b", "a/x", "a/.venv2", "x/a/.venv", ".venv"])
def test_other_changes_are_not_found(path: str) -> None:
    assert find_protected(path, ("a/.venv",)) is None


def test_unicode_forms_are_one_name() -> None:
    assert find_protected("e\N{COMBINING ACUTE ACCENT}/x", ("é",)) == "é"


def test_everything_is_protected_below_a_protected_root() -> None:
    protected = ProtectedPaths(("/opt/env",))
    assert protected.within("/opt/env/lib/project") == (".",)
    assert protected.within("/opt/env") == (".",)
    assert find_protected("any", (".",)) == "."


@given(st.lists(PATHS, min_size=1, max_size=6), PATHS)
def test_within_keeps_what_is_needed(protected: list[str], path: str) -> None:
    """A path is affected by the shortened list if and only if by one of all paths."""
    found = ProtectedPaths(tuple(f"/p/{one}" for one in protected)).within("/p")
    assert (find_protected(path, found) is None) == (find_protected(path, protected) is None)
    assert ProtectedPaths(("/q/x",)).within("/p") == ()
