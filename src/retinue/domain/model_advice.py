"""Advice in error messages that only a model can follow, because it names a tool."""

from __future__ import annotations

import re

_TOOLS = r"(?:list_dir|find_files|read_file|search_files|write_file|spawn_await)"
_ADVICE = re.compile(rf" Use {_TOOLS}[^.]*\.|; (?:use|read it with) {_TOOLS}[^.;]*")


def without_advice(text: str) -> str:
    """An error message for people: `No file 'a.py'.`"""
    return _ADVICE.sub("", text)
