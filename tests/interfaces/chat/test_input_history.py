from __future__ import annotations

from pathlib import Path

import pytest

from retinue.interfaces.chat.input_history import MAX_LINES, InputHistory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history"


def test_earlier_and_later(path: Path) -> None:
    history = InputHistory(path)
    for line in ("one", "two\nlines", "two\nlines", "three"):
        history.add(line)
    assert [history.earlier("draft") for _ in range(4)] == ["three", "two\nlines", "one", None]
    assert [history.later() for _ in range(4)] == ["two\nlines", "three", "draft", None]
    assert history.earlier("other draft") == "three"
    assert history.later() == "other draft"


def test_history_survives_restart(path: Path) -> None:
    InputHistory(path).add("one")
    again = InputHistory(path)
    again.add("ünd")
    assert [InputHistory(path).earlier("") for _ in range(1)] == ["ünd"]
    assert path.stat().st_mode & 0o077 == 0


def test_reads_latest_lines_and_skips_broken_ones(path: Path) -> None:
    lines = [f'"{n}"' for n in range(MAX_LINES + 5)]
    path.write_text("\n".join([*lines, "{not json", '"last"']))
    history = InputHistory(path)
    assert [history.earlier("") for _ in range(2)] == ["last", str(MAX_LINES + 4)]


def test_unwritable_file_keeps_history_in_memory(tmp_path: Path) -> None:
    history = InputHistory(tmp_path / "no" / "such" / "folder")
    history.add("one")
    assert history.earlier("") == "one"


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text('"secret"\n')
    (tmp_path / "history").symlink_to(target)
    history = InputHistory(tmp_path / "history")
    assert history.earlier("") is None
    history.add("one")
    assert target.read_text() == '"secret"\n'
