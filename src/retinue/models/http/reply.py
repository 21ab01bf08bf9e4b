"""Reads a response: the events of a stream go in, the finished reply comes out.

A dialect subclasses `ReplyReader`. It says how an event is decoded and what the event adds to the
reply; everything else is the same for all dialects and is done here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Reply,
    Request,
    Thoughts,
    Timing,
    ToolCall,
    Usage,
    estimate_tokens,
    generate_call_ids,
    images_of,
)
from retinue.errors import ModelError
from retinue.models.http.decoding import EventDecoder, decode_or_text
from retinue.models.http.error_mapping import ErrorMapper

OnText = Callable[[str], None]

E = TypeVar("E", bound=msgspec.Struct)

_DONE = b" [DONE]"  # How nearly every server writes it; other ways cost an exception.

DEFAULT_MAX_OUTPUT_TOKENS = 131_072
"""The limit for a request that sets none; no model writes more."""
# A token has four bytes on average, and no text has eight bytes per token over a whole reply.
_MAX_BYTES_PER_TOKEN = 8
# A server that sends more events than it may send tokens, with at least this much in them on
# average, ignores the limit. A few events hold no token.
_MIN_BYTES_PER_EVENT = 3
_OTHER_EVENTS = 16
# A token and the JSON around it, for replies that have some tokens.
_MAX_EVENT_BYTES = 512
_SOME_TOKENS = 256
_BYTES_PER_CALL = 64


class CallBuilder:
    """A tool call as it is streamed. `initial` are arguments that came with its beginning."""

    def __init__(self, call_id: str | None = None, name: str = "", initial: str = "") -> None:
        self.id = call_id
        self.name = name
        self.initial = initial
        self.extra: Any = None
        """Other data that the provider sent with the call, and that must be sent back."""
        self.arguments: list[str] = []


class ReplyReader(ABC, Generic[E]):
    """Builds one reply of the model that is called `model_name`.

    Errors are returned and not raised, so that no traceback holds the request and with it the key.
    """

    decoder: ClassVar[EventDecoder[Any]]  # of E
    # Meaning of the words by which servers say why a reply ended; other words mean a normal end.
    length_reasons: ClassVar[frozenset[str]] = frozenset()
    filter_reasons: ClassVar[frozenset[str]] = frozenset()
    failure_reasons: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self, errors: ErrorMapper, on_text: OnText | None = None, *, model_name: str = ""
    ) -> None:
        self._errors = errors
        self._on_text = on_text
        self._model_name = model_name
        self._reported = 0
        self.text: list[str] = []
        self.calls: list[CallBuilder] = []
        self.has_news = False
        """Whether the events since the last report held a token: text, thinking or a call."""
        self.finish_reason: str | None = None
        self.refusal = ""
        self.first_token_at: float | None = None
        self.done = False
        """Whether the server has said that nothing follows; the rest is not read."""
        self.was_cut = False
        """Whether the reader cut the reply, because it is longer than the request allows."""
        self._events = self._event_bytes = 0
        self.limit_output(None)

    def limit_output(self, tokens: int | None) -> None:
        """Cut a reply that is longer than `tokens`: some servers ignore the limit."""
        self._max_tokens = DEFAULT_MAX_OUTPUT_TOKENS if tokens is None else tokens
        # An event is never shorter than what it adds to the reply, so nothing has to be measured
        # before so many bytes have come.
        self._measure_at = _MIN_BYTES_PER_EVENT * self._max_tokens

    # Methods that a dialect implements

    @abstractmethod
    def add(self, event: E, data: bytes) -> ModelError | None:
        """Add an event of the stream, which was decoded from `data`; or return its error."""

    @abstractmethod
    def add_whole(self, event: E) -> bool:
        """Add a reply that came as one document. False if the document is no reply."""

    @abstractmethod
    def usage(self) -> Usage | None:
        """Usage as the server has counted it; None if it has counted nothing."""

    @abstractmethod
    def thoughts(self) -> Thoughts | None:
        """Data of this reply that must be sent back to the provider: thinking, signatures."""

    @abstractmethod
    def thinking(self) -> Iterable[str]:
        """The pieces of thinking that can be read."""

    @property
    def ended(self) -> bool:
        """Whether the reply is whole, even if the connection breaks now."""
        return self.done or self.finish_reason is not None

    # Reading

    @property
    def empty(self) -> bool:
        return not self.text and not self.calls

    def feed(self, events: list[bytes]) -> ModelError | None:
        error = self._add_all(events)
        if self.has_news:
            self._report()
        else:
            self.report_life()
        self._events += len(events)
        self._event_bytes += sum(map(len, events))
        if self._event_bytes > self._measure_at and not self.done:
            self._cut_if_overlong()
        return error

    def _cut_if_overlong(self) -> None:
        """End a reply that is longer than the request allows."""
        most, size = self._max_tokens, self._output_size()
        least = _MIN_BYTES_PER_EVENT * most
        if (
            size > _MAX_BYTES_PER_TOKEN * most
            or (size > least and self._events > most + _OTHER_EVENTS)
            or self._event_bytes > _MAX_EVENT_BYTES * (most + _SOME_TOKENS)
        ):
            self.was_cut = self.done = True
        # Not at every event: measuring takes time. The step is small against the limit.
        self._measure_at = self._event_bytes + max(least - size, most // 8)

    def _output_size(self) -> int:
        """The characters that the model has written: as many bytes, or fewer than bytes."""
        return sum(map(len, self._output())) + _BYTES_PER_CALL * len(self.calls)

    def _output(self) -> Iterator[str]:
        """Everything that the model has written, in pieces."""
        yield from self.text
        yield from self.thinking()
        for call in self.calls:
            yield call.name
            yield call.initial
            yield from call.arguments

    def received_tokens(self) -> int:
        """Estimate how much the model has written of a reply that broke off."""
        written = "".join(self._output()).encode("utf-8", "replace")
        return -(-(len(written) + _BYTES_PER_CALL * len(self.calls)) // 4)

    def _add_all(self, events: list[bytes]) -> ModelError | None:
        decode, add = self.decoder.strict, self.add
        for data in events:
            if self.done or data == _DONE:
                self.done = True
                return None
            try:
                event = decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                text = data.strip()
                if text == b"[DONE]":
                    self.done = True
                if self.done or not text:
                    continue
                lenient = self.decoder.lenient(data)
                if lenient is None:
                    return self._errors.invalid_json(data)
                event = lenient
            error = add(event, data)
            if error is not None:
                return error
        return None

    def feed_whole(self, body: bytes) -> ModelError | None:
        """Read a response that came as one JSON document instead of a stream."""
        event = self.decoder.decode(body)
        if event is None:
            return self._errors.invalid_json(body)
        if not self.add_whole(event):
            return self._errors.from_error_value(decode_or_text(body))
        if self.has_news:
            self._report()
        self.done = True
        return None

    def report_life(self) -> None:
        """Report that the server is alive, although no text has arrived.

        A callback that waits for the first token has a `report_life`, which is called instead.
        """
        report = getattr(self._on_text, "report_life", self._on_text)
        if report is not None:
            report("")

    def _report(self) -> None:
        """Report the text since the last time, in one piece however many events it came in.

        A model that thinks or writes a call has no text, but shows that it lives.
        """
        self.has_news = False
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()
        if self._on_text is not None:
            self._on_text("".join(self.text[self._reported :]))
            self._reported = len(self.text)

    def problem(self) -> ModelError | None:
        """Why a reply that has come to its end cannot be used; None if it can."""
        if self.was_cut:
            return None
        if self.finish_reason in self.filter_reasons:
            return self._errors.content_filtered(self.refusal)
        if self.finish_reason in self.failure_reasons:
            return self._errors.incomplete_reply()
        if self.finish_reason is None and self.ended and self.empty:
            return self._errors.empty_reply()
        return None

    # The result

    def reply(self, request: Request, body: bytes, started_at: float) -> Reply:
        """The finished reply. `body` is what was sent, for servers that do not count tokens."""
        ended_at = time.perf_counter()
        first_at = self.first_token_at or ended_at
        text = "".join(self.text)
        most = _MAX_BYTES_PER_TOKEN * self._max_tokens
        if len(text) > most:
            # Too much came at once.
            text, self.was_cut = text[:most], True
        calls = self._finished_calls(request) if self.calls else ()
        finish = Finish.TOOLS if calls else Finish.STOP
        cut = self.was_cut or self.finish_reason in self.length_reasons
        # Thinking without text or a call after it may be incomplete, and servers refuse it.
        kept = calls or (text and not cut)
        return Reply(
            message=AssistantMessage(text, calls, self.thoughts() if kept else None),
            usage=self.usage() or self._estimated_usage(request, body, text, calls),
            finish=Finish.LENGTH if cut else finish,
            timing=Timing(
                first_token_s=first_at - started_at,
                generating_s=ended_at - first_at,
            ),
        )

    def _finished_calls(self, request: Request) -> tuple[ToolCall, ...]:
        taken: set[str] = set()
        calls: list[ToolCall] = []
        new_ids = generate_call_ids((call.id for call in self.calls), request.messages)
        for call in self.calls:
            arguments = "".join(call.arguments) or call.initial
            if self.was_cut:
                arguments = arguments[: _MAX_BYTES_PER_TOKEN * self._max_tokens]
            if not call.name and not arguments:
                continue
            call_id = call.id if call.id and call.id not in taken else next(new_ids)
            taken.add(call_id)
            call.id = call_id
            calls.append(ToolCall(call_id, call.name, arguments))
        return tuple(calls)

    def _estimated_usage(
        self, request: Request, body: bytes, text: str, calls: tuple[ToolCall, ...]
    ) -> Usage:
        called = (call.name + call.arguments for call in calls)
        written = "".join((text, *self.thinking(), *called))
        prompt, images = estimate_tokens(body), images_of(request.messages)
        if images:
            size = sum(len(image.data) for image in images)
            # If the body is smaller, the images were left out.
            prompt -= size // 4 if size < len(body) else 0
            prompt += sum(image.tokens for image in images)
        return Usage(prompt, 0, estimate_tokens(written), estimated=True)
