"""Programs from npm that tests use as clients; `script/services` installs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
NODE = FOLDER.parents[1] / "web" / "node_modules" / "node" / "bin"
"""Newer than that of Debian, which some of the programs refuse."""


def program(name: str, *, agent: bool = False) -> str:
    """The path of a program. Skips the test if it is not installed."""
    path = FOLDER / ("agents" if agent else "") / "node_modules" / ".bin" / name
    if not path.exists() or not NODE.exists():
        command = "script/services --agents" if agent else "script/services"
        pytest.skip(f"{name} is not installed: {command}")
    return str(path)


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{NODE}:{os.environ['PATH']}", **variables}


def run(
    *command: str,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**variables or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
