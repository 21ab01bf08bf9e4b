"""What a model is told: how a conversation opens, and how it is kept inside its window.

Siblings share the bytes of the system message and of the tool schemas, so nothing that differs
between them (task, budget, ids) may stand before the first user message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from retinue.domain.contract import Contract
from retinue.domain.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolMessage,
    ToolSpec,
    UserMessage,
    estimate_tokens,
)
from retinue.domain.result import cap

MANNERS = "Be concise. End with a short summary of what you found or did."
LAST_TURN = "You have reached your limit ({limit}). No more tools: answer now with what you have."
DATA_WANTED = "Answer with one JSON value and nothing else. It must fit this schema: {schema}"
SUM_UP = (
    "The conversation is too long to go on. Write down what was asked, what you did and found (with"
    " paths and facts you will need) and what is left to do. No tools."
)
SUMMING_UP = "context"  # who tells an agent to sum up
SUMMED_UP = "The conversation so far was too long. This is what you wrote down about it:\n{summary}"
PER_MESSAGE_TOKENS = 16  # what a chat template puts around one message, generously
KEPT_ANSWERS = 2  # the newest tool answers are never masked, nor any that is not read yet
_NO_ROOM = "there is no room for more; ask for less at a time"
_CUT = "…"
_NO_ROOM_BYTES = 120  # what is said where something was cut takes no more
_LEAST_TOKENS = 10  # of an answer: how a child ended, and its name
_REPORTED = re.compile(r"\[(?:completed|ERROR|a\d+: [A-Z ]+)\]|\d of \d done: ")
_REPORT = re.compile(r'^(?:<report-[0-9a-f]+ from="(a\d+)">|\[(a\d+): (?:OK|ERROR)\])$', re.M)


def opening(contract: Contract, directory: str, *, because: str = "") -> tuple[Message, ...]:
    """The messages that an attempt begins with. `because` says why an earlier attempt ended."""
    execution, step = contract.execution, contract.step
    lines = [
        step.description,
        "",
        f"Directory: {directory}",
        f"Budget: {execution.max_tool_calls} tool calls, {execution.max_turns} turns.",
    ]
    if step.scope:
        lines.append(f"Keep to: {', '.join(step.scope)}")
    if step.success_criteria:
        lines += ["Done when:", *(f"- {item}" for item in step.success_criteria)]
    if contract.outputs.output_schema is not None:
        lines.append(DATA_WANTED.format(schema=contract.outputs.output_schema))
    if because:
        lines.append(f"An earlier attempt ended: {because}")
    if step.context:
        lines += ["", step.context]
    return (SystemMessage(f"{execution.instructions}\n{MANNERS}"), UserMessage("\n".join(lines)))


class Answered(msgspec.Struct, frozen=True, gc=False):
    """What a call was answered, and a line of ours beside that."""

    call_id: str
    content: str
    failed: bool = False
    note: str = ""


def room_for_news(contract: Contract) -> int:
    """The tokens that may come in between two turns. What is not read yet cannot be masked."""
    return contract.execution.max_context_tokens // 2


def longest_for(answers: Sequence[Answered], room_tokens: int) -> int | None:
    """The bytes that none of `answers` may exceed for all to have room; None if they have."""
    room = 4 * max(room_tokens, _LEAST_TOKENS * len(answers))
    chars = 0
    for answer in answers:
        chars += len(answer.content)
    if 4 * chars <= room:
        return None  # No character has more than four bytes: nothing need be encoded.
    sizes = sorted(len(answer.content.encode()) for answer in answers)
    if sum(sizes) <= room:
        return None
    for left, size in zip(range(len(sizes), 0, -1), sizes, strict=True):
        if size * left > room:
            return room // left
        room -= size
    raise AssertionError("or all would have room")


class Conversation:
    """The messages of one attempt, and what is known about their size in tokens.

    `ceiling` is a true upper bound for the next prompt, for reserving: what the server counted
    last time, plus one token a byte for all that is new (no tokenizer makes more). `estimate` is
    the likely size, for deciding when to mask.
    """

    def __init__(
        self,
        opening: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        before: Sequence[Message] = (),
    ) -> None:
        """`before` is what was said earlier in the session; it stands behind the system message."""
        self.messages: list[Message] = [*opening[:1], *before, *opening[1:]]
        self._opening = tuple(opening)
        self.goes_on = bool(before)
        """Whether it still holds what was said before its opening."""
        self._tools_bytes = sum(
            len(t.name) + len(t.description) + len(bytes(t.parameters)) + 64 for t in tools
        )
        self._count_anew()

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self._most_new += _most(message)

    def answer(self, answers: Sequence[Answered], longest: int | None = None) -> None:
        """Add the answers to the calls of a reply, those over `longest` bytes cut to that."""
        for one in answers:
            text = one.content if longest is None else _cut(one.content, longest)
            self.add(ToolMessage(one.call_id, text + one.note, one.failed))

    def counted(self, tokens: int) -> None:
        """The server says that all up to here, the newest reply included, is so many tokens."""
        self._counted = tokens
        self._most_new = 0

    @property
    def ceiling(self) -> int:
        return self._counted + self._most_new + PER_MESSAGE_TOKENS

    @property
    def estimate(self) -> int:
        return self._counted + self._most_new // 4

    @property
    def likely(self) -> int:
        """The estimate with a margin, for text that packs more tokens into its bytes than usual."""
        estimate = self.estimate
        return estimate + estimate // 4

    def room(self, window: int, count: int) -> int:
        """The tokens of a window that `count` more messages can have, old answers masked."""
        gains = (self._gain(i) for i in self._maskable())
        return window - self.estimate - PER_MESSAGE_TOKENS // 4 * count + sum(gains)

    def mask(self, max_tokens: int) -> int:
        """Shorten old tool answers until the estimate fits; answers how many were shortened.

        The originals stay in the journal.
        """
        excess, count = self.estimate - max_tokens, 0
        for i in self._maskable():
            if excess <= 0:
                break
            excess -= self._gain(i)
            count += 1
        self.mask_oldest(count)
        return count

    def mask_oldest(self, count: int) -> None:
        """Shorten that many old tool answers.

        What the server counted is no longer true afterwards, so counting starts again from bytes.
        """
        for i in self._maskable()[:count]:
            message = self.messages[i]
            self.messages[i] = msgspec.structs.replace(message, content=_mask(message.content))
        if count:
            self._count_anew()

    def _gain(self, i: int) -> int:
        text = self.messages[i].content
        return estimate_tokens(text) - estimate_tokens(_mask(text))

    def _maskable(self) -> list[int]:
        """Where the tool answers are that are old and long enough to be shortened."""
        answers = [i for i, m in enumerate(self.messages) if isinstance(m, ToolMessage)]
        replies = (i for i, m in enumerate(self.messages) if isinstance(m, AssistantMessage))
        last_reply = max(replies, default=0)
        texts = ((i, self.messages[i].content) for i in answers[:-KEPT_ANSWERS] if i < last_reply)
        return [i for i, text in texts if len(text) > len(_mask(text)) * 2]

    @property
    def can_be_summed_up(self) -> bool:
        return self.goes_on or len(self.messages) > len(self._opening) + 2

    def summed_up(self, summary: str) -> int:
        """Go on from the opening and a summary; answers how many messages that replaces."""
        dropped = len(self.messages) - len(self._opening)
        self.messages = [*self._opening, UserMessage(SUMMED_UP.format(summary=summary))]
        self.goes_on = False
        self._count_anew()
        return dropped

    def _count_anew(self) -> None:
        # The tokens that the server has counted, and the most that what is new can come to.
        self._counted = 0
        self._most_new = self._tools_bytes + sum(map(_most, self.messages))


def _cut(text: str, longest: int) -> str:
    if len(text.encode()) <= longest:
        return text
    if longest < 2 * _NO_ROOM_BYTES:
        return f"{cap(text, (longest - len(_CUT.encode())) // 4)[0]}{_CUT}"
    kept, _ = cap(text, (longest - _NO_ROOM_BYTES) // 4)
    return f"{kept}\n[cut after {len(kept):,} of {len(text):,} characters: {_NO_ROOM}]"


def _mask(text: str) -> str:
    again = "call the tool again if needed"
    if _REPORTED.match(text) and (found := _REPORT.findall(text)):
        # To call that one again would be to have the work done again.
        again = f"agent_result has the reports of {', '.join(a or b for a, b in found)}"
    return f"[masked: {estimate_tokens(text):,} tokens of an earlier result; {again}]"


def _most(message: Message) -> int:
    """The most tokens that a message can come to: one for each UTF-8 byte that a model reads."""
    size = len(message.content.encode()) + PER_MESSAGE_TOKENS
    if isinstance(message, AssistantMessage):
        for call in message.calls:
            size += len(call.name) + len(call.arguments.encode()) + 32
        if message.thoughts is not None:
            size += message.thoughts.size_bytes
    return size
