"""`retinue config`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Start

Settings = Callable[[str], Path]
MINE = "~/.config/retinue/config.toml"
MY_FILE = """\
model = "qwen3"
max_concurrent = 5
checks = ["pytest -q"]
[mcp.time]
command = "uvx"
env.TOKEN = "secret"
"""
THEIR_FILE = """\
max_concurrent = 2
max_depth = 9
checks = ["ruff check"]
notify_after_s = 1.0
"""


@pytest.fixture
def files(settings: Settings, project: Path) -> Path:
    (project / "retinue.toml").write_text(THEIR_FILE)
    return settings(MY_FILE)


@pytest.mark.usefixtures("files")
def test_each_value_is_shown_with_its_source(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        row["key"]: (row["value"], row["source"], row["note"])
        for row in map(json.loads, cli("config", "--all", "--json").out.splitlines())
    }
    assert rows["model"] == ("qwen3", MINE, "")
    assert rows["max_concurrent"] == (2, "retinue.toml", "")
    assert rows["max_depth"] == (2, "default", "retinue.toml says 9, which has no effect")
    assert rows["checks"] == (["pytest -q", "ruff check"], f"{MINE} and retinue.toml", "")
    assert rows["budget.max_turns"] == (200, "default", "")
    assert rows["notify_after_s"][1:] == ("default", "retinue.toml says 1.0, which has no effect")
    monkeypatch.setenv("RETINUE_MODEL", "other")
    out = cli("config").out
    assert out.splitlines()[0].split() == ["model", '"other"', "RETINUE_MODEL"]
    assert "secret" not in out
    assert "mcp.time.env.TOKEN  (hidden)" in out
    assert "note: max_depth: retinue.toml says 9, which has no effect\n" in out
    assert "max_turns" not in out, "defaults are listed with --all only"
    assert cli("config", "get", "checks").out == '["pytest -q","ruff check"]\n'
    assert cli("config", "get", "model").out == "other\n"
    assert cli("config", "get", "test") == (1, "", "")


def test_a_value_is_set_and_removed(cli: Cli, files: Path) -> None:
    assert cli("config", "set", "max_depth", "1") == (0, f"max_depth = 1 in {MINE}\n", "")
    assert "\nmax_depth = 1\n[mcp.time]\n" in files.read_text()
    assert cli("config", "unset", "max_depth") == (
        0, f"max_depth is no longer set in {MINE}\n", ""
    )  # fmt: skip
    assert files.read_text() == MY_FILE
    done = cli("config", "set", "--project", "mode", "plan")
    assert done == (0, 'mode = "plan" in ~/project/retinue.toml\n', "")
    assert cli("config", "get", "mode").out == "plan\n"


@pytest.mark.parametrize(("key", "value"), [("max_concurrent", "9"), ("report_path", "a.md")])
@pytest.mark.usefixtures("files")
def test_a_project_cannot_widen_what_the_user_allows(cli: Cli, key: str, value: str) -> None:
    cli("config", "unset", "--project", "max_concurrent")
    done = cli("config", "set", "--project", key, value)
    assert done.code == 0
    assert done.err.startswith(
        "note: this has no effect here: the value is the same as before, your own"
    )


@pytest.mark.usefixtures("files")
def test_errors_are_one_sentence(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("config", "set", "max_concurent", "4") == (
        2, "", "retinue: There is no setting 'max_concurent'; did you mean 'max_concurrent'?\n"
    )  # fmt: skip
    assert cli("config", "set", "max_concurrent", "all") == (
        2, "", "retinue: max_concurrent cannot be 'all': it is a whole number.\n"
    )  # fmt: skip
    monkeypatch.setenv("RETINUE_MODEL", "other")
    done = cli("config", "set", "model", "gpt")
    assert done.err == "note: the variable RETINUE_MODEL is set, and overrides this.\n"


def test_settings_behind_a_link_are_not_changed(cli: Cli, project: Path, tmp_path: Path) -> None:
    (project / "retinue.toml").symlink_to(tmp_path / "elsewhere.toml")
    done = cli("config", "set", "--project", "mode", "plan")
    assert done.code == 2
    assert "is a symbolic link; remove it, or name another file." in done.err


def test_nothing_is_set(terminal: Start) -> None:
    term = terminal("config")
    assert term.end() == 0
    head, model, hint = term.text.splitlines()
    assert (head.split(), model.split()) == (
        ["SETTING", "VALUE", "FROM"], ["model", "not", "set", "default"]
    )  # fmt: skip
    assert hint == "Nothing else is set; `retinue config --all` lists the defaults too."
