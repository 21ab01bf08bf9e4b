from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.workspace.atomic_write import remove_leftovers, replace_file
from retinue.workspace.safe_open import DIRECTORY


def test_failure_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    fd = os.open(tmp_path, DIRECTORY)
    try:
        with pytest.raises(IsADirectoryError):
            replace_file(fd, "taken", b"x", None)
    finally:
        os.close(fd)
    assert os.listdir(tmp_path) == ["taken"]


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """Files of living processes, and other files with similar names, stay."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".retinue-{dead.pid}-0123456789abcdef.tmp").write_text("half")
    kept = {f".retinue-{os.getpid()}-0123456789abcdef.tmp", ".retinue-mine.tmp", "a.tmp"}
    for name in kept:
        (tmp_path / name).write_text("kept")
    fd = os.open(tmp_path, DIRECTORY)
    try:
        remove_leftovers(fd)
    finally:
        os.close(fd)
    assert set(os.listdir(tmp_path)) == kept
