"""What the embedded model does with its adapter, in a fresh clone of a small repository."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from retinue.config.environment import Environment
from retinue.embedded.adapter import installed_adapter
from retinue.embedded.model import is_available, server_folder
from retinue.embedded.serving import running_server
from retinue.embedded.weights import fetch_weights

pytestmark = pytest.mark.live

MAX_SERVER_MB = 500
FILES = {
    "README.md": "# tidewatch\n\nTidewatch predicts the tides of small harbours from their own"
    " measurements.\n\n## Use\n\n    tidewatch HARBOUR\n",
    "pyproject.toml": '[project]\nname = "tidewatch"\nversion = "1.3.0"\n',
    "docs/gauges.md": "# Gauges\n\nA gauge measures the height of the water once a minute and"
    " stores it in a file.\n",
    "docs/alarms.md": "# Alarms\n\nAn alarm calls the harbour master if the water rises above the"
    " wall.\n",
    "docs/backup.md": "# Backup\n\nEvery night the measurements are copied to a second disk.\n",
    "tidewatch/__init__.py": '"""Predicts tides."""\n',
    "tidewatch/harmonics.py": '"""Sums of waves whose periods are known."""\n\n\n'
    'class HarmonicModel:\n    """Fits waves to measurements."""\n\n'
    "    def predict(self, hour: float) -> float:\n        return 0.0\n",
    "tidewatch/gauge.py": '"""Reads the files of gauges."""\n\nINTERVAL_S = 60\n\n\n'
    "def read_gauge(path: str) -> list[float]:\n    return []\n",
}


class Run(NamedTuple):
    """What one command printed: its result, and the tools that its agents called."""

    id: str
    answer: str
    calls: list[tuple[str, str]]
    """Path of the agent and name of the tool."""
    files: list[str]


@pytest.fixture(scope="module")
def weights() -> Iterator[None]:
    if not is_available() or installed_adapter() is None:
        pytest.skip("llama.cpp or the adapter is missing: run script/servers")
    asyncio.run(fetch_weights(Environment.current().embedded_dir, os.environ))
    yield
    folder = server_folder(Environment.current().embedded_dir, installed_adapter())
    while (address := running_server(folder)) is not None:
        with suppress(ProcessLookupError):
            os.kill(address.pid, signal.SIGKILL)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    origin = tmp_path / "origin"
    for name, text in FILES.items():
        path = origin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    named = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    for arguments in (("init", "-q"), ("add", "."), (*named, "commit", "-qm", "first")):
        subprocess.run(["git", *arguments], cwd=origin, check=True)
    subprocess.run(["git", "clone", "-q", str(origin), "clone"], cwd=tmp_path, check=True)
    return tmp_path / "clone"


def retinue(project: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "retinue", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ask(project: Path, task: str) -> Run:
    out = retinue(project, "run", "-m", "embedded", "--mode", "auto", "--json", task)
    *events, result = map(json.loads, out.splitlines())
    calls = [
        (event["agent_id"], event["payload"]["tool"])
        for event in events
        if event["type"] == "tool.started"
    ]
    files = [change["path"] for change in result["files"]]
    return Run(result["run_id"], result["answer"], calls, files)


@pytest.mark.usefixtures("weights")
def test_what_the_project_does(clone: Path) -> None:
    run = ask(clone, "What does this project do?")
    assert ("a0", "read_file") in run.calls
    assert "tides" in run.answer
    assert run.files == []


@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize(
    ("name", "path"),
    [("HarmonicModel", "tidewatch/harmonics.py"), ("read_gauge", "tidewatch/gauge.py")],
)
def test_where_a_name_is_defined(clone: Path, name: str, path: str) -> None:
    run = ask(clone, f"Where is {name} defined?")
    assert ("a0", "search_files") in run.calls
    assert path in run.answer


@pytest.mark.usefixtures("weights")
def test_summary_of_each_file_in_a_folder(clone: Path) -> None:
    run = ask(clone, "Summarise each file in docs/")
    readers = {agent for agent, tool in run.calls if tool == "read_file"}
    assert readers == {"a1", "a2", "a3"}
    for name, word in (("gauges", "height"), ("alarms", "harbour"), ("backup", "second disk")):
        assert f"docs/{name}.md" in run.answer
        assert word in run.answer


@pytest.mark.usefixtures("weights")
def test_version_is_set_and_the_edit_is_undone(clone: Path) -> None:
    run = ask(clone, "Set the version to 2.0.0")
    assert run.files == ["pyproject.toml"]
    changed = FILES["pyproject.toml"].replace("1.3.0", "2.0.0")
    assert (clone / "pyproject.toml").read_text() == changed
    assert "1 file undone." in retinue(clone, "undo", run.id)
    assert (clone / "pyproject.toml").read_text() == FILES["pyproject.toml"]


@pytest.mark.usefixtures("weights")
def test_missing_file_is_said_to_be_missing(clone: Path) -> None:
    run = ask(clone, "What does docs/tariffs.md say?")
    assert ("a0", "read_file") in run.calls
    assert re.search(r"\bno\b|not|n't", run.answer)


@pytest.mark.usefixtures("weights")
def test_memory_of_the_server(clone: Path) -> None:
    for task in ("Summarise each file in docs/", "What does tidewatch/harmonics.py do?"):
        ask(clone, task)
    folder = server_folder(Environment.current().embedded_dir, installed_adapter())
    address = running_server(folder)
    assert address is not None
    status = Path(f"/proc/{address.pid}/status").read_text()
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert peak is not None
    assert int(peak[1]) * 1024 < MAX_SERVER_MB * 1_000_000
