"""Lines of text in which every part has a tone.

A line is a sequence of spans. The tone of a span says what the text means. Each front end decides
which colour a tone has, or whether it has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from retinue.interfaces.view.formatting import cell_width, clip, prefix_within


class Tone(StrEnum):
    PLAIN = "plain"
    DIM = "dim"
    STRONG = "strong"
    CODE = "code"
    ADDED = "added"
    REMOVED = "removed"
    USER = "user"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    WAITING = "waiting"


class Span(NamedTuple):
    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Span, ...]


def plain_text(lines: list[Line]) -> str:
    """Text of the lines, without tones."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def line_width(line: Iterable[Span]) -> int:
    """Number of terminal cells that the line takes."""
    return sum(cell_width(span.text) for span in line)


def clip_line(line: Line, width: int) -> Line:
    """`line` shortened to at most `width` cells."""
    kept: list[Span] = []
    left = width
    for span in line:
        text = clip(span.text, left)
        kept.append(Span(text, span.tone))
        left -= cell_width(text)
        if left <= 0:
            break
    return tuple(kept)


def wrap(
    spans: Iterable[Span], width: int, *, first: str = "", rest: str = "", tone: Tone = Tone.DIM
) -> list[Line]:
    """Wrap spans between words. The first line starts with `first`, the others with `rest`."""
    lines: list[Line] = []
    current, used = [Span(first, tone)] if first else [], cell_width(first)
    least = used

    def end_line() -> None:
        nonlocal current, used, least
        lines.append(tuple(current))
        current, used = [Span(rest, tone)] if rest else [], cell_width(rest)
        least = used

    for word, word_tone in _split_words(spans):
        size = cell_width(word)
        if word.isspace():
            if used > least and used + size <= width:
                current.append(Span(word, word_tone))
                used += size
            continue
        if used + size > width and used > least:
            end_line()
        while used + size > width:
            part = prefix_within(word, width - used) or word[0]
            current.append(Span(part, word_tone))
            end_line()
            word = word[len(part) :]
            size = cell_width(word)
        if word:
            current.append(Span(word, word_tone))
            used += size
    lines.append(tuple(current))
    return [_merge_spans(line) for line in lines]


def hard_wrap(text: str, width: int, *, indent: str = "", tone: Tone = Tone.PLAIN) -> list[Line]:
    """Break `text` exactly at the width. For code, in which spaces matter."""
    room = max(1, width - cell_width(indent))
    parts = []
    while cell_width(text) > room:
        part = prefix_within(text, room) or text[0]
        parts.append(part)
        text = text[len(part) :]
    return [(Span(indent), Span(part, tone)) for part in (*parts, text)]


def _split_words(spans: Iterable[Span]) -> Iterator[Span]:
    for text, tone in spans:
        for word in re.split(r"(\s+)", text):
            if word:
                yield Span(word, tone)


def _merge_spans(line: Line) -> Line:
    """Merge neighbouring spans of one tone, and drop spaces at the end of the line."""
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
