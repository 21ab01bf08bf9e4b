"""Reads the events of a response of the Responses API.

A response is a list of items: reasoning, messages and calls. Events of items may interleave. An
event names its item by id or by place in the list; some servers give only one of these, or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from retinue.domain.messages import Reply, Request, Thought, Thoughts, Usage
from retinue.errors import ModelError
from retinue.models.http.decoding import EventDecoder, decode_or_text, valid_token_count
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.http.reply import CallBuilder, OnText, ReplyReader
from retinue.models.responses.request import MESSAGE_SEPARATOR, MessageStart

# The events of a stream


class Part(msgspec.Struct, frozen=True, gc=False):
    text: str | None = None
    refusal: str | None = None


class OutputItem(msgspec.Struct, frozen=True, gc=False):
    type: str | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    phase: str | None = None
    content: list[Part] | None = None


class InputDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(msgspec.Struct, frozen=True, gc=False):
    reasoning_tokens: int | None = None


class UsageCount(msgspec.Struct, frozen=True, gc=False):
    """`input_tokens` includes the cached tokens, and `output_tokens` the reasoning tokens."""

    input_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None


class IncompleteDetails(msgspec.Struct, frozen=True, gc=False):
    reason: str | None = None


class ResponseState(msgspec.Struct, frozen=True, gc=False):
    """The response as a whole, at its end."""

    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: UsageCount | None = None
    incomplete_details: IncompleteDetails | None = None
    error: Any = None


class Event(ResponseState, frozen=True, gc=False):
    """An event of a stream; or a response that came as one document."""

    type: str | None = None
    item_id: str | None = None
    output_index: int | None = None
    delta: str | None = None
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    item: msgspec.Raw = msgspec.Raw()
    response: ResponseState | None = None


_ITEMS = EventDecoder(OutputItem)
_REASONING, _MESSAGE, _CALL = "reasoning", "message", "function_call"


class _Item:
    """An item as it is streamed. `pieces` is the text of a message or of reasoning."""

    def __init__(self, kind: str, item_id: str | None, place: int) -> None:
        self.kind = kind
        self.id = item_id
        self.place = place
        self.pieces: list[str] = []
        self.phase: str | None = None
        self.call: CallBuilder | None = None
        self.whole: msgspec.Raw | None = None
        """The finished item, as the server sent it; None while it is streamed."""


class ResponseReader(ReplyReader[Event]):
    decoder = EventDecoder(Event)
    length_reasons = frozenset({"max_output_tokens", "max_tokens", "length", "incomplete"})
    filter_reasons = frozenset({"content_filter"})
    failure_reasons = frozenset({"failed", "cancelled"})

    def __init__(
        self, errors: ErrorMapper, on_text: OnText | None = None, *, model_name: str = ""
    ) -> None:
        super().__init__(errors, on_text, model_name=model_name)
        self._items: list[_Item] = []
        self._by_id: dict[str, _Item] = {}
        self._by_index: dict[int, _Item] = {}
        # The message whose text came last.
        self._writing: _Item | None = None
        self._usage: UsageCount | None = None
        self._whole_error: ModelError | None = None

    def add(self, event: Event, data: bytes) -> ModelError | None:
        # Ordered by how often each type occurs. Events of unknown types are ignored.
        match event.type:
            case "response.output_text.delta":
                item, text = self._writing, event.delta
                if item is None or item.id != event.item_id or not text or not item.id:
                    self._write(self._find(_MESSAGE, event.item_id, event.output_index), text)
                    return None
                # Nearly every event comes here.
                item.pieces.append(text)
                self.text.append(text)
                self.has_news = True
            case "response.function_call_arguments.delta":
                call = self._find(_CALL, event.item_id, event.output_index).call
                if call is not None and event.delta:
                    call.arguments.append(event.delta)
                    self.has_news = True
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                item = self._find(_REASONING, event.item_id, event.output_index)
                if event.delta:
                    item.pieces.append(event.delta)
                    self.has_news = True
            case "response.output_item.added" | "response.output_item.done":
                self._add_item(event.item, event.output_index, finished=event.type.endswith("done"))
            case "response.refusal.delta":
                self.refusal += event.delta or ""
                item = self._find(_MESSAGE, event.item_id, event.output_index)
                self._write(item, event.delta)
            case "response.output_text.done" | "response.refusal.done":
                item = self._find(_MESSAGE, event.item_id, event.output_index)
                if not item.pieces:
                    self._write(item, event.text or event.refusal)
            case "response.function_call_arguments.done":
                call = self._find(_CALL, event.item_id, event.output_index).call
                if call is not None and not call.arguments and event.arguments:
                    call.arguments.append(event.arguments)
            case "response.completed" | "response.incomplete" | "response.failed":
                kind = event.type.rpartition(".")[2]
                return self._end(event.response or ResponseState(status=kind), kind)
            case "response.created" | "response.in_progress":
                # These events repeat the request, so their size does not count as reply.
                self._event_bytes -= len(data)
            case "error":
                return self._errors.from_error_value(event.error or decode_or_text(data))
            case None if event.error:
                return self._errors.from_error_value(event.error)
        return None

    def add_whole(self, event: Event) -> bool:
        if event.status is None or event.output is None:
            return False
        self._whole_error = self._end(event, event.status)
        return True

    def problem(self) -> ModelError | None:
        return self._whole_error or super().problem()

    # Items

    def _find(self, kind: str, item_id: str | None, index: int | None) -> _Item:
        """The item of an event: by id, by place, or the last one of its kind."""
        item = self._by_id.get(item_id) if item_id else None
        if item is None and index is not None:
            item = self._by_index.get(index)
        if item is None and not item_id and index is None:
            item = self._open_item(kind)
        if item is not None and item.kind == kind:
            return item
        return self._start(kind, item_id, index)

    def _open_item(self, kind: str) -> _Item | None:
        """The last item of its kind that is not finished, for events with neither id nor place."""
        open_items = (one for one in reversed(self._items) if one.kind == kind)
        return next((one for one in open_items if one.whole is None), None)

    def _start(self, kind: str, item_id: str | None, index: int | None) -> _Item:
        item = _Item(kind, item_id, len(self._items) if index is None else index)
        self._items.append(item)
        if item_id:
            self._by_id[item_id] = item
        if index is not None:
            self._by_index[index] = item
        if kind == _CALL:
            item.call = CallBuilder()
            self.calls.append(item.call)
        self.has_news = True
        return item

    def _add_item(self, raw: msgspec.Raw, index: int | None, *, finished: bool) -> None:
        given = _ITEMS.decode(bytes(raw)) or OutputItem()
        kind = given.type or ""
        item = self._by_id.get(given.id) if given.id else None
        if item is None and index is not None:
            item = self._by_index.get(index)
            # Servers that give every item the same place still give each an id.
            if item is not None and not finished and given.id and item.id:
                item = None
        if item is None and finished and not given.id and index is None:
            item = self._open_item(kind)
        if item is None or item.kind != kind:
            item = self._start(kind, given.id, index)
        elif given.id and not item.id:
            item.id = given.id
            self._by_id[given.id] = item
        if finished:
            item.whole = raw
        item.phase = given.phase or item.phase
        if item.call is not None:
            self._complete_call(item.call, given, finished=finished)
        elif kind == _MESSAGE and given.content:
            self._complete_message(item, given.content, finished=finished)

    def _complete_call(self, call: CallBuilder, given: OutputItem, *, finished: bool) -> None:
        call.id = given.call_id or call.id or given.id
        call.name = given.name or call.name
        if given.arguments:
            if finished:
                call.arguments = [given.arguments]
            else:
                call.initial = given.arguments

    def _complete_message(self, item: _Item, parts: list[Part], *, finished: bool) -> None:
        text = "".join(part.text or part.refusal or "" for part in parts)
        if not text:
            return
        if not item.pieces:
            self._write(item, text)
        elif finished:
            item.pieces = [text]
        refusals = [part.refusal for part in parts if part.refusal]
        self.refusal = self.refusal or "".join(refusals)

    def _write(self, item: _Item, text: str | None) -> None:
        if not text:
            return
        if self._writing is not item:
            if self._writing is not None:
                self.text.append(MESSAGE_SEPARATOR)
            self._writing = item
        item.pieces.append(text)
        self.text.append(text)
        self.has_news = True

    # The end

    def _end(self, state: ResponseState, kind: str) -> ModelError | None:
        if state.usage is not None:
            self._usage = state.usage
        # Some servers do not stream every item, but list all of them at the end.
        if any(item.whole is None for item in self._items) or not self._items:
            self._by_index = self._by_index or dict(enumerate(self._items))
            for index, raw in enumerate(state.output or ()):
                item = self._by_index.get(index)
                if item is None or item.whole is None:
                    self._add_item(raw, index, finished=True)
        if state.error and kind != "completed":
            return self._errors.from_error_value(state.error)
        details = state.incomplete_details
        reason = details.reason if details is not None else None
        self.finish_reason = reason or kind
        self.done = True
        return None

    def reply(self, request: Request, body: bytes, started_at: float) -> Reply:
        """The reply with its items in the order of the response, not of their arrival."""
        limit, counted = request.max_output_tokens, self._usage
        if limit is not None and counted is not None and (counted.output_tokens or 0) >= limit:
            # llama.cpp reports a response that was cut off as completed.
            self.finish_reason = "max_output_tokens"
        self._items.sort(key=lambda item: item.place)
        self.calls = [item.call for item in self._items if item.call is not None]
        messages = ("".join(item.pieces) for item in self._items if item.kind == _MESSAGE)
        self.text = [MESSAGE_SEPARATOR.join(filter(None, messages))]
        return super().reply(request, body, started_at)

    def thoughts(self) -> Thoughts | None:
        """The reasoning items as they came, and where messages with a phase begin."""
        blocks: list[Thought] = []
        written = called = 0
        for item in self._items:
            if item.call is not None:
                called += 1
            elif item.kind == _REASONING and item.whole is not None:
                block = bytes(item.whole).decode("utf-8", "replace")
                blocks.append(Thought(block, written, called))
            elif item.kind == _MESSAGE and item.pieces:
                if item.phase or written or called:
                    written += len(MESSAGE_SEPARATOR) if written else 0
                    block = msgspec.json.encode(MessageStart(item.phase)).decode()
                    blocks.append(Thought(block, written, called))
                written += sum(map(len, item.pieces))
        return Thoughts(self._model_name, tuple(blocks)) if blocks else None

    def thinking(self) -> Iterable[str]:
        return (piece for item in self._items if item.kind == _REASONING for piece in item.pieces)

    def usage(self) -> Usage | None:
        usage = self._usage
        if usage is None:
            return None
        tokens_in = valid_token_count(usage.input_tokens)
        tokens_out = valid_token_count(usage.output_tokens)
        if not tokens_in and not tokens_out:
            return None
        read = usage.input_tokens_details or InputDetails()
        made = usage.output_tokens_details or OutputDetails()
        cached = min(valid_token_count(read.cached_tokens), tokens_in)
        return Usage(
            tokens_in,
            cached,
            tokens_out,
            tokens_written=min(valid_token_count(read.cache_write_tokens), tokens_in - cached),
            tokens_reasoning=min(valid_token_count(made.reasoning_tokens), tokens_out),
        )
