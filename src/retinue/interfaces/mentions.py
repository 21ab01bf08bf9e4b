"""Finds the files that a text of the user mentions as `@path`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from mimetypes import guess_type
from pathlib import Path

# Punctuation at the end of a sentence is not part of a mentioned path.
TRAILING = ".,;:!?)]}'\""
_MENTION = re.compile(r"(?:^|(?<=\s))@([^\s@]+)")


def mentioned_files(text: str, is_file: Callable[[str], bool]) -> list[str]:
    """Paths after an @ that `is_file` knows, each once. Any other @word is only text."""
    words = _MENTION.findall(text)
    found = (next(filter(is_file, (word, word.rstrip(TRAILING))), None) for word in words)
    return list(dict.fromkeys(path for path in found if path is not None))


def missing_files_text(text: str, is_file: Callable[[str], bool]) -> str:
    """What to tell a user who mentions files that `is_file` does not know; "" if none."""
    words = [word.rstrip(TRAILING) for word in _MENTION.findall(text)]
    # Without a suffix such as .py, the word may be a decorator or a person.
    missing = [word for word in words if guess_type(word)[0] and not is_file(word)]
    if not missing:
        return ""
    names = " and ".join(f"@{word}" for word in dict.fromkeys(missing))
    verb, it = ("is no file", "it") if len(missing) == 1 else ("are no files", "them")
    return f"{names} {verb} of this project; the task is sent without {it}."


def is_file_in(directory: Path, path: str) -> bool:
    """Whether a text means a file of the directory by `path`."""
    # Not `Path.is_file`, which raises an error for a name that is too long.
    return not path.startswith(("/", "~")) and os.path.isfile(directory / path)
