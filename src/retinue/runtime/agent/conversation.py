"""The messages of an attempt: the opening, and how the conversation is kept inside its window.

Siblings share the bytes of the system message and of the tool schemas, so nothing that differs
between them (task, budget, ids) may stand before the first user message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil

import msgspec

from retinue.domain.contract import Contract
from retinue.domain.framing import frame
from retinue.domain.images import Image
from retinue.domain.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
    estimate_tokens,
)
from retinue.domain.result import Check, cap

STYLE_RULES = "Be concise. End with a short summary of what you found or did."
LAST_TURN = "You have reached your limit ({limit}). No more tools: answer now with what you have."
SCHEMA_RULE = "Answer with one JSON value and nothing else. It must fit this schema: {schema}"
CORRECT = "Your work is not accepted: {problem}. Correct it.\n{output}"
SUMMARIZE = (
    "The conversation is too long to go on. Write down what was asked, what you did and found (with"
    " paths and facts you will need) and what is left to do. No tools."
)
SUMMARIZING = "context"  # source of the message that asks for a summary
CONTINUE = (
    "Your answer was cut off, because it was longer than one reply may be. Continue exactly where"
    " it stopped, without repeating anything."
)
CONTINUE_CALLS = (
    "Your reply was cut off, because it was longer than one reply may be. The calls before that are"
    " answered above. Make the missing ones now, and repeat none of the others."
)
SMALLER_CALLS = " A reply cannot be longer: write large contents in parts, with several calls."
CUT_CALLS = "length of calls"  # source of the message that asks for the missing calls
CONTINUED = "length"  # source of the message that asks the model to continue
CONDENSE = (
    "That is longer than the {tokens:,} tokens that are passed on. Write a version of at most"
    " {words:,} words, with every result, path and number that is needed. The long version is kept."
)
WRITE_AGAIN = "Your answer was cut off: it was too long for one reply. Write all of it again."
REWRITTEN = "length again"
SUMMARIZED = (
    "The conversation so far was too long. This is what you wrote down about it:\n{summary}"
)
INTERRUPTED = "[ERROR] interrupted; it may have been done"
PER_MESSAGE_TOKENS = 16  # what a chat template puts around one message, generously
LAST_TURN_TOKENS = 160  # an upper bound of the message that asks for the last answer
KEPT_ANSWERS = 2  # The newest tool answers are never masked, nor are unread ones.
_NO_ROOM_FOR_IMAGES = "[The images are left out: there is no room; ask for fewer at a time.]"
_NO_ROOM = "there is no room for more; ask for less at a time"
_CUT = "…"
_NO_ROOM_BYTES = 120  # the most that the note about a cut takes
_MIN_TOKENS_PER_BYTE = 0.125
_MIN_ANSWER_TOKENS = 10  # enough for the name of a child and how it ended
_REPORTED = re.compile(r"\[(?:completed|ERROR|a\d+: [A-Z ]+)\]|\d of \d done: ")
_REPORT = re.compile(r'^(?:<report-[0-9a-f]+ from="(a\d+)">|\[(a\d+): (?:OK|ERROR)\])$', re.M)


def opening(
    contract: Contract,
    directory: str,
    *,
    images: tuple[Image, ...] = (),
    because: str = "",
    since: str = "",
) -> tuple[Message, ...]:
    """The first messages of an attempt.

    `because` says why an earlier attempt ended, `since` what changed since the conversation that
    the agent continues.
    """
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
    if since:
        lines.append(since)
    if step.context:
        lines += ["", step.context]
    return (
        SystemMessage(f"{execution.instructions}\n{STYLE_RULES}"),
        UserMessage("\n".join(lines), images),
    )


def correction(check: Check, problem: str) -> Message:
    """The message about a check that has failed, with its output as data."""
    output = frame(check.output, kind="output", source=check.command)
    return UserMessage(CORRECT.format(problem=problem, output=output))


class CallAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a tool call; `note` is a line about the budget, never cut."""

    call_id: str
    content: str
    failed: bool = False
    note: str = ""
    images: tuple[Image, ...] = ()

    @property
    def size_bytes(self) -> int:
        size = len(self.content.encode())
        return size + _images_bytes(self.images) if self.images else size


def max_new_tokens(contract: Contract) -> int:
    """Tokens that may be added between two turns: unread messages cannot be masked."""
    return contract.execution.max_context_tokens // 2


def max_answer_bytes(answers: Sequence[CallAnswer], room_tokens: int) -> int | None:
    """Maximum bytes of each answer so that all fit into `room_tokens`; None if they fit uncut."""
    room = 4 * max(room_tokens, _MIN_ANSWER_TOKENS * len(answers))
    chars = 0
    for answer in answers:
        chars += len(answer.content)
        if answer.images:
            chars += _images_bytes(answer.images)
    if 4 * chars <= room:
        return None  # A character has at most four bytes, so they fit without counting bytes.
    sizes = sorted(answer.size_bytes for answer in answers)
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
    deciding when to mask. `new_ceiling` and `new_likely` are the same for the part of the prompt
    that no request has had yet.
    """

    def __init__(
        self,
        opening: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        earlier: Sequence[Message] = (),
    ) -> None:
        """`earlier` messages of the session come after the system message, and are not new."""
        self.messages: list[Message] = [*opening[:1], *earlier, *opening[1:]]
        self._opening = tuple(opening)
        self.has_earlier = bool(earlier)
        """Whether messages of earlier runs are still in the conversation."""
        self._tools_bytes = _size_of_tools(tools)
        self._tokens_per_byte = 1 / 4
        self._counted = self._max_new = self._bytes = 0
        self._unsent = self._tools_bytes + sum(map(_max_tokens, opening))
        self._sent_messages = 0
        self._counted_for: tuple[str, bool] | None = None
        """Model and tools of the request that the server counted; None if the count is outdated."""
        self._reset_count()

    def add(self, message: Message) -> None:
        size = _max_tokens(message)
        self.messages.append(message)
        self._max_new += size
        self._bytes += size
        self._unsent += size

    def answer(self, answers: Sequence[CallAnswer], longest: int | None = None) -> None:
        """Add the answers to the calls of a reply, each cut to `longest` bytes."""
        for one in answers:
            text, images = one.content, one.images
            if longest is not None:
                if images and one.size_bytes > longest:
                    text, images = f"{text}\n{_NO_ROOM_FOR_IMAGES}", ()
                text = _cut(text, longest)
            self.add(ToolMessage(one.call_id, text + one.note, one.failed, images))

    def add_reply(
        self, message: AssistantMessage, usage: Usage, *, model: str = "", tools: bool = True
    ) -> None:
        """Add the reply to a request with all messages so far, and with `tools` or without."""
        size = _max_tokens(message)
        if usage.estimated:
            self._max_new += size
            self._counted_for = None
        else:
            # In steps, so that a replay in a directory with another name makes the same requests.
            ratio = ceil(32 * usage.tokens_in / self.prompt_bytes(tools)) / 32
            self._tokens_per_byte = min(max(ratio, _MIN_TOKENS_PER_BYTE), 1.0)
            resent = usage.tokens_out
            if message.thoughts is None:
                # Thinking that is not sent back is in the server's count of the output.
                resent -= min(resent, usage.tokens_reasoning)
            if resent > size:
                resent = self._tokens(size)
            self._counted = usage.tokens_in + resent
            self._max_new = 0 if tools else self._tools_bytes
            self._counted_for = (model, tools)
        self.messages.append(message)
        self._bytes += size
        self._unsent = 0
        self._sent_messages = len(self.messages)

    def prompt_bytes(self, tools: bool) -> int:
        """Upper bound of the tokens of a prompt with all messages: one for each byte."""
        return self._bytes if tools else self._bytes - self._tools_bytes

    def repeated_tokens(self, usage: Usage, *, model: str, tools: bool) -> int:
        """The tokens of a prompt with all messages that an earlier request already contained.

        If nothing earlier has changed, the server's own count tells. Otherwise it is estimated.
        """
        if self._counted_for == (model, tools) and not usage.estimated:
            return min(self._counted, usage.tokens_in)
        size = self.prompt_bytes(tools)
        return usage.tokens_in * max(0, size - self._unsent) // size

    @property
    def tokens_per_byte(self) -> float:
        return self._tokens_per_byte

    @property
    def ceiling(self) -> int:
        return self._counted + self._max_new + PER_MESSAGE_TOKENS

    @property
    def uncounted_ceiling(self) -> int:
        """The part of `ceiling` that is no count of a server."""
        return self._max_new + PER_MESSAGE_TOKENS

    @property
    def new_ceiling(self) -> int:
        return self._unsent + PER_MESSAGE_TOKENS

    @property
    def estimate(self) -> int:
        return self._counted + int(self._max_new * self._tokens_per_byte)

    @property
    def likely(self) -> int:
        """The estimate with a margin, for text with more tokens per byte than usual."""
        # Every turn asks several times, so nothing is called here.
        estimate = self._counted + int(self._max_new * self._tokens_per_byte)
        return estimate + estimate // 4

    @property
    def new_likely(self) -> int:
        estimate = self._tokens(self._unsent)
        return estimate + estimate // 4

    def _tokens(self, size_bytes: int) -> int:
        return int(size_bytes * self._tokens_per_byte)

    def room(self, window: int, count: int) -> int:
        """Tokens of a window left for `count` more messages, once old answers are masked."""
        gains = (self._gain(i) for i in self._maskable())
        around = self._tokens(PER_MESSAGE_TOKENS * count)
        return window - self.estimate - around + sum(gains)

    def mask(self, max_tokens: int, *, unread: bool = False) -> int:
        """Shorten old tool answers until the estimate fits. Return how many were shortened.

        With `unread`, also the newest. The originals stay in the journal.
        """
        excess, count = self.estimate - max_tokens, 0
        for i in self._maskable(unread=unread):
            if excess <= 0:
                break
            excess -= self._gain(i)
            count += 1
        self.mask_oldest(count, unread=unread)
        return count

    def mask_oldest(self, count: int, *, unread: bool = False) -> None:
        """Shorten `count` old tool answers.

        The server's count is wrong afterwards, so counting starts again from bytes.
        """
        for i in self._maskable(unread=unread)[:count]:
            message = self.messages[i]
            masked = self.messages[i] = msgspec.structs.replace(
                message, content=_mask(message.content), images=()
            )
            if i >= self._sent_messages:
                self._unsent -= _max_tokens(message) - _max_tokens(masked)
        if count:
            self._reset_count()

    def _gain(self, i: int) -> int:
        message = self.messages[i]
        assert isinstance(message, ToolMessage)
        text = message.content
        freed = len(text.encode()) - len(_mask(text).encode())
        return self._tokens(freed + _images_bytes(message.images))

    def _maskable(self, *, unread: bool = False) -> list[int]:
        """Indices of tool answers that are long enough to be shortened, and old if not `unread`."""
        answers = [i for i, m in enumerate(self.messages) if isinstance(m, ToolMessage)]
        if not unread:
            replies = (i for i, m in enumerate(self.messages) if isinstance(m, AssistantMessage))
            last_reply = max(replies, default=0)
            answers = [i for i in answers[:-KEPT_ANSWERS] if i < last_reply]
        texts = ((i, self.messages[i].content) for i in answers)
        return [
            i
            for i, text in texts
            if len(text) > len(_mask(text)) * 2 or self.messages[i].images  # type: ignore[union-attr]
        ]

    @property
    def can_be_summarized(self) -> bool:
        return self.has_earlier or len(self.messages) > len(self._opening) + 2

    def replace_by_summary(self, summary: str) -> int:
        """Keep only the opening and a summary. Return how many messages that replaces."""
        dropped = len(self.messages) - len(self._opening)
        self.messages = list(self._opening)
        self.has_earlier = False
        self._sent_messages, self._unsent = len(self.messages), 0
        self._reset_count()
        self.add(UserMessage(SUMMARIZED.format(summary=summary)))
        return dropped

    def drop_tools(self) -> None:
        """Count prompts without tools from now on, since the last prompt has none."""
        size, self._tools_bytes = self._tools_bytes, 0
        if self._sent_messages == 0:
            self._unsent -= size
        counted = self._counted - self._tokens(size)
        self._reset_count()
        if counted > 0:
            self._counted, self._max_new = counted, self._unsent

    @property
    def has_turns(self) -> bool:
        return len(self.messages) > len(self._opening)

    @property
    def opening_tokens(self) -> int:
        return self._tokens(self._tools_bytes + sum(map(_max_tokens, self._opening)))

    def own_words(self, max_tokens: int) -> str:
        """The newest texts of the model, in their order, as far as they fit."""
        found: list[str] = []
        room = max_tokens * 4
        for message in reversed(self.messages[len(self._opening) :]):
            if isinstance(message, AssistantMessage) and (text := message.content.strip()):
                kept, _ = cap(text, room // 4)
                found.append(kept)
                room -= len(kept.encode())
                if room <= 0:
                    break
        return "\n\n".join(reversed(found))

    def _reset_count(self) -> None:
        self._counted = 0
        self._counted_for = None
        self._bytes = self._max_new = self._tools_bytes + sum(map(_max_tokens, self.messages))


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
    elif not isinstance(message, SystemMessage) and message.images:
        size += _images_bytes(message.images)
    return size


def _images_bytes(images: Sequence[Image]) -> int:
    return sum(image.text_bytes for image in images)
