"""`Baseline`: the state of the parent's files that a group of children starts from."""

from __future__ import annotations

import msgspec

from retinue.domain.scope import Scope


class Head(msgspec.Struct, frozen=True):
    """A state of the parent's files: a commit. A newer state has a higher position."""

    position: int
    commit: str


class Merged(msgspec.Struct, frozen=True):
    """A child that is done: where it wrote, and the parent's files after it."""

    scope: Scope
    head: Head | None
    shared: bool


FOREGROUND, BACKGROUND = "", "in the background"


class Baseline:
    """Children that start from the same state: those of one turn of a model, or of one fan-out.

    Children of one `queue` are merged in the order in which they were made. Queues do not wait for
    each other.
    """

    def __init__(self, *, queue: str = FOREGROUND, race: str = "") -> None:
        self.queue = queue
        self.race = race
        """The race in which the children are candidates: they do not wait for each other."""
        self.base: Head | None = None
        self.merged: list[Merged] = []
        """Siblings whose turn is over, in order; later children start from their work."""
        self.result_seen = False
        """Whether the parent has read a result; children made later start from newer files."""
