"""Stopping a run so that it can go on later: whoever is between two turns says what they have."""

from __future__ import annotations

from collections.abc import Callable


class Suspension:
    """One per run. Nobody begins anything new once it is called."""

    def __init__(self) -> None:
        self.why: str | None = None
        self._then: Callable[[], None] | None = None
        self._at_work: Callable[[], bool] = lambda: False

    def call(
        self, why: str, *, at_work: Callable[[], bool], then: Callable[[], None] | None = None
    ) -> None:
        """Have everybody pause; `then` is called once, when nobody is `at_work` any more."""
        self.why = why
        self._at_work, self._then = at_work, then
        self.changed()

    def changed(self) -> None:
        """Somebody has paused, or ended."""
        if self._then is not None and not self._at_work():
            then, self._then = self._then, None
            then()
