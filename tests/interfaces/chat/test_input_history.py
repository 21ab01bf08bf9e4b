from __future__ import annotations

from pathlib import Path

import pytest

from retinue.interfaces.chat.input_history import MAX_LINES, InputHistory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history"


def test_going_back_and_forth(path: Path) -> None:
    history = InputHistory(path)
    for line in ("one", "two\nlines", "two\nlines", "three"):
        history.add(line)
    assert [history.earlier("draft") for _ in range(4)] == ["three", "two\nlines", "one", None]
    assert [history.later() for _ in range(4)] == ["two\nlines", "three", "draft", None]
    assert history.earlier("other draft") == "three"
    assert history.later() == "other draft"


def test_it_is_kept(path: Path) -> None:
    InputHistory(path).add("one")
    again = InputHistory(path)
    again.add("ünd")
    assert [InputHistory(path).earlier("") for _ in range(1)] == ["ünd"]
    assert path.stat().st_mode & 0o077 == 0


def test_only_the_latest_are_read_and_broken_lines_left_out(path: Path) -> None:
    lines = [f'"{n}"' for n in range(MAX_LINES + 5)]
    path.write_text("\n".join([*lines, "{not json", '"last"']))
    history = InputHistory(path)
    assert [history.earlier("") for _ in range(2)] == ["last", str(MAX_LINES + 4)]


def test_where_nothing_can_be_written_it_is_kept_in_mind(tmp_path: Path) -> None:
    history = InputHistory(tmp_path / "no" / "such" / "folder")
    history.add("one")
    assert history.earlier("") == "one"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text('"secret"\n')
    (tmp_path / "history").symlink_to(target)
    history = InputHistory(tmp_path / "history")
    assert history.earlier("") is None
    history.add("one")
    assert target.read_text() == '"secret"\n'
