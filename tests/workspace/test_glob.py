from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.workspace.glob import matcher


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("*.py", ["a.py", "src/deep/a.py", ".py"], ["a.pyc", "py"]),
        ("README*", ["README", "docs/README.md"], ["docs/READ"]),
        ("src/*.py", ["src/a.py"], ["a.py", "src/b/a.py", "x/src/a.py"]),
        ("src/**", ["src/a", "src/b/c"], ["src", "a"]),
        ("src/", ["src/a", "src/b/c"], ["src", "a"]),
        ("**/*.py", ["a.py", "b/c/a.py"], ["a.md"]),
        ("src/**/test_*.py", ["src/test_a.py", "src/x/y/test_a.py"], ["test_a.py", "src/a.py"]),
        ("**/a/**/b", ["a/b", "x/a/y/b", "a/a/b"], ["b", "a/c"]),
        ("**", ["a", "a/b"], []),
        ("./a?.py", ["ab.py"], ["a.py"]),
        ("/a/b.py", ["a/b.py"], ["b.py"]),
        ("*.{ts,tsx}", ["a.ts", "x/b.tsx"], ["a.js", "a.{ts,tsx}"]),
        ("{src,lib}/*.{c,h}", ["src/a.c", "lib/b.h"], ["src/a.o", "a.c"]),
        ("[ab].txt", ["a.txt"], ["c.txt"]),
        ("{a", ["{a"], ["a"]),
    ],
)
def test_matches(glob: str, yes: list[str], no: list[str]) -> None:
    matches = matcher(glob)
    assert [path for path in yes if not matches(path)] == []
    assert [path for path in no if matches(path)] == []


def test_no_glob_is_slow() -> None:
    before = time.process_time()
    matcher("**/a*a*a*a*a*a*a*a*b/" * 20 + "x")("/".join(["a" * 60] * 40))
    matcher("{a,b}" * 30)("a" * 30)
    assert time.process_time() - before < 2


@given(
    st.lists(st.sampled_from("ab*"), min_size=1, max_size=8).map("".join), st.text("ab", max_size=8)
)
def test_star_matches_any_characters(glob: str, name: str) -> None:
    def reference(g: str, n: str) -> bool:
        if not g:
            return not n
        if g[0] == "*":
            return any(reference(g[1:], n[i:]) for i in range(len(n) + 1))
        return bool(n) and n[0] == g[0] and reference(g[1:], n[1:])

    if "**" not in glob:
        assert matcher(f"d/{glob}")(f"d/{name}") == reference(glob, name)


@given(
    st.lists(st.sampled_from(["a", "b", "**"]), min_size=2, max_size=6),
    st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=6),
)
def test_two_stars_match_any_number_of_folders(glob: list[str], path: list[str]) -> None:
    def reference(g: list[str], p: list[str]) -> bool:
        if not g:
            return not p
        if g[0] == "**":
            # At the end, it matches at least one name.
            least = 1 if len(g) == 1 else 0
            return any(reference(g[1:], p[i:]) for i in range(least, len(p) + 1))
        return bool(p) and p[0] == g[0] and reference(g[1:], p[1:])

    assert matcher("/".join(glob))("/".join(path)) == reference(glob, path)
