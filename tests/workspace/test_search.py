from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.errors import ToolFailure
from retinue.ports.workspace import SearchMatch
from retinue.workspace.directory import DirectoryWorkspace
from retinue.workspace.search import search


def lines(
    tree: DirectoryWorkspace, pattern: str, glob: str | None = None
) -> list[tuple[str, int, str]]:
    found, more = tree.search(pattern, under=".", glob=glob, limit=100)
    assert not more
    return [(match.path, match.line, match.text) for match in found]


def test_hits_are_in_the_order_of_paths(searched: DirectoryWorkspace, root: Path) -> None:
    (root / "b.py").write_text("def a():\n    pass\ndef b():")
    (root / "a").mkdir()
    (root / "a/c.md").write_text("# def\n")
    (root / "-e").write_text("def in a file like an option\n")
    assert lines(searched, "^def|# d") == [
        ("-e", 1, "def in a file like an option"),
        ("a/c.md", 1, "# def"),
        ("b.py", 1, "def a():"),
        ("b.py", 3, "def b():"),
    ]
    assert lines(searched, "def", "*.md") == [("a/c.md", 1, "# def")]
    assert lines(searched, "DEF") == []


def test_limit(searched: DirectoryWorkspace, root: Path) -> None:
    for name in "abc":
        (root / name).write_text("x\nx\n")
    found, more = searched.search("x", under=".", glob=None, limit=3)
    assert [(match.path, match.line) for match in found] == [("a", 1), ("a", 2), ("b", 1)]
    assert more
    assert searched.search("x", under="c", glob=None, limit=2) == (
        [SearchMatch("c", 1, "x"), SearchMatch("c", 2, "x")],
        False,
    )


def test_windows_line_ends(searched: DirectoryWorkspace, root: Path) -> None:
    (root / "a").write_bytes(b"one\r\ntwo\r\n")
    assert lines(searched, "one$") == [("a", 1, "one")]


def test_binary_files_are_skipped(searched: DirectoryWorkspace, root: Path) -> None:
    (root / "binary").write_bytes(b"needle\n\0\0")
    (root / "utf16").write_text("needle", encoding="utf-16")
    (root / "latin").write_bytes(b"\xe9 needle\n")
    os.mkfifo(root / "pipe")
    (root / "link").symlink_to("latin")
    (root / "zero").symlink_to("/dev/zero")
    assert lines(searched, "needle") == [("latin", 1, "\ufffd needle")]


def test_huge_line(searched: DirectoryWorkspace, root: Path) -> None:
    (root / "a").write_text("needle" + "x" * 2_000_000 + "\nneedle\n")
    first, second = lines(searched, "needle")
    assert (first[1], len(first[2])) == (1, 2_000)
    assert second == ("a", 2, "needle")


def test_patterns_that_only_python_supports(searched: DirectoryWorkspace, root: Path) -> None:
    (root / "a").write_text("foobar\nfoo\n")
    assert lines(searched, "foo(?=bar)") == [("a", 1, "foobar")]
    assert lines(searched, r"(o)\1b") == [("a", 1, "foobar")]
    assert lines(searched, r"\bfoo\b") == [("a", 2, "foo")]


@pytest.mark.parametrize("text", ["a\n", None])
def test_invalid_pattern(searched: DirectoryWorkspace, root: Path, text: str | None) -> None:
    if text is not None:
        (root / "a").write_text(text)
    with pytest.raises(ToolFailure) as caught:
        searched.search("(a", under=".", glob=None, limit=9)
    assert str(caught.value).startswith(
        "The pattern is not a regular expression: missing ), unterminated subpattern"
    )


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("\0", "The pattern contains a NUL character, which no text file has."),
        ("\ud800", "The pattern is not valid Unicode."),
        ("x" * 2001, "The pattern is longer than 2,000 characters."),
    ],
)
def test_unusable_patterns(searched: DirectoryWorkspace, pattern: str, said: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        searched.search(pattern, under=".", glob=None, limit=9)
    assert str(caught.value) == said


def test_more_paths_than_a_command_line_holds(searched: DirectoryWorkspace, root: Path) -> None:
    folder = root / ("f" * 200)
    folder.mkdir()
    for i in range(700):
        (folder / f"{i:03}").write_text("needle\n" if i in (3, 699) else "hay\n")
    assert [path[-3:] for path, _, _ in lines(searched, "needle")] == ["003", "699"]


def test_more_bytes_than_one_batch(root: Path) -> None:
    contents = {str(i): b"needle\n" + b"x" * 3_000_000 for i in range(7)}
    found, in_time = search(
        "needle", contents, root=str(root), read=contents.get, limit=6, ripgrep=None
    )
    assert in_time
    assert [match.path for match in found] == ["0", "1", "2", "3", "4", "5"]


def test_endless_pattern_is_stopped(root: Path) -> None:
    contents = {"a": b"needle aa\n", "b": b"a" * 60 + b"!\n"}
    found, in_time = search(
        "(a|a)+$",
        contents,
        root=str(root),
        read=contents.get,
        limit=9,
        ripgrep=None,
        time_limit_s=2,
    )
    assert not in_time
    assert {match.path for match in found} <= {"a"}
