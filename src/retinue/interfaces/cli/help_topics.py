"""The topics of `retinue help`: one for each section of the manual.

`manual.md` beside this module is a link to `docs/manual.md`; wheels contain the file. The
first sentence of each section describes it in the list of topics.
"""

from __future__ import annotations

import re
from importlib.resources import files

from retinue.interfaces.view.markdown import render_markdown
from retinue.interfaces.view.styled_text import Line

_HEADING = re.compile(r"^## (.+)\n", re.MULTILINE)
_FENCED_FILE = re.compile(r"^```\w+ (\S+)$", re.MULTILINE)
# A line that does not continue a paragraph: a list item, a table row, a heading or a fence.
_BLOCK_LINE = re.compile(r"([-*#|]|\d+\.|```)")


def read_topics() -> dict[str, str]:
    """The text of each section by its topic, which is the heading in lower case with hyphens."""
    manual = (files("retinue.interfaces.cli") / "manual.md").read_text("utf-8")
    _, *parts = _HEADING.split(manual)
    return {
        heading.lower().replace(" ", "-"): text.strip()
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }


def summary(text: str) -> str:
    """The first sentence of a section."""
    return text.partition(".")[0]


def render(text: str, width: int) -> list[Line]:
    """A section of the manual as lines of at most `width` cells."""
    return render_markdown(_unwrap(_FENCED_FILE.sub(r"\1:\n\n```", text)), width)


def _unwrap(text: str) -> str:
    """`text` with each paragraph on one line."""
    lines: list[str] = []
    in_fence = continues = False
    for line in text.splitlines():
        if line.startswith("```"):
            in_fence = not in_fence
        if in_fence or not line or _BLOCK_LINE.match(line):
            lines.append(line)
            continues = False
        elif continues:
            lines[-1] += f" {line}"
        else:
            lines.append(line)
            continues = True
    return "\n".join(lines)
