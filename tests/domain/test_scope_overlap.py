from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.scope import (
    ANYWHERE,
    NOWHERE,
    Scope,
    WriteLocks,
    canonical,
    contains,
    globs_intersect,
    overlap,
    scope,
)

NAMES = st.sampled_from(["a", "b", "ab", "src", "test_a.py", "*", "**", "?", "a*", "*.py", "**a"])
GLOBS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
SCOPES = st.lists(st.lists(GLOBS, min_size=1, max_size=3).map(tuple), max_size=3).map(
    lambda groups: canonical(tuple(groups))
)
PATHS = st.lists(
    st.sampled_from(["a", "b", "ab", "src", "test_a.py", "aa", "x.py"]), min_size=1, max_size=5
).map("/".join)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("src", "src/auth.py", True),
        ("src/a", "src/b", False),
        ("src/a", "src/ab", False),
        ("src/*.py", "src/**", True),
        ("src/*.py", "src/*.ts", False),
        ("*.py", "src/a.py", False),
        ("**/*.py", "src/a.py", True),
        ("**/test/**", "src/**", True),
        ("docs/**", "**/tests/**", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("**", "x", True),
    ],
)
def test_globs_intersect(a: str, b: str, expected: bool) -> None:
    assert globs_intersect(a, b) is globs_intersect(b, a) is expected


@given(st.lists(GLOBS, min_size=2, max_size=2), PATHS)
def test_globs_that_match_one_path_intersect(globs: list[str], path: str) -> None:
    one, other = (scope(glob) for glob in globs)
    if contains(one, path) and contains(other, path):
        assert overlap(one, other)


@given(SCOPES, SCOPES, PATHS)
def test_scopes_that_contain_one_path_overlap(a: Scope, b: Scope, path: str) -> None:
    assert overlap(a, b) == overlap(b, a)
    if contains(a, path) and contains(b, path):
        assert overlap(a, b)


def test_anywhere_overlaps_everything_and_nowhere_nothing() -> None:
    assert overlap(ANYWHERE, scope("src"))
    assert overlap(ANYWHERE, ANYWHERE)
    assert not overlap(NOWHERE, ANYWHERE)
    assert not overlap(scope("src"), NOWHERE)


def test_all_groups_count() -> None:
    assert not overlap(canonical((("src/**",), ("**/*.py",))), scope("docs/**"))
    assert overlap(canonical((("src/**",), ("**/*.py",))), scope("src/a.py"))


@given(st.lists(SCOPES, max_size=12), st.randoms(use_true_random=False))
def test_overlapping_siblings_take_turns_without_deadlock(
    scopes: list[Scope], chance: random.Random
) -> None:
    write_locks = WriteLocks()
    waiting = {str(i): set(write_locks.request(str(i), paths)) for i, paths in enumerate(scopes)}
    working: list[str] = []
    begun: list[str] = []
    while waiting or working:
        ready = [name for name, others in waiting.items() if not others]
        # Somebody can always go on, or is at work: nobody waits for each other.
        assert ready or working
        if ready and (not working or chance.random() < 0.5):
            name = chance.choice(ready)
            del waiting[name]
            assert not any(overlap(scopes[int(name)], scopes[int(other)]) for other in working)
            # Nobody who came before and would be in the way has been overtaken.
            assert not any(
                int(other) < int(name) and overlap(scopes[int(name)], scopes[int(other)])
                for other in waiting
            )
            working.append(name)
            begun.append(name)
        else:
            name = working.pop(chance.randrange(len(working)))
            write_locks.release(name)
            for others in waiting.values():
                others.discard(name)
    assert len(begun) == len(scopes)


def test_a_released_lock_blocks_no_sibling() -> None:
    write_locks = WriteLocks()
    assert write_locks.request("a", scope("src")) == ()
    assert write_locks.request("b", scope("src/x")) == ("a",)
    write_locks.release("a")
    assert write_locks.request("c", ANYWHERE) == ("b",)
