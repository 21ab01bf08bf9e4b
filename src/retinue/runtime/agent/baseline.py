"""Which state of the files children begin from."""

from __future__ import annotations

import msgspec

from retinue.domain.scope import Groups


class Head(msgspec.Struct, frozen=True):
    """The state of the parent's files after some of the children; `position` counts them."""

    position: int
    commit: str


class Passed(msgspec.Struct, frozen=True):
    """A child whose turn is over: where it wrote, and how the files were after it."""

    scope: Groups
    head: Head | None
    shared: bool


FOREGROUND, BACKGROUND = "", "in the background"


class Baseline:
    """Children that begin from the same state: those of one turn of a model, or of one fan-out.

    Those of one `line` are integrated in the order in which they were made. Lines do not wait for
    each other.
    """

    def __init__(self, *, line: str = FOREGROUND) -> None:
        self.line = line
        self.base: Head | None = None
        self.passed: list[Passed] = []
        """Those before, in their order: who is made when they are done begins from their work."""
        self.over = False
        """Whether the parent has seen a result since: who comes later begins from later files."""
