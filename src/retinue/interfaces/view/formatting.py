"""Numbers and texts as a terminal shows them: short, and of a width that is known."""

from __future__ import annotations

from unicodedata import combining, east_asian_width

ELLIPSIS = "…"
UNSHOWN = "\ufffd"
_UNITS = ((10**3, "k"), (10**6, "M"), (10**9, "G"), (10**12, "T"))


def short_count(number: int) -> str:
    """At most five cells: 950, 1.2k, 12.3k, 123k, 1.2M."""
    if number < 1_000:
        return str(number)
    size, unit = next((s, u) for s, u in _UNITS if number < 999.5 * s or u == "T")
    short = number / size
    return f"{short:.1f}{unit}" if short < 99.95 else f"{short:.0f}{unit}"


def duration(seconds: float) -> str:
    """At most seven cells: 0.4s, 12.4s, 3m 20s, 1h 05m."""
    if seconds < 99.95:
        return f"{max(0.0, seconds):.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    return f"{minutes // 60:,}h {minutes % 60:02}m"


def dollars(amount: float) -> str:
    """Two digits that matter: $0.0012, $0.34, $12.30; nothing for nothing."""
    if amount <= 0:
        return ""
    if amount < 0.0001:
        return "<$0.0001"
    return f"${amount:.4f}" if amount < 0.01 else f"${amount:,.2f}"


def some(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def one_line(text: str) -> str:
    """`text` on one row, with nothing in it that a terminal would act on."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(text.split()) if "  " in text or text != text.strip() else text


def lines_of(text: str) -> list[str]:
    """The lines of `text`, tabs as spaces, with nothing in them that a terminal would act on."""
    return [
        line if line.isprintable() else "".join(c for c in line.expandtabs(4) if c.isprintable())
        for line in text.splitlines()
    ]


def harmless(text: str) -> str:
    """`text` in as many cells, with marks for what a terminal would act on."""
    return text if text.isprintable() else "".join(c if c.isprintable() else UNSHOWN for c in text)


def cells(text: str) -> int:
    """How many cells of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(map(_cell, text))


def _cell(char: str) -> int:
    if char.isascii():
        return 1
    if combining(char) or char in "\u200b\u200c\u200d\ufe0e\ufe0f":
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def clip(text: str, width: int) -> str:
    """The beginning of `text` within `width` cells; what is cut ends in an ellipsis."""
    if cells(text) <= width:
        return text
    if width <= 0:
        return ""
    used, kept = 0, []
    for char in text:
        used += _cell(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept).rstrip() + ELLIPSIS


def clip_reason(reason: str, width: int) -> str:
    """Like `clip`. Whose address it begins with goes first: what happened tells more."""
    if cells(reason) > width and reason.startswith(("http://", "https://")):
        reason = reason.partition(" ")[2] or reason
    return clip(reason, width)


def fill(text: str, width: int) -> str:
    """`text` cut or filled with spaces to exactly `width` cells."""
    text = clip(text, width)
    return text + " " * (width - cells(text))


def fill_left(text: str, width: int) -> str:
    """Like `fill`, for numbers: the spaces stand before it."""
    text = clip(text, width)
    return " " * (width - cells(text)) + text
