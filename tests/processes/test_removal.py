"""Folders can be removed, whatever agents have put into them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.processes.removal import remove_folder


def test_folders_nested_deeper_than_the_recursion_limit(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    inner = os.open(top, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=inner)
        outer, inner = inner, os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    remove_folder(str(top))
    assert not top.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everything")
def test_folders_without_permissions(tmp_path: Path) -> None:
    inner = tmp_path / "top" / "inner"
    inner.mkdir(parents=True)
    (inner / "x").write_text("1")
    inner.chmod(0o000)
    inner.parent.chmod(0o500)
    remove_folder(str(inner.parent))
    assert not inner.parent.exists()


def test_target_of_a_link_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(kept)
    remove_folder(str(top))
    assert kept.is_dir()
    assert not top.exists()


def test_missing_folder_is_fine(tmp_path: Path) -> None:
    remove_folder(str(tmp_path / "gone"))
