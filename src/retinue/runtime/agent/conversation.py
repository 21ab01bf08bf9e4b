"""The messages of an attempt: the opening, and how the conversation is kept inside its window.

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

STYLE_RULES = "Be concise. End with a short summary of what you found or did."
LAST_TURN = "You have reached your limit ({limit}). No more tools: answer now with what you have."
SCHEMA_RULE = "Answer with one JSON value and nothing else. It must fit this schema: {schema}"
SUMMARIZE = (
    "The conversation is too long to go on. Write down what was asked, what you did and found (with"
    " paths and facts you will need) and what is left to do. No tools."
)
SUMMARIZING = "context"  # source of the message that asks for a summary
SUMMARIZED = (
    "The conversation so far was too long. This is what you wrote down about it:\n{summary}"
)
INTERRUPTED = "[ERROR] interrupted; it may have been done"
PER_MESSAGE_TOKENS = 16  # what a chat template puts around one message, generously
KEPT_ANSWERS = 2  # The newest tool answers are never masked, nor are unread ones.
_NO_ROOM = "there is no room for more; ask for less at a time"
_CUT = "…"
_NO_ROOM_BYTES = 120  # the most that the note about a cut takes
_MIN_ANSWER_TOKENS = 10  # enough for the name of a child and how it ended
_REPORTED = re.compile(r"\[(?:completed|ERROR|a\d+: [A-Z ]+)\]|\d of \d done: ")
_REPORT = re.compile(r'^(?:<report-[0-9a-f]+ from="(a\d+)">|\[(a\d+): (?:OK|ERROR)\])$', re.M)


def opening(contract: Contract, directory: str, *, because: str = "") -> tuple[Message, ...]:
    """The first messages of an attempt. `because` says why an earlier attempt ended."""
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
        lines.append(SCHEMA_RULE.format(schema=contract.outputs.output_schema))
    if because:
        lines.append(f"An earlier attempt ended: {because}")
    if step.context:
        lines += ["", step.context]
    return (
        SystemMessage(f"{execution.instructions}\n{STYLE_RULES}"),
        UserMessage("\n".join(lines)),
    )


class CallAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a tool call; `note` is a line about the budget, never cut."""

    call_id: str
    content: str
    failed: bool = False
    note: str = ""


def max_new_tokens(contract: Contract) -> int:
    """Tokens that may be added between two turns: unread messages cannot be masked."""
    return contract.execution.max_context_tokens // 2


def max_answer_bytes(answers: Sequence[CallAnswer], room_tokens: int) -> int | None:
    """Maximum bytes of each answer so that all fit into `room_tokens`; None if they fit uncut."""
    room = 4 * max(room_tokens, _MIN_ANSWER_TOKENS * len(answers))
    chars = 0
    for answer in answers:
        chars += len(answer.content)
    if 4 * chars <= room:
        return None  # A character has at most four bytes, so they fit without counting bytes.
    sizes = sorted(len(answer.content.encode()) for answer in answers)
    if sum(sizes) <= room:
        return None
    for left, size in zip(range(len(sizes), 0, -1), sizes, strict=True):
        if size * left > room:
            return room // left
        room -= size
    raise AssertionError("the answers do not all fit")


class Conversation:
    """The messages of one attempt, and their size in tokens.

    `ceiling` is an upper bound of the next prompt, for reserving: the server's last count plus one
    token per byte of what is new (no tokenizer makes more). `estimate` is the likely size, for
    deciding when to mask.
    """

    def __init__(
        self,
        opening: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        earlier: Sequence[Message] = (),
    ) -> None:
        """`earlier` messages of the session come after the system message."""
        self.messages: list[Message] = [*opening[:1], *earlier, *opening[1:]]
        self._opening = tuple(opening)
        self.has_earlier = bool(earlier)
        """Whether messages of earlier runs are still in the conversation."""
        self._tools_bytes = _size_of_tools(tools)
        self._reset_count()

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self._max_new += _max_tokens(message)

    def answer(self, answers: Sequence[CallAnswer], longest: int | None = None) -> None:
        """Add the answers to the calls of a reply, each cut to `longest` bytes."""
        for one in answers:
            text = one.content if longest is None else _cut(one.content, longest)
            self.add(ToolMessage(one.call_id, text + one.note, one.failed))

    def counted(self, tokens: int) -> None:
        """Note the server's count of all tokens so far, the newest reply included."""
        self._counted = tokens
        self._max_new = 0

    @property
    def ceiling(self) -> int:
        return self._counted + self._max_new + PER_MESSAGE_TOKENS

    @property
    def estimate(self) -> int:
        return self._counted + self._max_new // 4

    @property
    def likely(self) -> int:
        """The estimate with a margin, for text with more tokens per byte than usual."""
        estimate = self.estimate
        return estimate + estimate // 4

    def room(self, window: int, count: int) -> int:
        """Tokens of a window left for `count` more messages, once old answers are masked."""
        gains = (self._gain(i) for i in self._maskable())
        return window - self.estimate - PER_MESSAGE_TOKENS // 4 * count + sum(gains)

    def mask(self, max_tokens: int) -> int:
        """Shorten old tool answers until the estimate fits. Return how many were shortened.

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
        """Shorten `count` old tool answers.

        The server's count is wrong afterwards, so counting starts again from bytes.
        """
        for i in self._maskable()[:count]:
            message = self.messages[i]
            self.messages[i] = msgspec.structs.replace(message, content=_mask(message.content))
        if count:
            self._reset_count()

    def _gain(self, i: int) -> int:
        text = self.messages[i].content
        return estimate_tokens(text) - estimate_tokens(_mask(text))

    def _maskable(self) -> list[int]:
        """Indices of tool answers that are old and long enough to be shortened."""
        answers = [i for i, m in enumerate(self.messages) if isinstance(m, ToolMessage)]
        replies = (i for i, m in enumerate(self.messages) if isinstance(m, AssistantMessage))
        last_reply = max(replies, default=0)
        texts = ((i, self.messages[i].content) for i in answers[:-KEPT_ANSWERS] if i < last_reply)
        return [i for i, text in texts if len(text) > len(_mask(text)) * 2]

    @property
    def can_be_summarized(self) -> bool:
        return self.has_earlier or len(self.messages) > len(self._opening) + 2

    def replace_by_summary(self, summary: str) -> int:
        """Keep only the opening and a summary. Return how many messages that replaces."""
        dropped = len(self.messages) - len(self._opening)
        self.messages = [*self._opening, UserMessage(SUMMARIZED.format(summary=summary))]
        self.has_earlier = False
        self._reset_count()
        return dropped

    def _reset_count(self) -> None:
        self._counted = 0
        self._max_new = self._tools_bytes + sum(map(_max_tokens, self.messages))


_sized_tools: tuple[Sequence[ToolSpec], int] = ((), 0)


def _size_of_tools(tools: Sequence[ToolSpec]) -> int:
    """Upper bound of the tools' tokens. Siblings share one object, so the last size is kept."""
    global _sized_tools
    known, size = _sized_tools
    if known is not tools:
        size = sum(len(t.name) + len(t.description) + len(bytes(t.parameters)) + 64 for t in tools)
        _sized_tools = (tools, size)
    return size


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
        # Calling the tool again would do the work again.
        again = f"agent_result has the reports of {', '.join(a or b for a, b in found)}"
    return f"[masked: {estimate_tokens(text):,} tokens of an earlier result; {again}]"


def _max_tokens(message: Message) -> int:
    """Upper bound of a message's tokens: one for each UTF-8 byte."""
    size = len(message.content.encode()) + PER_MESSAGE_TOKENS
    if isinstance(message, AssistantMessage):
        for call in message.calls:
            size += len(call.name) + len(call.arguments.encode()) + 32
        if message.thoughts is not None:
            size += message.thoughts.size_bytes
    return size
