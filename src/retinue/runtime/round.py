"""Which state of the files children begin from."""

from __future__ import annotations

import msgspec


class Head(msgspec.Struct, frozen=True):
    """The state of the parent's files after some of the children; `position` counts them."""

    position: int
    commit: str


FOREGROUND, BACKGROUND = "", "in the background"


class Round:
    """Children that begin from the same state: those of one turn of a model, or of one fan-out.

    Those of one `line` are integrated in the order in which they were made. Lines do not wait for
    each other.
    """

    def __init__(self, *, line: str = FOREGROUND) -> None:
        self.line = line
        self.base: Head | None = None
        self.over = False
        """Whether the parent has seen a result since: who comes later begins from later files."""
