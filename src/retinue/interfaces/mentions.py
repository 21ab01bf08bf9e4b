"""Finds the files that a text of the user mentions as `@path`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

# Punctuation at the end of a sentence is not part of a mentioned path.
TRAILING = ".,;:!?)]}'\""
_MENTION = re.compile(r"(?:^|(?<=\s))@([^\s@]+)")


def mentioned_files(text: str, is_file: Callable[[str], bool]) -> list[str]:
    """Paths after an @ that `is_file` knows, each once. Any other @word is only text."""
    words = _MENTION.findall(text)
    found = (next(filter(is_file, (word, word.rstrip(TRAILING))), None) for word in words)
    return list(dict.fromkeys(path for path in found if path is not None))


def is_project_file(directory: Path, path: str) -> bool:
    return not path.startswith(("/", "~")) and (directory / path).is_file()
