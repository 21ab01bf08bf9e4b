"""Answers of another process, such as the web page, to questions of a run's agents.

A question is put to the person of this process, and can be answered from elsewhere as well. The
first answer counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from retinue.domain.approval import ApprovalRequest, Refusal, Rule, Rules
from retinue.domain.remote_commands import Command

T = TypeVar("T")
Answered = bool | Rule | Refusal


class RemoteAnswers:
    """The open questions of one run, and the rules that a person has allowed for all of it."""

    def __init__(self) -> None:
        self.granted = Rules()
        self._requests: dict[int, tuple[ApprovalRequest, asyncio.Future[Answered]]] = {}
        self._questions: dict[str, asyncio.Future[str]] = {}

    def grant(self, rules: Iterable[Rule]) -> None:
        """Remember an "always", which may answer requests of other agents."""
        self.granted = Rules(allow=(*self.granted.allow, *rules))
        for other, waiting in self._requests.values():
            if not waiting.done() and (rule := other.covered_by(self.granted)):
                waiting.set_result(rule)

    async def approval(
        self, number: int, request: ApprovalRequest, asking: Coroutine[Any, Any, Answered]
    ) -> Answered:
        """The answer to the request of event `number`. `asking` asks the person of this process."""
        elsewhere: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._requests[number] = (request, elsewhere)
        try:
            return await _first(asking, elsewhere)
        finally:
            del self._requests[number]

    async def answer(self, agent_id: str, asking: Coroutine[Any, Any, str]) -> str:
        """The answer to a question in words. `asking` asks the person of this process."""
        elsewhere: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._questions[agent_id] = elsewhere
        try:
            return await _first(asking, elsewhere)
        finally:
            self._questions.pop(agent_id, None)

    def accept(self, command: Command) -> bool:
        """Use an answer. False if the question is not open or the answer is not valid."""
        if not command.request:
            question = self._questions.get(command.agent_id)
            if question is None or question.done():
                return False
            question.set_result(command.text)
            return True
        request, elsewhere = self._requests.get(command.request, (None, None))
        if request is None or elsewhere is None or elsewhere.done():
            return False
        match command.answer:
            case "yes":
                elsewhere.set_result(True)
            case "always":
                elsewhere.set_result(request.rule)
                self.grant(request.rules)
            case "no":
                elsewhere.set_result(Refusal(command.text))
            case _:
                return False
        return True


async def _first(asking: Coroutine[Any, Any, T], elsewhere: asyncio.Future[T]) -> T:
    here = asyncio.ensure_future(asking)
    try:
        await asyncio.wait((here, elsewhere), return_when=asyncio.FIRST_COMPLETED)
        return here.result() if here.done() else elsewhere.result()
    finally:
        if not here.done():
            here.cancel()
            await asyncio.wait((here,))
