"""What agents wait for a person to say: whether a tool may run, and answers to their questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

YES = ("y", "yes")
ALWAYS = ("a", "always")
NO = ("n", "no")


class Question:
    """Something that an agent asks. With `tool` it is for leave to use that tool."""

    def __init__(self, path: str, text: str, tool: str | None = None) -> None:
        self.path = path
        self.text = text
        self.tool = tool
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answered(self) -> str:
        return await self._answer

    def takes(self, words: str) -> bool:
        """Are these words an answer to it? Leave is given by certain words only."""
        return self.tool is None or words.strip().lower() in (*YES, *ALWAYS, *NO)

    def answer(self, words: str) -> None:
        if not self._answer.done():
            self._answer.set_result(words.strip())


class Questions:
    """Those that are open, oldest first. One whose agent is stopped goes away by itself."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.open: list[Question] = []
        self._on_change = on_change
        self._always: set[tuple[str, str]] = set()

    async def approve(self, path: str, tool: str, arguments: str) -> bool:
        if (path, tool) in self._always:
            return True
        words = (await self._ask(Question(path, arguments, tool))).lower()
        if words in ALWAYS:
            self._always.add((path, tool))
            # The same agent may have asked for it several times in one reply.
            for other in self.open:
                if (other.path, other.tool) == (path, tool):
                    other.answer("yes")
        return words in (*YES, *ALWAYS)

    async def ask(self, path: str, question: str) -> str:
        return await self._ask(Question(path, question)) or "(no answer)"

    async def _ask(self, question: Question) -> str:
        self.open.append(question)
        self._on_change()
        try:
            return await question.answered()
        finally:
            self.open.remove(question)
            self._on_change()
