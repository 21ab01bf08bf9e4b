"""Renders the subset of Markdown that models write as styled lines.

The parser works line by line, so a text that still grows looks the same as a complete one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from retinue.interfaces.view.formatting import cell_width, clip, pad, printable_lines
from retinue.interfaces.view.styled_text import Line, Span, Tone, hard_wrap, wrap

_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*$")
_ITEM = re.compile(r"(\s*)([-*+•]|\d{1,3}[.)])\s+(.*)")
_QUOTE = re.compile(r"\s*>\s?(.*)")
_RULE = re.compile(r"\s*([-*_])(\s*\1){2,}\s*$")
_FENCE = re.compile(r"\s*(```+|~~~+)")
_TABLE = re.compile(r"\s*\|.*\|\s*$")
_ALIGNMENT = re.compile(r"[\s|:-]+$")
_INLINE = re.compile(r"(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__")
RULE_WIDTH = 24


def render_markdown(text: str, width: int) -> list[Line]:
    """`text` as lines of at most `width` cells."""
    width = max(8, width)
    lines: list[Line] = []
    table: list[str] = []
    fence = ""
    for line in printable_lines(text):
        opening = _FENCE.match(line)
        if fence:
            if opening and opening[1].startswith(fence):
                fence = ""
            else:
                lines += hard_wrap(line, width, indent="  ", tone=Tone.CODE)
            continue
        if _TABLE.match(line):
            table.append(line)
            continue
        lines += _table_lines(table, width)
        table = []
        if opening:
            fence = opening[1]
        else:
            lines += _render_line(line, width)
    lines += _table_lines(table, width)
    return lines


def _render_line(line: str, width: int) -> list[Line]:
    if not line.strip():
        return [()]
    if _RULE.match(line):
        return [(Span("─" * min(width, RULE_WIDTH), Tone.DIM),)]
    if heading := _HEADING.match(line):
        return wrap([Span(heading[1], Tone.STRONG)], width)
    if quote := _QUOTE.match(line):
        return wrap(_inline_spans(quote[1], Tone.DIM), width, first="│ ", rest="│ ")
    if item := _ITEM.match(line):
        indent = item[1][: width // 2]
        bullet = "•" if item[2] in "-*+" else item[2]
        first = f"{indent}{bullet} "
        return wrap(_inline_spans(item[3]), width, first=first, rest=" " * cell_width(first))
    indent = re.match(r"\s*", line)[0][: width // 2]  # type: ignore[index]
    return wrap(_inline_spans(line.strip()), width, first=indent, rest=indent)


def _inline_spans(text: str, default: Tone = Tone.PLAIN) -> Iterator[Span]:
    position = 0
    for found in _INLINE.finditer(text):
        if found.start() > position:
            yield Span(text[position : found.start()], default)
        if found[1]:
            yield Span(found[2], Tone.CODE)
        else:
            yield Span(found[3] or found[4], Tone.STRONG)
        position = found.end()
    if position < len(text):
        yield Span(text[position:], default)


def _table_lines(rows: list[str], width: int) -> list[Line]:
    """A table with aligned columns. The widest columns shrink until the table fits."""
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
    widths = [max(cell_width(row[index]) for row in content) for index in range(columns)]
    while widths and sum(widths) + 2 * (columns - 1) > width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    return [
        (
            Span(
                clip("  ".join(map(pad, row, widths)).rstrip(), width),
                Tone.STRONG if number == 0 and len(content) < len(rows) else Tone.PLAIN,
            ),
        )
        for number, row in enumerate(content)
    ]
