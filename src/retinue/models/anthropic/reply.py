"""A reply of the Messages API in the making: events go in, the finished reply comes out."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Reply,
    Request,
    Thought,
    Thoughts,
    Timing,
    ToolCall,
    Usage,
    estimate_tokens,
)
from retinue.models.anthropic.events import Delta, Event, UsageCount, decode_block
from retinue.models.http.call_ids import made_up_ids
from retinue.models.http.wire import tokens_of

_CUT_OFF = frozenset({"max_tokens", "model_context_window_exceeded"})
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})


class _CallDraft:
    __slots__ = ("given", "id", "name", "pieces")

    def __init__(self, call_id: str, name: str, given: str) -> None:
        self.id = call_id
        self.name = name
        self.given = given
        self.pieces: list[str] = []

    @property
    def arguments(self) -> str:
        """What was streamed, or else what was there from the beginning."""
        return "".join(self.pieces) or self.given


class _ThoughtDraft:
    """Everything of the block is kept as it came; what is streamed is added to it."""

    __slots__ = ("after_calls", "after_text", "block", "signature", "thinking")

    def __init__(self, block: msgspec.Raw, after_text: int, after_calls: int) -> None:
        self.block = block
        self.after_text = after_text
        self.after_calls = after_calls
        self.thinking: list[str] = []
        self.signature: list[str] = []

    def finished(self) -> Thought | None:
        text = bytes(self.block).decode("utf-8", "replace")
        if self.thinking or self.signature:
            fields = msgspec.json.decode(text)
            for name, pieces in (("thinking", self.thinking), ("signature", self.signature)):
                begun = fields.get(name)
                fields[name] = "".join((begun if isinstance(begun, str) else "", *pieces))
            try:
                text = msgspec.json.encode(fields).decode()
            except UnicodeEncodeError:
                return None  # Halves of surrogate pairs: nobody would take it back.
        return Thought(text, self.after_text, self.after_calls)


class MessageDraft:
    """Collects one reply of the model that is called `name`.

    `stop_reason` is the server's word, or None as long as it has not said one.
    """

    __slots__ = (
        "_apart",
        "_calls",
        "_name",
        "_on_text",
        "_open",
        "_said",
        "_text",
        "_thoughts",
        "_usage",
        "first_token_at",
        "refusal",
        "stop_reason",
    )

    def __init__(self, on_text: Callable[[str], None] | None = None, *, name: str = "") -> None:
        self._name = name
        self._on_text = on_text
        self._text: list[str] = []
        self._said = 0
        self._calls: list[_CallDraft] = []
        self._thoughts: list[_ThoughtDraft] = []
        # The blocks that are being streamed, by their place; None for a kind that nobody knows.
        self._open: dict[int, _CallDraft | _ThoughtDraft | None] = {}
        # Whether another block stands behind the last text.
        self._apart = False
        self._usage: dict[str, int] = {}
        self.stop_reason: str | None = None
        self.refusal = ""
        self.first_token_at: float | None = None

    @property
    def empty(self) -> bool:
        return not self._text and not self._calls

    def add(self, event: Event) -> None:
        # Ordered by how often each occurs. What is of no known type is nothing to us.
        match event.type:
            case "content_block_delta":
                if event.delta is not None:
                    self._go_on(event.index or 0, event.delta)
            case "content_block_start":
                self._begin(event.index or 0, event.content_block)
            case "message_start":
                if event.message is not None:
                    self._count(event.message.usage)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None:
                    self._stop(event.delta.stop_reason, event.delta.stop_details)
            case "message":
                for index, block in enumerate(event.content or ()):
                    self._begin(index, block)
                self._count(event.usage)
                self._stop(event.stop_reason, event.stop_details)

    def _begin(self, index: int, raw: msgspec.Raw) -> None:
        block = decode_block(raw)
        if block.type == "text":
            if self._text and self._apart:
                self._say("\n\n")
            self._apart = False
            self._say(block.text or "")
            return
        self._apart = True
        if block.type == "tool_use":
            given = bytes(block.input).decode("utf-8", "replace")
            call = _CallDraft(block.id or "", block.name or "", given)
            self._calls.append(call)
            self._open[index] = call
            self._seen()
        elif block.type in _THOUGHTS:
            thought = _ThoughtDraft(raw, self._said, len(self._calls))
            self._thoughts.append(thought)
            self._open[index] = thought
            self._think()
        else:
            self._open[index] = None

    def _go_on(self, index: int, delta: Delta) -> None:
        if delta.text:
            # Of a kind that nobody knows, the text may mean anything.
            if self._open.get(index, self) is not None:
                self._say(delta.text)
            return
        part = self._open.get(index)
        if isinstance(part, _CallDraft):
            if delta.partial_json:
                part.pieces.append(delta.partial_json)
                self._seen()
        elif isinstance(part, _ThoughtDraft):
            if delta.thinking:
                part.thinking.append(delta.thinking)
                self._think()
            if delta.signature:
                part.signature.append(delta.signature)

    def _say(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._said += len(text)
            if self._on_text is not None:
                self._on_text(text)
            self._seen()

    def _think(self) -> None:
        if self._on_text is not None:
            self._on_text("")  # No text, but a sign of life.
        self._seen()

    def _seen(self) -> None:
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()

    def _stop(self, reason: str | None, details: object) -> None:
        if reason:
            self.stop_reason = reason
        if isinstance(details, dict) and isinstance(details.get("explanation"), str):
            self.refusal = details["explanation"]

    def _count(self, usage: UsageCount | None) -> None:
        # Counts are of the whole so far, and those that have not changed may be left out.
        if usage is not None:
            counts = msgspec.structs.asdict(usage).items()
            self._usage |= {name: tokens_of(count) for name, count in counts if count is not None}

    def reply(self, request: Request, body: bytes, started_at: float) -> Reply:
        """The finished reply. `body` is what was sent, for servers that do not count tokens."""
        ended_at = time.perf_counter()
        first_at = self.first_token_at or ended_at
        calls = self._finished_calls(request) if self._calls else ()
        finish = Finish.TOOLS if calls else Finish.STOP
        return Reply(
            message=AssistantMessage("".join(self._text), calls, self._kept() if calls else None),
            usage=self._used(body, calls),
            finish=Finish.LENGTH if self.stop_reason in _CUT_OFF else finish,
            timing=Timing(
                first_token_s=first_at - started_at,
                generating_s=ended_at - first_at,
            ),
        )

    def _finished_calls(self, request: Request) -> tuple[ToolCall, ...]:
        taken: set[str] = set()
        calls: list[ToolCall] = []
        made_up = made_up_ids((draft.id for draft in self._calls), request.messages)
        for draft in self._calls:
            call_id = draft.id if draft.id and draft.id not in taken else next(made_up)
            taken.add(call_id)
            calls.append(ToolCall(call_id, draft.name, draft.arguments))
        return tuple(calls)

    def _kept(self) -> Thoughts | None:
        """What it thought before its calls. A reply that ends has no more use for it."""
        thoughts = tuple(
            thought for draft in self._thoughts if (thought := draft.finished()) is not None
        )
        return Thoughts(self._name, thoughts) if thoughts else None

    def _used(self, body: bytes, calls: tuple[ToolCall, ...]) -> Usage:
        if not self._usage.get("input_tokens") and not self._usage.get("output_tokens"):
            thinking = (piece for draft in self._thoughts for piece in draft.thinking)
            written = "".join((*self._text, *thinking, *(c.name + c.arguments for c in calls)))
            return Usage(estimate_tokens(body), 0, estimate_tokens(written), estimated=True)
        read = self._usage.get("cache_read_input_tokens", 0)
        stored = self._usage.get("cache_creation_input_tokens", 0)
        return Usage(
            self._usage.get("input_tokens", 0) + read + stored,
            read,
            self._usage.get("output_tokens", 0),
            tokens_written=stored,
        )
