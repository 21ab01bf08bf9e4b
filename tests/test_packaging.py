"""What people install: the wheel and the sdist, and the command where nothing else is."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from retinue.version import VERSION

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    return folder


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    ours = {path.relative_to(ROOT / "src").as_posix() for path in _sources(ROOT / "src/retinue")}
    inside = {name for name in names if not name.startswith(f"retinue-{VERSION}.dist-info/")}
    assert inside == ours
    assert {"retinue/py.typed", "retinue/interfaces/demo/snip/docs/hosting.md"} <= inside


def test_its_metadata_is_that_of_the_project(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"retinue-{VERSION}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    assert (metadata["Name"], metadata["Version"]) == ("retinue", VERSION)
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_all("Provides-Extra") == ["embedded"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Summary"]


def test_the_sdist_can_be_built_from(built: Path, tmp_path: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / f"retinue-{VERSION}"
    assert (source / "tests").is_dir()
    assert (source / "docs" / "design.md").is_file()
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=source)
    assert list(tmp_path.glob("*.whl"))


def test_it_runs_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    [wheel] = built.glob("*.whl")
    _run(sys.executable, "-m", "venv", "env", cwd=tmp_path)
    python = str(tmp_path / "env" / "bin" / "python")
    install = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    _run(*install, "--require-hashes", "-r", str(ROOT / "requirements/core.txt"), cwd=tmp_path)
    _run(*install, "--no-deps", str(wheel), cwd=tmp_path)
    assert _run(python, "-m", "pip", "check", cwd=tmp_path).startswith("No broken requirements")
    retinue = str(tmp_path / "env" / "bin" / "retinue")
    assert _run(retinue, "--version", cwd=tmp_path) == f"retinue, version {VERSION}\n"
    (tmp_path / "script.yaml").write_text("steps: [{say: Hello.}]")
    said = _run(retinue, "run", "-q", "-m", "scripted:script.yaml", "Greet me", cwd=tmp_path)
    assert said == "Hello.\n"
    assert "Act two" in _run(retinue, "demo", "--fast", cwd=tmp_path)


def _sources(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if not re.search(r"__pycache__|\.pyc$", str(path))]
