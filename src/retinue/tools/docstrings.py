"""Descriptions in docstrings: of a function and of its parameters, in the three common styles."""

from __future__ import annotations

import inspect
import re

_GOOGLE = re.compile(r"^(?:Args|Arguments|Parameters):[ \t]*\n((?:[ \t]+.*\n|[ \t]*\n)*)", re.M)
_GOOGLE_ITEM = re.compile(r"^\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")
_NUMPY = re.compile(r"^Parameters\n-{3,}\n(.*?)(?=^\w[\w ]*\n-{3,}$|\Z)", re.M | re.S)
_NUMPY_ITEM = re.compile(r"^(\w+(?:, ?\w+)*)(?: ?:.*)?$")
_SPHINX = re.compile(
    r"^:(?:param|parameter|arg|argument)\s+(?:[^:\n]*?\s)?(\w+):[ \t]*(.*(?:\n[ \t]+.*)*)", re.M
)


def summary(docstring: str | None) -> str:
    """The first paragraph, on one line; "" if the docstring begins with its parameters."""
    text = inspect.cleandoc(docstring or "") + "\n"
    starts = [
        match.start() for style in (_GOOGLE, _NUMPY, _SPHINX) if (match := style.search(text))
    ]
    return _line(text[: min(starts, default=len(text))].split("\n\n")[0])


def parameter_descriptions(docstring: str | None) -> dict[str, str]:
    """Descriptions by parameter, from a docstring in Google's, NumPy's or Sphinx's style."""
    text = inspect.cleandoc(docstring or "") + "\n"
    if section := _NUMPY.search(text):
        return _items(section[1], _NUMPY_ITEM)
    if section := _GOOGLE.search(text):
        return _items(inspect.cleandoc("\n" + section[1]), _GOOGLE_ITEM)
    return {name: _line(about) for name, about in _SPHINX.findall(text)}


def _items(section: str, item: re.Pattern[str]) -> dict[str, str]:
    """Names at the left margin, each with the indented lines that follow."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in section.splitlines():
        if line[:1].strip() and (match := item.match(line)):
            names = re.split(r", ?", match[1])
            found |= {name: list(match.groups()[1:]) for name in names}
        else:
            for name in names:
                found[name].append(line)
    return {name: _line(" ".join(lines)) for name, lines in found.items()}


def _line(text: str) -> str:
    return " ".join(text.split())
