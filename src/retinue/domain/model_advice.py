"""Advice in error messages that is meant for a model, such as to use another tool."""

from __future__ import annotations

import re

_TOOLS = r"(?:list_dir|find_files|read_file|search_files|write_file|spawn_await)"
_ADVICE = re.compile(
    rf" Use {_TOOLS}[^.]*\.|; (?:use|read it with) {_TOOLS}[^.;]*| Go on without [^.]*\.?"
    r"| Send (?:\{.*\}|one [^.]*)\.| You have: [^.]*\.| Put a backslash .* itself\."
    r"| Add lines around it [^.]*\.| Say in your answer [^.]*\."
)
_MARK = re.compile(r"^\[(?:ERROR|DENIED)\] ")


def without_advice(text: str) -> str:
    """An error message for people: `No file 'a.py'.`"""
    return _MARK.sub("", _ADVICE.sub("", text))
