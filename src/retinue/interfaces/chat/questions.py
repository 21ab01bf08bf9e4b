"""What agents wait for a person to say: whether a tool may run, and answers to their questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from retinue.domain.approval import ApprovalRequest, Rule
from retinue.domain.discovered_models import DiscoveredModels
from retinue.interfaces.consent import Consent

YES = ("y", "yes")
ALWAYS = ("a", "always")
NO = ("n", "no")


class Question:
    """Something that is asked, by the agent at `path` or, without one, by the program itself.

    With a `wish` it is for leave to do what is wished for. If there are `words`, only these are
    answers; else whatever is said.
    """

    def __init__(
        self,
        path: str,
        text: str,
        *,
        wish: ApprovalRequest | None = None,
        words: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.text = text
        self.wish = wish
        self.words = words
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answered(self) -> str:
        return await self._answer

    def takes(self, words: str) -> bool:
        """Are these words an answer to it?"""
        return not self.words or words.strip().lower() in self.words

    def answer(self, words: str) -> None:
        if not self._answer.done():
            self._answer.set_result(words.strip())


class Questions:
    """Those that are open, oldest first. One whose agent is stopped goes away by itself.

    `on_always` is told what a person has just allowed for good.
    """

    def __init__(
        self, on_change: Callable[[], None], on_always: Callable[[Rule], None] = lambda _: None
    ) -> None:
        self.open: list[Question] = []
        self._on_change = on_change
        self._on_always = on_always
        self._consent = Consent()
        self._chosen = ""

    async def approve(self, wish: ApprovalRequest) -> bool | Rule:
        if rule := self._consent.covers(wish):
            return rule
        answers = (*YES, *ALWAYS, *NO)
        question = Question(wish.path, wish.arguments, wish=wish, words=answers)
        words = (await self._ask(question)).lower()
        if words in ALWAYS:
            self._consent.add(wish.rule)
            self._on_always(wish.rule)
            # Others may have asked for the same meanwhile.
            for other in self.open:
                if other.wish is not None and self._consent.covers(other.wish):
                    other.answer("yes")
        return words in (*YES, *ALWAYS)

    async def ask(self, path: str, question: str) -> str:
        return await self._ask(Question(path, question)) or "(no answer)"

    async def decide(self, about: str, choices: Sequence[str]) -> str:
        """Have one of these chosen, by its name, its first word, or the first letter of that."""
        words = [(choice, choice.split()[0], choice[0]) for choice in choices]
        shown = "   ".join(f"{choice[0]} {choice}" for choice in choices)
        text = f"{about}\n{shown}   and enter"
        answers = tuple(word for several in words for word in several)
        return (await self._ask(Question("", text, words=answers))).lower()

    async def choose(self, discovery: DiscoveredModels) -> str:
        """Have a model chosen, once: a runtime that is opened anew goes on with it."""
        if self._chosen in [offer.name for offer in discovery.options]:
            return self._chosen
        problem = ""
        while True:
            answer = await self._ask(Question("", problem + discovery.question))
            name = discovery.resolve_answer(answer)
            if name is not None:
                self._chosen = name
                return name
            problem = f"There is no number {answer}.\n"

    async def _ask(self, question: Question) -> str:
        self.open.append(question)
        self._on_change()
        try:
            return await question.answered()
        finally:
            self.open.remove(question)
            self._on_change()
