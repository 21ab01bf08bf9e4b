"""The package in `embedded_adapter/`, which holds the adapter."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from retinue.embedded.adapter import FILE, MANIFEST, PACKAGE, PROMPT_FORMAT, installed_adapter

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "embedded_adapter"
MAX_BYTES = 10_000_000


def test_adapter_fits_its_manifest_and_this_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    monkeypatch.syspath_prepend(str(PROJECT / "src"))
    adapter = installed_adapter()
    assert adapter is not None
    assert adapter.path == PROJECT / "src" / PACKAGE / FILE
    assert adapter.problem() == ""
    assert adapter.scores


def test_extra_takes_the_version_with_this_prompt_format() -> None:
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert version.split(".")[0] == str(PROMPT_FORMAT)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = f"retinue-embedded-adapter>={PROMPT_FORMAT},<{PROMPT_FORMAT + 1}"
    assert wanted in project["optional-dependencies"]["embedded"]


@pytest.mark.slow
def test_wheel_holds_the_adapter(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < MAX_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not re.search(r"\.dist-info/", name)}
    assert names == {f"{PACKAGE}/{name}" for name in ("__init__.py", FILE, MANIFEST)}
