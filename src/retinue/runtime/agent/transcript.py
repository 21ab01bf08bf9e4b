"""`Transcript`: turns the recorded facts of an attempt back into its conversation.

The facts come from the fold of the journal (`domain.resume_point`), in which they are kept as they
are: which messages they become depends on who continues the conversation, and with what before it.
"""

from __future__ import annotations

from collections.abc import Iterable

from retinue.domain.agent_state import CONDENSING
from retinue.domain.events import (
    AttemptStarted,
    ContextCompacted,
    LimitReached,
    MessageReceived,
    ModelReplied,
    ToolDenied,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from retinue.domain.messages import AssistantMessage, ToolCall, UserMessage
from retinue.domain.resume_point import ConversationFact
from retinue.runtime.agent.conversation import (
    CONTINUED,
    INTERRUPTED,
    LAST_TURN,
    SUMMARIZING,
    CallAnswer,
    Conversation,
)

NOT_RUN = "[ERROR] interrupted before it was run"


def replay(
    facts: Iterable[ConversationFact], conversation: Conversation, *, exact: bool = False
) -> Transcript:
    """Add what `facts` tell to `conversation`; see `Transcript`."""
    transcript = Transcript(conversation, exact=exact)
    for fact in facts:
        transcript.apply(fact)
    return transcript


class Transcript:
    """A conversation that is being rebuilt, and where it has come to.

    With `exact`, the conversation has every byte that it had, as a resumed attempt needs. Without,
    words about the budget and replies without words are left out: the next run of a session has a
    budget of its own.
    """

    def __init__(self, conversation: Conversation, *, exact: bool = False) -> None:
        self.conversation = conversation
        self._exact = exact
        self.turns = 0
        """How often the model was asked, whether it replied or not."""
        self.last_reply: ModelReplied | None = None
        """The last reply, until the answers to its calls are in the conversation."""
        self.answers: dict[str, CallAnswer] = {}
        """Answers to calls of the last reply, by call id."""
        self.started_calls: set[str] = set()
        """Ids of calls of the last reply that were started."""
        self.limit: str | None = None
        self.sources: list[str] = []
        """Sources of the messages that reached the agent, in order."""
        self.calls_exhausted = False
        self.text = ""
        """Text of the last reply, with the parts of it before it was cut off."""
        self.uncondensed = ""
        """The answer that the model was asked to condense."""
        self.continues = False
        """Whether the model was asked to continue that text, and has not replied yet."""
        self._tools = True
        self.summary: str | None = None
        """The summary that last replaced the conversation."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return () if self.last_reply is None else self.last_reply.calls

    @property
    def last_source(self) -> str | None:
        return self.sources[-1] if self.sources else None

    def apply(self, fact: ConversationFact) -> None:
        match fact:
            case TurnStarted(retry=0, last=last, without_tools=without_tools):
                self.add_answers()
                self.turns += 1
                self._tools = not (last or without_tools)
            case ModelReplied(content=content, calls=calls, thoughts=thoughts):
                self.last_reply = fact
                message = AssistantMessage(content, calls, thoughts)
                if self._exact:
                    self.conversation.add_reply(
                        message, fact.usage, model=fact.model, tools=self._tools
                    )
                elif content.strip() or calls:
                    self.conversation.add(message)
                self.text = self.text + content if self.continues else content
                self.continues = False
            case AttemptStarted(opening=opening):
                self.add_answers()
                self.sources.clear()
                for added in opening:
                    self.conversation.add(added)
            case ToolStarted(call_id=call_id):
                self.started_calls.add(call_id)
            case ToolFinished() | ToolDenied():
                note = fact.note if self._exact else ""
                images = fact.images if isinstance(fact, ToolFinished) else ()
                answer = CallAnswer(fact.call_id, fact.content, fact.failed, note, images)
                self.answers[fact.call_id] = answer
                self.calls_exhausted |= isinstance(fact, ToolDenied) and not fact.counted
            case MessageReceived(content=content, source=source):
                self.add_answers()
                self.conversation.add(UserMessage(content))
                self.sources.append(source)
                if source == CONDENSING:
                    self.uncondensed = self.text
                self.continues = source == CONTINUED
            case LimitReached(limit=limit):
                self.add_answers()
                self.limit = limit
                if self._exact:
                    self.conversation.add(UserMessage(LAST_TURN.format(limit=limit)))
            case ContextCompacted(longest=int(longest)):
                self.add_answers(longest)
            case ContextCompacted(masked=masked, dropped=dropped, content=content, unread=unread):
                self.add_answers()
                if dropped:
                    self.summary = content
                    self.conversation.replace_by_summary(content)
                else:
                    self.conversation.mask_oldest(masked, unread=unread)

    @property
    def pending_summary(self) -> str | None:
        """A summary that the model has written, and that has not replaced the conversation yet."""
        if self.last_reply is None or self.last_source != SUMMARIZING:
            return None
        return self.last_reply.content

    @property
    def last_answers(self) -> list[CallAnswer]:
        """Answers to all calls of the last reply, in their order."""
        answers = []
        for call in self.calls:
            answer = self.answers.get(call.id)
            if answer is None:
                text = INTERRUPTED if call.id in self.started_calls else NOT_RUN
                answer = CallAnswer(call.id, text, True)
            answers.append(answer)
        return answers

    def add_answers(self, longest: int | None = None) -> None:
        """Add the answers to the last calls to the conversation, each cut to `longest` bytes."""
        self.conversation.answer(self.last_answers, longest)
        self.last_reply = None
        self.answers.clear()
        self.started_calls.clear()
