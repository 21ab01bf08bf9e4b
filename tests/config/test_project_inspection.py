from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.init_files import settings_template
from retinue.config.project_inspection import detect_linter, detect_test_command
from retinue.config.settings_file import read_settings

UNITTEST = "import unittest\n"


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({}, ""),
        ({"script/test": ""}, "script/test"),
        ({"package.json": '{"scripts": {"test": "vitest"}}'}, "npm test --silent -- {selector}"),
        (
            {"package.json": '{"scripts": {"test": "vitest"}}', "pnpm-lock.yaml": ""},
            "pnpm test",
        ),
        ({"package.json": '{"scripts": {"test": "echo no test specified"}}'}, ""),
        ({"package.json": "broken"}, ""),
        ({"package.json": '{"scripts": ' + "[" * 50_000}, ""),
        ({"pyproject.toml": "[tool.pytest.ini_options]"}, "python -m pytest -q"),
        ({"tests/test_a.py": ""}, "python -m pytest -q"),
        ({"test_a.py": UNITTEST}, "python -m unittest"),
        ({"tests/__init__.py": "", "tests/test_a.py": UNITTEST}, "python -m unittest"),
        ({"test/test_a.py": UNITTEST}, "python -m unittest {selector:discover -s test}"),
        ({"test_a.py": UNITTEST, "test_b.py": "def test_b(): ..."}, "python -m pytest -q"),
        ({"go.mod": ""}, "go test {selector:./...}"),
        ({"Cargo.toml": ""}, "cargo test"),
        ({"shop.sln": ""}, "dotnet test"),
        ({"Makefile": "all:\n\ntest: all\n"}, "make test"),
        ({"Makefile": "latest:\n"}, ""),
    ],
)
def test_detection_of_tests(files: dict[str, str], command: str, tmp_path: Path) -> None:
    write(tmp_path, files)
    assert detect_test_command(tmp_path) == command


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({}, ""),
        ({"ruff.toml": ""}, "ruff check ."),
        ({"package.json": '{"scripts": {"lint": "eslint"}}'}, "npm run lint --silent"),
        ({"package.json": '{"scripts": {"lint": "eslint"}}', "yarn.lock": ""}, "yarn lint"),
        ({"package.json": '{"scripts": {"lint": 5}}'}, ""),
        ({"go.mod": ""}, "go vet ./..."),
        ({"Cargo.toml": ""}, "cargo check -q"),
    ],
)
def test_detection_of_linters(files: dict[str, str], command: str, tmp_path: Path) -> None:
    write(tmp_path, files)
    assert detect_linter(tmp_path) == command


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)


def test_template_sets_the_command(tmp_path: Path) -> None:
    (tmp_path / "retinue.toml").write_text(settings_template('say "{selector}"'))
    assert read_settings(tmp_path / "retinue.toml").test == 'say "{selector}"'
