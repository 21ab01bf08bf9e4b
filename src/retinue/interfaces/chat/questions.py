"""Questions that agents wait for the user to answer: tool approvals, questions, choices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from retinue.domain.approval import ApprovalRequest, Refusal, Rule, Rules
from retinue.domain.discovered_models import DiscoveredModels
from retinue.interfaces.view.approvals import read_answer

MAX_HINTS = 3


class Question:
    """A question of the agent at `path` or, if `path` is empty, of the program.

    `request` is set if an agent asks for approval. With `choices`, only these are answers;
    otherwise any text is.
    """

    def __init__(
        self,
        path: str,
        text: str,
        *,
        request: ApprovalRequest | None = None,
        choices: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.text = text
        self.request = request
        self.choices = choices
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait(self) -> str:
        return await self._answer

    def accepts(self, text: str) -> bool:
        """Whether `text` is an answer to the question."""
        if self.request is not None:
            return read_answer(text, self.request) is not None
        return not self.choices or text.strip().lower() in self.choices

    def answer(self, text: str) -> None:
        if not self._answer.done():
            self._answer.set_result(text.strip())


class QuestionQueue:
    """Open questions, oldest first. The question of a cancelled agent is removed.

    `on_change` is called when a question is added or removed, `on_always` when the user allows a
    rule with "always".
    """

    def __init__(
        self, on_change: Callable[[], None], on_always: Callable[[Rule], None] = lambda _: None
    ) -> None:
        self.open: list[Question] = []
        self._on_change = on_change
        self._on_always = on_always
        self._granted = Rules()
        self._chosen_model = ""

    @property
    def first(self) -> Question | None:
        """The question on the screen: the only one that can be answered."""
        return self.open[0] if self.open else None

    async def approve(self, request: ApprovalRequest) -> bool | Rule | Refusal:
        if rule := request.covered_by(self._granted):
            return rule
        question = Question(request.path, request.arguments, request=request)
        answer = read_answer(await self._ask(question), request)
        if rule := request.covered_by(self._granted):  # The "always" of another question.
            return rule
        assert answer is not None, "the question accepts nothing else"
        if isinstance(answer, Rule):
            rules = request.rules if answer == request.rule else (answer,)
            self._granted = Rules(allow=(*self._granted.allow, *rules))
            for rule in rules[:MAX_HINTS]:
                self._on_always(rule)
            # Other agents may have asked for the same in the meantime.
            for other in self.open:
                if other.request is not None and other.request.covered_by(self._granted):
                    other.answer("yes")
        return answer

    async def ask(self, path: str, question: str) -> str:
        return await self._ask(Question(path, question)) or "(no answer)"

    async def choose(self, text: str, options: Sequence[str]) -> str:
        """Ask for one of the options, by its full text, its first word or its first letter."""
        labels = "   ".join(f"{option[0]} {option}" for option in options)
        choices = tuple(c for option in options for c in (option, option.split()[0], option[0]))
        question = Question("", f"{text}\n{labels}   then enter", choices=choices)
        return (await self._ask(question)).lower()

    async def choose_model(self, models: DiscoveredModels) -> str:
        """Ask for a model once. A reopened runtime gets the same answer."""
        if self._chosen_model in [offer.name for offer in models.options]:
            return self._chosen_model
        problem = ""
        while True:
            answer = await self._ask(Question("", problem + models.question))
            name = models.resolve_answer(answer)
            if name is not None:
                self._chosen_model = name
                return name
            problem = f"There is no number {answer}.\n"

    async def _ask(self, question: Question) -> str:
        self.open.append(question)
        self._on_change()
        try:
            return await question.wait()
        finally:
            self.open.remove(question)
            self._on_change()
