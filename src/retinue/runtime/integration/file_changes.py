"""Record which agent changed which of the user's files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from retinue.domain.events import FilesChanged
from retinue.domain.result import FileChange
from retinue.runtime.agent.agent import Agent

Authors = list[tuple[str, str]]
"""Pairs of a changed path and the agent that changed it, in the order of the changes."""


class AgentChangeRecorder:
    """Records the changes that one agent makes. Implements the port `ChangeRecorder`.

    All agents of a run take their step numbers from `numbers` and append to `authors`.
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
        # Callbacks keep their order, so the loop records this before the caller of this thread
        # continues.
        self._loop.call_soon_threadsafe(partial(self._record, number, commit, files))

    def _record(self, number: int, commit: str, files: tuple[FileChange, ...]) -> None:
        author = author_name(self._agent.id, self._agent.path)
        self._authors.extend((file.path, author) for file in files)
        self._agent.record(FilesChanged(number=number, commit=commit, files=files))


def author_name(agent_id: str, path: str) -> str:
    return f"{agent_id} ({path})"
