"""What a model wrote, as lines of a width: the Markdown that models write, and no more of it.

It is read line by line, so that a text that still grows looks the same as when it is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from retinue.interfaces.view.agent_table import Line, Span, Tone
from retinue.interfaces.view.formatting import cells, clip, fill, lines_of

_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*$")
_ITEM = re.compile(r"(\s*)([-*+•]|\d{1,3}[.)])\s+(.*)")
_QUOTE = re.compile(r"\s*>\s?(.*)")
_RULE = re.compile(r"\s*([-*_])(\s*\1){2,}\s*$")
_FENCE = re.compile(r"\s*(```+|~~~+)")
_TABLE = re.compile(r"\s*\|.*\|\s*$")
_ALIGNMENT = re.compile(r"[\s|:-]+$")
_INLINE = re.compile(r"(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__")
RULE_WIDTH = 24


def prose(text: str, width: int) -> list[Line]:
    """`text` in lines of at most `width` cells."""
    width = max(8, width)
    lines: list[Line] = []
    table: list[str] = []
    fence = ""
    for line in lines_of(text):
        opening = _FENCE.match(line)
        if fence:
            if opening and opening[1].startswith(fence):
                fence = ""
            else:
                lines += chopped(line, width, indent="  ", tone=Tone.CODE)
            continue
        if _TABLE.match(line):
            table.append(line)
            continue
        lines += _table(table, width)
        table = []
        if opening:
            fence = opening[1]
        else:
            lines += _line(line, width)
    lines += _table(table, width)
    return lines


def wrapped(
    spans: Iterable[Span], width: int, *, first: str = "", rest: str = "", tone: Tone = Tone.DIM
) -> list[Line]:
    """Spans as lines, broken between words. Lines begin with `first` and `rest`, in `tone`."""
    lines: list[Line] = []
    current, used = [Span(first, tone)] if first else [], cells(first)
    least = used

    def end_line() -> None:
        nonlocal current, used, least
        lines.append(tuple(current))
        current, used = [Span(rest, tone)] if rest else [], cells(rest)
        least = used

    for word, word_tone in _words(spans):
        size = cells(word)
        if word.isspace():
            if used > least and used + size <= width:
                current.append(Span(word, word_tone))
                used += size
            continue
        if used + size > width and used > least:
            end_line()
        while used + size > width:
            part = _beginning(word, max(1, width - used))
            current.append(Span(part, word_tone))
            end_line()
            word = word[len(part) :]
            size = cells(word)
        if word:
            current.append(Span(word, word_tone))
            used += size
    lines.append(tuple(current))
    return [_joined(line) for line in lines]


def chopped(text: str, width: int, *, indent: str = "", tone: Tone = Tone.PLAIN) -> list[Line]:
    """`text` broken where the width ends, wherever that is: for code, whose spaces matter."""
    room = max(1, width - cells(indent))
    parts = []
    while cells(text) > room:
        part = _beginning(text, room)
        parts.append(part)
        text = text[len(part) :]
    return [(Span(indent), Span(part, tone)) for part in (*parts, text)]


def _line(line: str, width: int) -> list[Line]:
    if not line.strip():
        return [()]
    if _RULE.match(line):
        return [(Span("─" * min(width, RULE_WIDTH), Tone.DIM),)]
    if heading := _HEADING.match(line):
        return wrapped([Span(heading[1], Tone.STRONG)], width)
    if quote := _QUOTE.match(line):
        return wrapped(_inline(quote[1], Tone.DIM), width, first="│ ", rest="│ ")
    if item := _ITEM.match(line):
        indent = item[1][: width // 2]
        bullet = "•" if item[2] in "-*+" else item[2]
        first = f"{indent}{bullet} "
        return wrapped(_inline(item[3]), width, first=first, rest=" " * cells(first))
    indent = re.match(r"\s*", line)[0][: width // 2]  # type: ignore[index]
    return wrapped(_inline(line.strip()), width, first=indent, rest=indent)


def _inline(text: str, usual: Tone = Tone.PLAIN) -> Iterator[Span]:
    position = 0
    for found in _INLINE.finditer(text):
        if found.start() > position:
            yield Span(text[position : found.start()], usual)
        if found[1]:
            yield Span(found[2], Tone.CODE)
        else:
            yield Span(found[3] or found[4], Tone.STRONG)
        position = found.end()
    if position < len(text):
        yield Span(text[position:], usual)


def _table(rows: list[str], width: int) -> list[Line]:
    """A table with its columns under each other, the widest cut until it fits."""
    if not rows:
        return []
    content = [
        [cell.strip() for cell in row.strip().strip("|").split("|")]
        for row in rows
        if not _ALIGNMENT.match(row)
    ]
    columns = max(map(len, content), default=0)
    for row in content:
        row += [""] * (columns - len(row))
    widths = [max(cells(row[index]) for row in content) for index in range(columns)]
    while widths and sum(widths) + 2 * (columns - 1) > width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    return [
        (
            Span(
                clip("  ".join(map(fill, row, widths)).rstrip(), width),
                Tone.STRONG if number == 0 and len(content) < len(rows) else Tone.PLAIN,
            ),
        )
        for number, row in enumerate(content)
    ]


def _words(spans: Iterable[Span]) -> Iterator[Span]:
    for text, tone in spans:
        for word in re.split(r"(\s+)", text):
            if word:
                yield Span(word, tone)


def _beginning(text: str, width: int) -> str:
    """As much of `text` as fits into `width` cells, and at least one character."""
    if text.isascii():
        return text[:width]
    used = 0
    for index, char in enumerate(text):
        used += cells(char)
        if used > width and index:
            return text[:index]
    return text


def _joined(line: Line) -> Line:
    """Neighbours of one tone as one span; nothing at the end of a line that is not seen."""
    spans: list[Span] = []
    for span in line:
        if spans and spans[-1].tone is span.tone:
            spans[-1] = Span(spans[-1].text + span.text, span.tone)
        elif span.text:
            spans.append(span)
    if spans and spans[-1].text.endswith(" "):
        last = spans.pop()
        spans.append(Span(last.text.rstrip(), last.tone))
    return tuple(spans)
