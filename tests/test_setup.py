"""`script/setup` in a fresh clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
# What builds the package, and what that needs.
BUILD = (
    "editables",
    "hatchling",
    "packaging",
    "pathspec",
    "pluggy",
    "tomlkit",
    "trove-classifiers",
)
PARTS = ("pyproject.toml", "README.md", "LICENSE", "script", "requirements", "src")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the project which needs hardly anything but what builds it."""
    for part in PARTS:
        copied = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copied(ROOT / part, tmp_path / part)
    locked = (ROOT / "requirements" / "dev.txt").read_text("utf-8")
    wanted = [f"{entry}\n" for entry in _entries(locked) if entry.split("==")[0] in BUILD]
    assert len(wanted) == len(BUILD)
    (tmp_path / "requirements" / "dev.txt").write_text("".join(wanted), "utf-8")
    return tmp_path


def _entries(locked: str) -> list[str]:
    """The locked requirements, one per line: name, version and hashes."""
    lines = (line for line in locked.splitlines() if line and not line.lstrip().startswith("#"))
    return "\n".join(lines).replace(" \\\n", " ").splitlines()


def _set_up(clone: Path) -> str:
    """By pip: no uv is on the PATH."""
    done = subprocess.run(
        ["bash", "script/setup"],
        cwd=clone,
        env={**os.environ, "PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_environment_without_pip_is_updated_without_uv(clone: Path) -> None:
    assert "building .venv" in _set_up(clone)
    assert "building" not in _set_up(clone)
    python = clone / ".venv" / "bin" / "python"
    # As uv leaves it.
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "pip"], check=True)
    version = clone / "src" / "retinue" / "version.py"
    version.write_text(version.read_text("utf-8").replace('VERSION = "', 'VERSION = "9.'), "utf-8")
    assert "building" not in _set_up(clone)
    told = subprocess.run([python, "-m", "pip", "list"], capture_output=True, text=True, check=True)
    assert re.search(r"^retinue +9\.", told.stdout, re.MULTILINE)
