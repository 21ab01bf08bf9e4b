"""Changes of one value in a settings file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue.config.settings_editor import parse_key, set_value, unset_value
from retinue.config.settings_file import read_settings
from retinue.errors import ConfigError

FILE = """\
# My settings.
model = "qwen3" # the large one

# Limits.
[budget]
max_turns = 3 # enough

[roles.reviewer] # strict
instructions = '''
[be strict]'''
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    return path


def test_everything_else_stays_as_it_is(path: Path) -> None:
    assert set_value(path, ("model",), ["gpt"]) == "gpt"
    assert set_value(path, ("max_concurrent",), ["5"]) == 5
    assert set_value(path, ("budget", "max_turns"), ["7"]) == 7
    assert path.read_text() == (
        FILE.replace('"qwen3"', '"gpt"')
        .replace("one\n", "one\nmax_concurrent = 5\n")
        .replace("= 3", "= 7")
    )
    unset_value(path, ("max_concurrent",))
    unset_value(path, ("budget", "max_turns"))
    assert "[budget]" not in path.read_text()
    assert "# the large one" in path.read_text()


@pytest.mark.parametrize(
    ("key", "words", "value"),
    [
        ("max_concurrent", ["5"], 5),
        ("notify_after_s", ["5"], 5),
        ("model", ["5"], "5"),
        ("model", ['"5"'], "5"),
        ("cache", ["false"], False),
        ("checks", ["pytest -q"], ["pytest -q"]),
        ("checks", ["pytest -q", "ruff check"], ["pytest -q", "ruff check"]),
        ("checks", ['["a", "b"]'], ["a", "b"]),
        ('servers."http://127.0.0.1:8080".slots', ["4"], 4),
        ("roles.critic.budget.max_turns", ["4"], 4),
    ],
)
def test_a_value_is_read_as_its_setting_needs_it(
    path: Path, key: str, words: list[str], value: Any
) -> None:
    parts = parse_key(key)
    assert set_value(path, parts, words) == value
    data: Any = tomllib.loads(path.read_text())
    for part in parts:
        data = data[part]
    assert data == value
    read_settings(path)


@pytest.mark.parametrize(
    ("key", "words", "message"),
    [
        ("max_concurrent", ["many"], "max_concurrent cannot be 'many': it is a whole number."),
        ("max_concurrent", ["0"], "max_concurrent cannot be '0': must be at least 1, not 0."),
        ("cache", ["no"], "cache cannot be 'no': it is true or false."),
        ("budget", ["5"], "budget cannot be '5': it is a table."),
        (
            "mode",
            ["fast"],
            "mode cannot be 'fast': invalid enum value 'fast'; there are: plan, normal, auto,"
            " dangerous.",
        ),
        ("model", ["a", "b"], "model cannot be 'a b': it is a text."),
    ],
)
def test_a_wrong_value_changes_nothing(
    path: Path, key: str, words: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        set_value(path, parse_key(key), words)
    assert str(error.value) == message
    assert path.read_text() == FILE


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("max_concurent", "; did you mean 'max_concurrent'?"),
        ("max_turns", "; did you mean 'budget.max_turns'?"),
        ("roles.a.modle", "; did you mean 'roles.NAME.model'?"),
        ("font", "; `retinue config --all` lists them."),
        ("a b", "; `retinue config --all` lists them."),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(key: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_key(key)
    assert str(error.value) == f"There is no setting {key!r}{hint}"


def test_a_value_that_is_not_set_cannot_be_removed(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"test is not set in .*config\.toml\."):
        unset_value(path, ("test",))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: File exists\."):
        set_value(tmp_path / "file" / "config.toml", ("model",), ["a"])


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_back(path: Path, text: str) -> None:
    # Without quotes, a text such as 1 or [] would be another TOML value.
    quoted = json.dumps(text, ensure_ascii=False)
    assert set_value(path, ("test",), [quoted]) == text
    assert read_settings(path).test == text
