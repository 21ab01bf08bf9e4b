"""Reads the events of a message of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from retinue.domain.messages import Thought, Thoughts, Usage
from retinue.errors import ModelError
from retinue.models.http.decoding import EventDecoder, decode_or_text, valid_token_count
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.http.reply import CallBuilder, OnText, ReplyReader

# The events of a stream


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a block, or news about the message as a whole."""

    type: str | None = None
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None
    stop_details: Any = None


class UsageCount(msgspec.Struct, frozen=True, gc=False):
    """`input_tokens` leaves out those that were read from the cache or written into it."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Block(msgspec.Struct, frozen=True, gc=False):
    type: str | None = None
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()


class MessageStart(msgspec.Struct, frozen=True, gc=False):
    """The message as it is when its stream begins."""

    usage: UsageCount | None = None


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event of a stream; or a whole message, whose `type` is `message`."""

    type: str | None = None
    index: int | None = None
    delta: Delta | None = None
    content_block: msgspec.Raw = msgspec.Raw()
    message: MessageStart | None = None
    usage: UsageCount | None = None
    error: Any = None
    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    stop_details: Any = None


_BLOCKS = EventDecoder(Block)
_THINKING_BLOCKS = frozenset({"thinking", "redacted_thinking"})


class _ThoughtBuilder:
    """Keeps everything of a thinking block as it came, and adds what is streamed to it."""

    def __init__(self, block: msgspec.Raw, after_text: int, after_calls: int) -> None:
        self.block = block
        self.after_text = after_text
        self.after_calls = after_calls
        self.thinking: list[str] = []
        self.signature: list[str] = []

    def build(self) -> Thought | None:
        text = bytes(self.block).decode("utf-8", "replace")
        if self.thinking or self.signature:
            fields = msgspec.json.decode(text)
            for name, pieces in (("thinking", self.thinking), ("signature", self.signature)):
                begun = fields.get(name)
                fields[name] = "".join((begun if isinstance(begun, str) else "", *pieces))
            try:
                text = msgspec.json.encode(fields).decode()
            except UnicodeEncodeError:
                return None  # Halves of surrogate pairs: the server would refuse it.
        return Thought(text, self.after_text, self.after_calls)


class MessageReplyReader(ReplyReader[Event]):
    decoder = EventDecoder(Event)
    length_reasons = frozenset({"max_tokens", "model_context_window_exceeded"})
    filter_reasons = frozenset({"refusal"})

    def __init__(
        self, errors: ErrorMapper, on_text: OnText | None = None, *, model_name: str = ""
    ) -> None:
        super().__init__(errors, on_text, model_name=model_name)
        self._chars = 0
        self._thoughts: list[_ThoughtBuilder] = []
        # The blocks that are being streamed, by index; None for a block of an unknown kind.
        self._open_blocks: dict[int, CallBuilder | _ThoughtBuilder | None] = {}
        # Whether another block follows the last text.
        self._text_ended = False
        self._counts: dict[str, int] = {}

    def add(self, event: Event, data: bytes) -> ModelError | None:
        if event.error or event.type == "error":
            return self._errors.from_error_value(event.error or decode_or_text(data))
        # Ordered by how often each type occurs. Events of unknown types are ignored.
        match event.type:
            case "content_block_delta":
                if event.delta is not None:
                    self._add_delta(event.index or 0, event.delta)
            case "content_block_start":
                self._start_block(event.index or 0, event.content_block)
            case "message_start":
                if event.message is not None:
                    self._count(event.message.usage)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None:
                    self._stop(event.delta.stop_reason, event.delta.stop_details)
            case "message":
                self.add_whole(event)
            case "message_stop":
                self.done = True
        return None

    def add_whole(self, event: Event) -> bool:
        if event.type != "message" or event.content is None:
            return False
        for index, block in enumerate(event.content):
            self._start_block(index, block)
        self._count(event.usage)
        self._stop(event.stop_reason, event.stop_details)
        return True

    def _start_block(self, index: int, raw: msgspec.Raw) -> None:
        block = _BLOCKS.decode(bytes(raw)) or Block()
        if block.type == "text":
            if self.text and self._text_ended:
                self._add_text("\n\n")
            self._text_ended = False
            self._open_blocks.pop(index, None)
            self._add_text(block.text or "")
            return
        self._text_ended = True
        if block.type == "tool_use":
            initial = bytes(block.input).decode("utf-8", "replace")
            call = CallBuilder(block.id, block.name or "", initial)
            self.calls.append(call)
            self._open_blocks[index] = call
            self.has_news = True
        elif block.type in _THINKING_BLOCKS:
            thought = _ThoughtBuilder(raw, self._chars, len(self.calls))
            self._thoughts.append(thought)
            self._open_blocks[index] = thought
            self.has_news = True
        else:
            self._open_blocks[index] = None

    def _add_delta(self, index: int, delta: Delta) -> None:
        if delta.text:
            # In a block of an unknown kind, the text may mean anything.
            if self._open_blocks.get(index, self) is not None:
                self._add_text(delta.text)
            return
        block = self._open_blocks.get(index)
        if isinstance(block, CallBuilder):
            if delta.partial_json:
                block.arguments.append(delta.partial_json)
                self.has_news = True
        elif isinstance(block, _ThoughtBuilder):
            if delta.thinking:
                block.thinking.append(delta.thinking)
                self.has_news = True
            if delta.signature:
                block.signature.append(delta.signature)

    def _add_text(self, text: str) -> None:
        if text:
            self.text.append(text)
            self._chars += len(text)
            self.has_news = True

    def _stop(self, reason: str | None, details: object) -> None:
        if reason:
            self.finish_reason = reason
        if isinstance(details, dict) and isinstance(details.get("explanation"), str):
            self.refusal = details["explanation"]

    def _count(self, usage: UsageCount | None) -> None:
        # Counts are totals so far, and those that have not changed may be left out.
        if usage is not None:
            for name, count in msgspec.structs.asdict(usage).items():
                if count is not None:
                    self._counts[name] = valid_token_count(count)

    def thoughts(self) -> Thoughts | None:
        built = tuple(
            thought for builder in self._thoughts if (thought := builder.build()) is not None
        )
        return Thoughts(self._model_name, built) if built else None

    def thinking(self) -> Iterable[str]:
        return (piece for builder in self._thoughts for piece in builder.thinking)

    def usage(self) -> Usage | None:
        tokens_in = self._counts.get("input_tokens", 0)
        tokens_out = self._counts.get("output_tokens", 0)
        if not tokens_in and not tokens_out:
            return None
        read = self._counts.get("cache_read_input_tokens", 0)
        written = self._counts.get("cache_creation_input_tokens", 0)
        return Usage(tokens_in + read + written, read, tokens_out, tokens_written=written)
