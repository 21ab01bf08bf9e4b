"""Guesses the test command of a project from its files, for `retinue init`."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

_MAX_BYTES = 1_000_000
_BY_FILE = (
    ("go.mod", "go test {selector:./...}"),
    ("Cargo.toml", "cargo test"),
    ("pom.xml", "mvn -q test"),
    ("gradlew", "./gradlew test"),
    (".rspec", "bundle exec rspec"),
    ("phpunit.xml", "vendor/bin/phpunit"),
    ("phpunit.xml.dist", "vendor/bin/phpunit"),
    ("*.sln", "dotnet test"),
)


def detect_test_command(root: Path) -> str:
    """The command, or "" if nothing says how the tests run. Nothing is run or imported."""
    if (root / "script" / "test").is_file():
        return "script/test"
    with suppress(ValueError, AttributeError):
        script = json.loads(_text(root / "package.json") or "{}").get("scripts", {}).get("test", "")
        # `npm init` writes a placeholder, which runs no tests.
        if script and "no test specified" not in script:
            return "npm test --silent -- {selector}"
    if _uses_pytest(root):
        return "python -m pytest -q"
    for pattern, command in _BY_FILE:
        if next(root.glob(pattern), None) is not None:
            return command
    if re.search(r"^test:", _text(root / "Makefile"), re.MULTILINE):
        return "make test"
    return ""


def _uses_pytest(root: Path) -> bool:
    if (root / "pytest.ini").is_file() or (root / "conftest.py").is_file():
        return True
    for name in ("pyproject.toml", "setup.cfg", "tox.ini", "requirements-dev.txt"):
        if "pytest" in _text(root / name):
            return True
    folders = (root, root / "tests", root / "test")
    return any(next(folder.glob("test_*.py"), None) is not None for folder in folders)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
