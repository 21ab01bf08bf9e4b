"""Which state of the files children begin from."""

from __future__ import annotations

import msgspec


class Head(msgspec.Struct, frozen=True):
    """The state of the parent's files after some of the children; `position` counts them."""

    position: int
    commit: str


class Round:
    """Children that begin from the same state: those of one turn of a model, or of one fan-out."""

    def __init__(self, *, background: bool = False) -> None:
        self.background = background
        self.base: Head | None = None
        self.over = False
        """Whether the parent has seen a result since: who comes later begins from later files."""
