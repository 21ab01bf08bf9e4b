from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.scope import (
    ANYWHERE,
    NOWHERE,
    Scope,
    canonical,
    clean_glob,
    contains,
    intersect,
    scope,
)

# Few names, so that globs and paths meet often.
names = st.sampled_from(["a", "b", "ab", "src", "x.py", "y.md", ".env"])
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
glob_parts = st.sampled_from(["a", "b", "src", "x.py", "*", "**", "*.py", "?", "a*", ".", "", " "])
globs = st.lists(glob_parts, max_size=4).map("/".join) | st.text("ab*?/. ", max_size=8)
groups = st.lists(st.lists(globs, max_size=3).map(tuple), max_size=3).map(tuple)


@pytest.mark.parametrize(
    ("glob", "inside", "outside"),
    [
        ("src", ["src", "src/a", "src/a/b.py"], ["srcs", "a/src", "sr", "src.py"]),
        ("src/", ["src/a", "src/a/b.py"], ["src", "srcs/a", "a/src/b"]),
        ("src/auth", ["src/auth", "src/auth/jwt.py"], ["src", "src/author.py"]),
        ("src/*", ["src/a", "src/.env"], ["src", "src/a/b", "a/src/b"]),
        ("src/**", ["src/a", "src/a/b/c"], ["src", "srcs/a"]),
        ("src/**/x.py", ["src/x.py", "src/a/x.py", "src/a/b/x.py"], ["x.py", "src/ax.py"]),
        ("**/src/**", ["src/a", "a/b/src/c"], ["a/src", "asrc/b"]),
        ("*.py", ["x.py", ".py"], ["a/x.py", "x.pyc", "xpy"]),
        ("**/*.py", ["x.py", "a/x.py", "a/b/x.py"], ["x.pyc", "x.py/a"]),
        ("a?c", ["abc", "a.c"], ["ac", "abbc", "a/c"]),
        ("**", ["a", "a/b", ".env"], []),
        ("*", ["a", ".env"], ["a/b"]),
        ("", ["a", "a/b"], []),
        (".", ["a", "a/b"], []),
        # Not wildcards: everything but * and ? stands for itself.
        ("a[b]", ["a[b]", "a[b]/c"], ["ab"]),
        ("a.b", ["a.b"], ["axb"]),
        ("a(b|c)+$", ["a(b|c)+$"], ["ab", "ac"]),
        ("a\nb", ["a\nb"], ["a", "b"]),
        ("*b", ["a\nb"], ["a/b"]),
        ("src", ["src/a\nb"], []),
        ("**/x.py", ["a\nb/x.py"], []),
        ("Src", ["Src/a"], ["src/a"]),
    ],
)
def test_what_a_glob_covers(glob: str, inside: list[str], outside: list[str]) -> None:
    covered = {path: contains(scope(glob), path) for path in inside + outside}

    assert covered == dict.fromkeys(inside, True) | dict.fromkeys(outside, False)


@pytest.mark.parametrize(
    ("clean", "spellings"),
    [
        ("src", ["src", "./src", "././src", "/src", ".//src", " src ", "src/."]),
        ("src/**", ["src/", "src//", "./src/", "src/**", "src/**/**", " src/ ", "src/./"]),
        ("src/a", ["src/a", "src//a", "src/./a", "./src/./a"]),
        ("**", ["**", "", ".", "./", "/", " ", "**/**", "**/"]),
    ],
)
def test_equivalent_scopes_are_equal(clean: str, spellings: list[str]) -> None:
    assert {spelling: clean_glob(spelling) for spelling in spellings} == dict.fromkeys(
        spellings, clean
    )
    assert {scope(spelling) for spelling in spellings} == {scope(clean)}


def test_order_and_repeats_do_not_matter() -> None:
    assert scope("b", "a", "b") == scope("a", "b") == (("a", "b"),)
    assert canonical((("b",), ("a",), ("b",))) == (("a",), ("b",))


def test_a_group_that_allows_everything_is_dropped() -> None:
    assert scope("src", "**") == ANYWHERE
    assert canonical((("src",), ("./", "docs"))) == (("src",),)


def test_an_empty_group_makes_the_scope_nowhere() -> None:
    assert scope() == NOWHERE
    assert intersect(scope("src"), NOWHERE) == NOWHERE
    assert not contains(NOWHERE, "src")


@pytest.mark.parametrize("path", ["../x", "src/../x", "src/..", "..", "/x", "/src/a", "/"])
@pytest.mark.parametrize("where", [ANYWHERE, scope("src"), scope("src/**"), scope("**/x", "../x")])
def test_a_path_that_leaves_the_root_is_in_no_scope(where: Scope, path: str) -> None:
    assert not contains(where, path)


@pytest.mark.parametrize("path", ["..a", "a..", "a/..b", "...", "src/a..b"])
def test_dots_in_a_name_do_not_leave_the_root(path: str) -> None:
    assert contains(ANYWHERE, path)


@given(groups, groups, paths)
def test_an_intersection_contains_what_both_contain(a: Scope, b: Scope, path: str) -> None:
    both = contains(canonical(a), path) and contains(canonical(b), path)

    assert contains(intersect(a, b), path) == both


@given(groups, groups, groups)
def test_intersection_is_an_algebraic_meet(a: Scope, b: Scope, c: Scope) -> None:
    assert intersect(a, b) == intersect(b, a)
    assert intersect(intersect(a, b), c) == intersect(a, intersect(b, c))
    assert intersect(a, a) == canonical(a)
    assert intersect(a, ANYWHERE) == canonical(a)
    assert intersect(a, NOWHERE) == NOWHERE


@given(groups)
def test_canonical_is_stable(a: Scope) -> None:
    assert canonical(canonical(a)) == canonical(a)


@given(globs)
def test_cleaning_a_glob_is_stable(glob: str) -> None:
    assert clean_glob(clean_glob(glob)) == clean_glob(glob)


@given(groups)
def test_the_order_of_globs_does_not_matter(a: Scope) -> None:
    rewritten = tuple((*reversed(group), *group[:1]) for group in reversed(a))

    assert canonical(rewritten + a[:1]) == canonical(a)


@given(st.lists(globs, min_size=1, max_size=3), paths)
def test_a_group_is_the_union_of_its_globs(alternatives: list[str], path: str) -> None:
    assert contains(scope(*alternatives), path) == any(
        contains(scope(glob), path) for glob in alternatives
    )


@given(paths, paths)
def test_a_plain_path_covers_what_lies_below(folder: str, path: str) -> None:
    below = path == folder or path.startswith(folder + "/")

    assert contains(scope(folder), path) == below
    assert contains(scope(folder), f"{folder}/{path}")
