"""What one agent does to the user's files, counted and put on record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from retinue.domain.events import FilesChanged
from retinue.domain.result import FileChange
from retinue.runtime.agent.agent import Agent

Authors = list[tuple[str, str]]
"""Who has changed which path, in the order of it."""


class Recorder:
    """Implements the port `ChangeRecorder`.

    `numbers` are the run's, which all of its agents take from; in `authors` it is noted whose step
    a path was changed by.
    """

    def __init__(self, agent: Agent, numbers: Iterator[int], authors: Authors) -> None:
        self._agent = agent
        self._numbers = numbers
        self._authors = authors
        self._loop = asyncio.get_running_loop()

    @property
    def run_id(self) -> str:
        return self._agent.contract.parent.run_id

    def next_number(self) -> int:
        return next(self._numbers)

    def record(self, number: int, commit: str, files: tuple[FileChange, ...]) -> None:
        # In the loop, and before whoever waits for this thread goes on: callbacks keep their order.
        self._loop.call_soon_threadsafe(partial(self._note, number, commit, files))

    def _note(self, number: int, commit: str, files: tuple[FileChange, ...]) -> None:
        who = f"{self._agent.id} ({self._agent.path})"
        self._authors.extend((file.path, who) for file in files)
        self._agent.record(FilesChanged(number=number, commit=commit, files=files))
