"""The wheel and the sdist, and the command in an environment with nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from functools import partial
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


def test_wheel_contains_only_the_package(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    ours = {path.relative_to(ROOT / "src").as_posix() for path in _sources(ROOT / "src/retinue")}
    inside = {name for name in names if not name.startswith(f"retinue-{VERSION}.dist-info/")}
    assert inside == ours
    assert {"retinue/py.typed", "retinue/interfaces/demo/snip/docs/hosting.md"} <= inside


def test_metadata_is_that_of_the_project(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"retinue-{VERSION}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    assert (metadata["Name"], metadata["Version"]) == ("retinue", VERSION)
    assert metadata["Requires-Python"] == ">=3.11"
    extras = metadata.get_all("Provides-Extra")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert sorted(extras or ()) == sorted(project["optional-dependencies"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Summary"]


def test_wheel_can_be_built_from_the_sdist(built: Path, tmp_path: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / f"retinue-{VERSION}"
    assert (source / "tests").is_dir()
    assert (source / "docs" / "architecture.md").is_file()
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=source)
    assert list(tmp_path.glob("*.whl"))


@pytest.fixture(scope="module")
def core(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it needs, and none of its extras."""
    folder = tmp_path_factory.mktemp("core")
    [wheel] = built.glob("*.whl")
    _run(sys.executable, "-m", "venv", "env", cwd=folder)
    python = str(folder / "env" / "bin" / "python")
    install = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    _run(*install, "--require-hashes", "-r", str(ROOT / "requirements/core.txt"), cwd=folder)
    _run(*install, "--no-deps", str(wheel), cwd=folder)
    assert _run(python, "-m", "pip", "check", cwd=folder).startswith("No broken requirements")
    _run(python, "-m", "pip", "uninstall", "-q", "-y", "setuptools", "pip", cwd=folder)
    return folder / "env"


def test_core_is_small(core: Path) -> None:
    [packages] = (core / "lib").glob("python*/site-packages")
    names = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert "retinue" in names
    # Before 3.13 one more, for typing, comes with aiohttp.
    assert len(names - {"retinue"}) == (18 if sys.version_info < (3, 13) else 17)
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    assert size < 40_500_000, size  # The README says 40 MB.


def test_core_runs_agents(core: Path, tmp_path: Path) -> None:
    retinue = partial(_run, str(core / "bin" / "retinue"), cwd=tmp_path)
    assert retinue("--version") == f"retinue, version {VERSION}\n"
    assert "fan-out" in retinue("--help")
    steps = [{"call": "list_dir"}, {"say": "Hello."}]
    rules = [{"match": "", "steps": steps}]
    (tmp_path / "script.json").write_text(json.dumps({"rules": rules}))
    model = ("-q", "-m", "scripted:script.json")
    assert retinue("run", *model, "Greet me") == "Hello.\n"
    assert "Hello." in retinue("spawn", *model, "researcher", "Greet me")
    assert retinue("fan-out", *model, "Greet me", "Greet them").count("Hello.") == 2
    run_id = retinue("runs", "-n", "1").split()[0]
    assert retinue("show", run_id).count("completed") >= 2
    assert retinue("audit", run_id).startswith("ok: ")
    assert "researcher" in retinue("agents")
    assert "built in" in retinue("tools")
    assert "Part 2" in retinue("demo", "--fast")


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("terminal", ["chat"]),
        ("formats", ["plan", "-m", "scripted:script.yaml", "Greet me"]),
        ("embedded", ["run", "-m", "embedded", "Greet me"]),
    ],
)
def test_core_names_the_extra_for_missing_features(
    core: Path, tmp_path: Path, extra: str, arguments: list[str]
) -> None:
    (tmp_path / "script.yaml").write_text("steps: [{say: Hello.}]")
    command = [str(core / "bin" / "retinue"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"is not installed: pip install 'retinue[{extra}]'.\n")
    assert "Traceback" not in done.stderr


def _sources(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if not re.search(r"__pycache__|\.pyc$", str(path))]
