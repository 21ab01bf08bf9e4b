"""A recorder of changes for tests."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from retinue.domain.result import FileChange

if TYPE_CHECKING:
    pass


class ListRecorder:
    """Keeps the recorded changes of a run in a list."""

    run_id = "run1"
    agent_id = "a1"

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.recorded: list[tuple[int, str, list[str]]] = []

    def next_number(self) -> int:
        return next(self._numbers)

    def record(self, number: int, commit: str, files: tuple[FileChange, ...]) -> None:
        self.recorded.append((number, commit, [str(file) for file in files]))
