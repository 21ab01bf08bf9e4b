"""The public API under pyright; mypy checks the same snippets in script/check."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
PYRIGHT = shutil.which("pyright", path=str(Path(sys.executable).parent))
MARK = re.compile(r"  # type: ignore\[.*\]$")


def errors_by_line(path: Path) -> dict[int, str]:
    assert PYRIGHT is not None
    command = [PYRIGHT, "--outputjson", "--pythonpath", sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {
        one["range"]["start"]["line"]: one["message"] for one in found if one["severity"] == "error"
    }


def test_there_are_enough_snippets() -> None:
    accepted = (FOLDER / "accepted.py").read_text("utf-8")
    rejected = (FOLDER / "rejected.py").read_text("utf-8").splitlines()
    assert len(re.findall(r"def s\d\d_", accepted)) == 40
    assert len([line for line in rejected if MARK.search(line)]) >= 20


@pytest.mark.services
@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed")
def test_pyright_accepts() -> None:
    assert errors_by_line(FOLDER / "accepted.py") == {}


@pytest.mark.services
@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed")
def test_pyright_rejects(tmp_path: Path) -> None:
    lines = (FOLDER / "rejected.py").read_text("utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines) if MARK.search(line)}
    copy = tmp_path / "rejected.py"
    copy.write_text("\n".join(MARK.sub("", line) for line in lines) + "\n")
    assert errors_by_line(copy).keys() == wrong
