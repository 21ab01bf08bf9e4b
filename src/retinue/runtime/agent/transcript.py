"""A conversation, put together again from the journal of its agent."""

from __future__ import annotations

from retinue.domain.events import (
    AgentTold,
    ContextCompacted,
    Fact,
    LimitReached,
    ModelReplied,
    ToolDenied,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from retinue.domain.messages import AssistantMessage, ToolCall, UserMessage
from retinue.runtime.agent.conversation import LAST_TURN, SUMMING_UP, Answered, Conversation
from retinue.runtime.agent.tool_calls import INTERRUPTED

NOT_RUN = "[ERROR] interrupted before it was run"


class Transcript:
    """Adds what was said to a conversation, fact by fact, and knows where that has come to.

    Without `exact` it is for whoever goes on with the conversation under another budget: words
    about the old one, and replies without any words, are left out.
    """

    def __init__(self, talk: Conversation, *, exact: bool = False) -> None:
        self.talk = talk
        self._exact = exact
        self.turns = 0
        """How often the model was asked, and has answered or not."""
        self.replied: ModelReplied | None = None
        """The last reply, as long as nothing was said after it; calls of it may be unanswered."""
        self.answers: dict[str, Answered] = {}
        self.begun: set[str] = set()
        """The calls of that reply that were begun, and those that were answered."""
        self.limit: str | None = None
        self.told: list[str] = []
        """Who has said something to it, in order."""
        self.exhausted = False
        self.summed_up: str | None = None
        """What the conversation has last been replaced by."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return () if self.replied is None else self.replied.calls

    def apply(self, fact: Fact) -> None:
        match fact:
            case TurnStarted():
                self.go_on()
                self.turns += 1
            case ModelReplied(content=content, calls=calls, thoughts=thoughts, usage=usage):
                self.replied = fact
                if self._exact or content.strip() or calls:
                    self.talk.add(AssistantMessage(content, calls, thoughts))
                if self._exact and not usage.estimated:
                    self.talk.counted(usage.tokens)
            case ToolStarted(call_id=call_id):
                self.begun.add(call_id)
            case ToolFinished() | ToolDenied():
                note = fact.note if self._exact else ""
                answer = Answered(fact.call_id, fact.content, fact.failed, note)
                self.answers[fact.call_id] = answer
                self.exhausted |= isinstance(fact, ToolDenied) and not fact.counted
            case AgentTold(content=content, source=source):
                self.go_on()
                self.talk.add(UserMessage(content))
                self.told.append(source)
            case LimitReached(limit=limit):
                self.go_on()
                self.limit = limit
                if self._exact:
                    self.talk.add(UserMessage(LAST_TURN.format(limit=limit)))
            case ContextCompacted(longest=int(longest)):
                self.go_on(longest)
            case ContextCompacted(masked=masked, dropped=dropped, content=content):
                self.go_on()
                if dropped:
                    self.summed_up = content
                    self.talk.summed_up(content)
                else:
                    self.talk.mask_oldest(masked)

    @property
    def summary(self) -> str | None:
        """What the model has written down of a conversation that is not yet replaced by it."""
        if self.replied is None or self.told[-1:] != [SUMMING_UP]:
            return None
        return self.replied.content

    @property
    def answered(self) -> list[Answered]:
        """The answers to the last calls, in the order of the calls."""
        answers = []
        for call in self.calls:
            answer = self.answers.get(call.id)
            if answer is None:
                text = INTERRUPTED if call.id in self.begun else NOT_RUN
                answer = Answered(call.id, text, True)
            answers.append(answer)
        return answers

    def go_on(self, longest: int | None = None) -> None:
        """Put the answers to the last calls in, none of them over `longest` bytes."""
        self.talk.answer(self.answered, longest)
        self.replied = None
        self.answers.clear()
        self.begun.clear()
