from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.init_files import settings_template
from retinue.config.settings_file import read_settings
from retinue.config.tests_detection import detect_test_command


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({}, ""),
        ({"script/test": ""}, "script/test"),
        ({"package.json": '{"scripts": {"test": "vitest"}}'}, "npm test --silent -- {selector}"),
        ({"package.json": '{"scripts": {"test": "echo no test specified"}}'}, ""),
        ({"package.json": "broken"}, ""),
        ({"pyproject.toml": "[tool.pytest.ini_options]"}, "python -m pytest -q"),
        ({"tests/test_a.py": ""}, "python -m pytest -q"),
        ({"go.mod": ""}, "go test {selector:./...}"),
        ({"Cargo.toml": ""}, "cargo test"),
        ({"shop.sln": ""}, "dotnet test"),
        ({"Makefile": "all:\n\ntest: all\n"}, "make test"),
        ({"Makefile": "latest:\n"}, ""),
    ],
)
def test_detection(files: dict[str, str], command: str, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert detect_test_command(tmp_path) == command


def test_template_sets_the_command(tmp_path: Path) -> None:
    (tmp_path / "retinue.toml").write_text(settings_template('say "{selector}"'))
    assert read_settings(tmp_path / "retinue.toml").test == 'say "{selector}"'
