"""Files that a text mentions, and words that only look like one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from retinue.interfaces.mentions import is_file_in, mentioned_files, missing_files_text


def test_a_word_that_no_file_can_be_called_is_only_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    text = f"Compare @a.txt with @{'x' * 300}.txt and @a\0b."
    is_file = partial(is_file_in, tmp_path)
    assert mentioned_files(text, is_file) == ["a.txt"]
    assert missing_files_text(text, is_file).startswith("@xxx")
