from __future__ import annotations

import posixpath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retinue.domain.paths import inside


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.py", "a.py"),
        ("./src//a.py", "src/a.py"),
        ("src/../b.py", "b.py"),
        ("src/", "src"),
        ("", "."),
        (".", "."),
        ("a/..", "."),
        ("/srv/p", "."),
        ("/srv/p/src/a.py", "src/a.py"),
        ("/srv/p/../p/a", "a"),
        ("/srv/pp/a", None),
        ("/etc/passwd", None),
        ("..", None),
        ("../p/a", None),
        ("a/../../b", None),
        ("/..", None),
        ("~/x", "~/x"),
    ],
)
def test_normal_form(path: str, expected: str | None) -> None:
    assert inside(path, "/srv/p") == expected


def test_the_root_may_be_the_whole_disk() -> None:
    assert inside("/etc/hosts", "/") == "etc/hosts"


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b", "...", " "])).map("/".join))
@example("a/../../a")
def test_never_leaves_the_root(path: str) -> None:
    clean = inside(path, "/r/s")
    if clean is None:
        return
    assert not clean.startswith("/")
    assert ".." not in clean.split("/")
    assert inside(clean, "/r/s") == clean
    joined = posixpath.normpath(posixpath.join("/r/s", clean))
    assert joined == "/r/s" or joined.startswith("/r/s/")
