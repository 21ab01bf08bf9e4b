from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.workspace.file_names import printable, protected_name, quoted


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (".git", ".git"),
        (".git/config", ".git"),
        ("sub/.GIT/hooks", ".GIT"),
        (".Retinue/retinue.db", ".Retinue"),
        (".gitignore", None),
        (".github/x", None),
        ("git/.git.md", None),
    ],
)
def test_protected(path: str, name: str | None) -> None:
    assert protected_name(path) == name


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("plain name.txt", "plain name.txt"),
        ("größe 漢字", "größe 漢字"),
        ("bad\udcff.txt", "bad\\xff.txt"),
        ("two\nlines", "two\\nlines"),
        ("\ud800", "\\ud800"),
    ],
)
def test_printable(path: str, text: str) -> None:
    assert printable(path) == text


@given(st.text(st.characters(), max_size=300))
def test_every_name_is_printable_on_one_line(path: str) -> None:
    text = quoted(path)
    text.encode()
    assert len(text.splitlines()) == 1
