"""Changes of files as lines: a heading, line numbers, signs, and code in its colours."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from rich.text import Text

from retinue.domain.plural import plural
from retinue.interfaces.view.formatting import clip, one_line, printable_line
from retinue.interfaces.view.styled_text import Line, Tone, code_theme, hard_wrap, styled
from retinue.runtime.history.undo import ChangePatch

COLLAPSED_LINES = 20
MAX_HIGHLIGHTED_LINES = 2_000
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_TONES = {"+": Tone.ADDED, "-": Tone.REMOVED, " ": Tone.PLAIN}


class _FilePatch(msgspec.Struct):
    """The part of a patch about one file. A line has its sign, its number and its text."""

    path: str = ""
    was: str = ""
    is_binary: bool = False
    notes: list[str] = msgspec.field(default_factory=list)
    hunks: list[list[tuple[str, int, str]]] = msgspec.field(default_factory=list)

    def count(self, sign: str) -> int:
        return sum(line[0] == sign for hunk in self.hunks for line in hunk)

    @property
    def heading(self) -> str:
        kind = "new file, " if self.was == "/dev/null" else ""
        path, gone = (self.was, True) if self.path == "/dev/null" else (self.path, False)
        figures = f"+{self.count('+')} −{self.count('-')}"
        if self.is_binary:
            figures = "binary"
        elif not (self.hunks or self.notes or kind or gone):
            figures = "no change"
        return f"{path} ({'deleted, ' if gone else kind}{figures})"


def change_heading(change: ChangePatch) -> str:
    """`step 3, by a2 (root/executor.1): write a.py`, with a note where the change was undone."""
    what = "not merged" if change.number is None else f"step {change.number}"
    if change.state == "undone":
        what += ", undone"
    elif change.state == "made" and change.number is None:
        what = "applied by redo"
    agent = f"{change.agent_id} ({change.path})" if change.agent_id else "an unknown agent"
    return f"{what}, by {agent}: {one_line(change.title)}"


def diff_lines(change: ChangePatch, width: int) -> list[Line]:
    return [
        styled((clip(change_heading(change), width), Tone.STRONG)),
        *patch_lines(change.patch, width),
    ]


def collapsed(lines: list[Line], *, full: bool) -> list[Line]:
    """`lines`, or the first of them and how many follow."""
    if full or len(lines) <= COLLAPSED_LINES + 1:
        return lines
    more = plural(len(lines) - COLLAPSED_LINES + 1, "more line")
    return [
        *lines[: COLLAPSED_LINES - 1],
        styled((f"  … {more} (ctrl+o or a click shows them)", Tone.DIM)),
    ]


def patch_lines(patch: str, width: int) -> list[Line]:
    """A unified diff with line numbers and colours."""
    highlighted = patch.count("\n") <= MAX_HIGHLIGHTED_LINES
    lines: list[Line] = []
    for file in _files(patch):
        lines.append(styled((clip(f"  {file.heading}", width), Tone.STRONG)))
        lines += [styled((clip(f"  {note}", width), Tone.DIM)) for note in file.notes]
        for index, hunk in enumerate(file.hunks):
            if index:
                lines.append(styled(("  ⋮", Tone.DIM)))
            lines += _hunk_lines(file, hunk, width, highlighted=highlighted)
    return lines


def _files(patch: str) -> Iterator[_FilePatch]:
    file, old, new = _FilePatch(), 0, 0
    # A line ends where git ends it: anything else would hide the rest of a line from a reviewer.
    for line in map(printable_line, patch.removesuffix("\n").split("\n")):
        if line.startswith("diff --git ") or (line.startswith("--- ") and file.hunks):
            if file.path or file.notes:
                yield file
            file = _FilePatch(path=line.rpartition(" b/")[2])
        if found := _HUNK.match(line):
            old, new = int(found[1]), int(found[2])
            file.hunks.append([])
        elif file.hunks:
            sign = line[:1] or " "
            if sign in _TONES:
                file.hunks[-1].append((sign, old if sign == "-" else new, line[1:]))
                old, new = old + (sign != "+"), new + (sign != "-")
        elif line.startswith("--- "):
            file.was = line[4:].removeprefix("a/")
        elif line.startswith("+++ "):
            file.path = line[4:].removeprefix("b/")
        elif line.startswith("Binary files "):
            file.is_binary = True
            if line.startswith("Binary files /dev/null "):
                file.was = "/dev/null"
            elif line.endswith(" /dev/null differ"):
                file.was, file.path = file.path, "/dev/null"
        elif line.startswith(("rename ", "new mode", "old mode")):
            file.notes.append(line)
    if file.path or file.notes:
        yield file


def _hunk_lines(
    file: _FilePatch, hunk: list[tuple[str, int, str]], width: int, *, highlighted: bool
) -> Iterator[Line]:
    digits = len(str(hunk[-1][1])) if hunk else 1
    code = _highlight(file, hunk) if highlighted else [Text(text) for _, _, text in hunk]
    room = width - digits - 5
    for (sign, number, _), text in zip(hunk, code, strict=True):
        tone = _TONES[sign]
        if sign != " ":
            # The sign and the colour of the whole line say the same.
            text.stylize(tone)
        for index, part in enumerate(hard_wrap(text, room)):
            gutter = f"  {number:>{digits}} " if not index else " " * (digits + 3)
            yield styled((gutter, Tone.DIM), (f"{sign} ", tone), part)


def _highlight(file: _FilePatch, hunk: list[tuple[str, int, str]]) -> list[Text]:
    """The text of each line, its code in colours; each side of the change is read as a whole."""
    from rich.syntax import Syntax  # Imports all of pygments.

    path = file.was if file.path == "/dev/null" else file.path
    lexer = Syntax.guess_lexer(path)
    shown = [Text(text) for _, _, text in hunk]
    for side in ("-", "+"):
        rows = [index for index, line in enumerate(hunk) if line[0] in (side, " ")]
        code = "\n".join(hunk[index][2] for index in rows)
        if lexer == "default" or not code.strip():
            continue
        coloured = Syntax(code, lexer, theme=code_theme()).highlight(code).split("\n")
        for index, text in zip(rows, coloured, strict=False):
            if text.plain == hunk[index][2]:
                shown[index] = text
    return shown
