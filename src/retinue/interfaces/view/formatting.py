"""Numbers and texts formatted for a terminal: short, printable and of a known width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from rich.cells import cell_len, set_cell_size

from retinue.domain.plural import plural

ELLIPSIS = "…"
REPLACEMENT = "\ufffd"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_UNITS = ((10**3, "k"), (10**6, "M"), (10**9, "G"), (10**12, "T"))


def short_count(number: int) -> str:
    """At most five cells: 950, 1.2k, 12.3k, 123k, 1.2M."""
    if number < 1_000:
        return str(number)
    size, unit = next((s, u) for s, u in _UNITS if number < 999.5 * s or u == "T")
    short = number / size
    return f"{short:.1f}{unit}" if short < 99.95 else f"{short:.0f}{unit}"


def format_duration(seconds: float) -> str:
    """At most seven cells: 0.4s, 12.4s, 3m 20s, 1h 05m."""
    if seconds < 99.95:
        return f"{max(0.0, seconds):.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    return f"{minutes // 60:,}h {minutes % 60:02}m"


class _Tokens(Protocol):
    @property
    def tokens(self) -> int: ...

    @property
    def billed_tokens(self) -> int: ...

    @property
    def cost_usd(self) -> float: ...


def format_tokens(usage: _Tokens) -> str:
    """Tokens, each counted once; what servers have counted, if that is more; and the cost."""
    text = plural(usage.tokens, "token")
    if usage.billed_tokens > usage.tokens:
        text += f" ({usage.billed_tokens:,} billed)"
    return f"{text}, {format_cost(usage.cost_usd)}" if usage.cost_usd else text


def format_cost(amount: float) -> str:
    """At least two significant digits: $0.0012, $0.34, $12.30; empty for zero."""
    if amount <= 0:
        return ""
    if amount < 0.0001:
        return "<$0.0001"
    return f"${amount:.4f}" if amount < 0.01 else f"${amount:,.2f}"


def one_line(text: str) -> str:
    """`text` on one line, without characters that a terminal would act on."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(text.split()) if "  " in text or text != text.strip() else text


def printable_lines(text: str) -> list[str]:
    """Lines of `text`, tabs as spaces, without characters that a terminal would act on."""
    return list(map(printable_line, text.splitlines()))


def printable_line(line: str) -> str:
    """One of them. What a form feed or U+2028 separates stays on it."""
    if line.isprintable():
        return line
    return "".join(c for c in line.expandtabs(4) if c.isprintable())


def without_controls(text: str) -> str:
    """`text` without what controls a terminal or the direction of text, but with tabs."""
    return _CONTROLS.sub("", text)


def replace_control_chars(text: str) -> str:
    """`text` in the same width; characters that a terminal would act on become `REPLACEMENT`."""
    return (
        text if text.isprintable() else "".join(c if c.isprintable() else REPLACEMENT for c in text)
    )


def cell_width(text: str) -> int:
    """Number of terminal cells that `text` takes."""
    return len(text) if text.isascii() else cell_len(text)


def clip(text: str, width: int) -> str:
    """The beginning of `text` within `width` cells; a shortened text ends in an ellipsis."""
    if cell_width(text) <= width:
        return text
    if width <= 0:
        return ""
    return set_cell_size(text, width - 1).rstrip() + ELLIPSIS


def clip_reason(reason: str, width: int) -> str:
    """Like `clip`, but drops a leading address first: the problem after it says more."""
    if cell_width(reason) > width and reason.startswith(("http://", "https://")):
        reason = reason.partition(" ")[2] or reason
    return clip(reason, width)


def pad(text: str, width: int) -> str:
    """`text` shortened or padded with spaces to exactly `width` cells."""
    text = clip(text, width)
    return text + " " * (width - cell_width(text))


def pad_left(text: str, width: int) -> str:
    """Like `pad`, with the spaces before the text."""
    text = clip(text, width)
    return " " * (width - cell_width(text)) + text


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(pad, row, widths)).rstrip() for row in rows]
