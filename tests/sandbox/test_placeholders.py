"""Paths that exist only while a command needs them, unless the command has used them."""

from __future__ import annotations

from pathlib import Path

from retinue.sandbox.placeholders import placeholders


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_unused_paths_are_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with placeholders(str(tmp_path), ["a/b", "kept/c"], ["a/x.md", "y.md"]):
        assert names(tmp_path) == ["a", "a/b", "a/x.md", "kept", "kept/c", "y.md"]
    assert names(tmp_path) == ["kept"]


def test_used_paths_stay(tmp_path: Path) -> None:
    with placeholders(str(tmp_path), ["a/b", "c"], ["x.md", "y.md"]):
        (tmp_path / "a" / "b" / "new").touch()
        (tmp_path / "x.md").write_text("written")
        (tmp_path / "y.md").unlink()
        (tmp_path / "y.md").mkdir()
    assert names(tmp_path) == ["a", "a/b", "a/b/new", "x.md", "y.md"]


def test_path_stays_until_the_last_command_ends(tmp_path: Path) -> None:
    first = placeholders(str(tmp_path), ["a/b"], ["x.md"])
    second = placeholders(str(tmp_path), ["a/b"], ["x.md"])
    with second:
        with first:
            pass
        assert names(tmp_path) == ["a", "a/b", "x.md"]
    assert names(tmp_path) == []


def test_existing_paths_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "x.md").touch()
    with placeholders(str(tmp_path), ["a"], ["x.md"]):
        pass
    assert names(tmp_path) == ["a", "x.md"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "new")
    with placeholders(str(root), ["link/a"], ["file"]):
        assert names(outside) == []
    assert names(root) == ["file", "link"]
