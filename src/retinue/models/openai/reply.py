"""A reply in the making: chunks go in, the finished reply comes out."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Reply,
    Request,
    Timing,
    ToolCall,
    Usage,
    estimate_tokens,
)
from retinue.models.http import thoughts as reasoning
from retinue.models.http.call_ids import made_up_ids
from retinue.models.http.wire import tokens_of
from retinue.models.openai.chunks import CallDelta, Chunk, Delta, Timings, UsageCount

_FINISHES = {
    "stop": Finish.STOP,
    "tool_calls": Finish.TOOLS,
    "function_call": Finish.TOOLS,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
}
_NO_USAGE, _NO_TIMINGS = UsageCount(), Timings()


class _CallDraft:
    __slots__ = ("arguments", "id", "name")

    def __init__(self, call_id: str | None) -> None:
        self.id = call_id
        self.name = ""
        self.arguments: list[str] = []


class Draft:
    """Collects one reply of the model that is called `name`.

    `finish_reason` is the server's word, or None as long as it has not said one.
    """

    __slots__ = (
        "_by_index",
        "_calls",
        "_name",
        "_on_text",
        "_text",
        "_thinking",
        "_thinks_as",
        "_timings",
        "_told",
        "_unheard",
        "_usage",
        "counted",
        "finish_reason",
        "first_token_at",
    )

    def __init__(self, on_text: Callable[[str], None] | None = None, *, name: str = "") -> None:
        self._name = name
        self._on_text = on_text
        self._text: list[str] = []
        self._told = 0
        self._unheard = False
        self._thinking: list[str] = []
        self._thinks_as = "reasoning_content"
        self._calls: list[_CallDraft] = []
        self._by_index: dict[int, _CallDraft] = {}
        self._usage: UsageCount | None = None
        self._timings: Timings | None = None
        self.counted = False
        """Whether the last that came was the usage alone, which is told at the end. Some tell it
        with every chunk as well, and that is none."""
        self.finish_reason: str | None = None
        self.first_token_at: float | None = None

    @property
    def empty(self) -> bool:
        return not self._text and not self._calls

    def add(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.timings is not None:
            self._timings = chunk.timings
        if not chunk.choices:
            self.counted |= chunk.usage is not None
            return
        self.counted = False
        choice = chunk.choices[0]
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason
        delta = choice.delta or choice.message
        if delta is None:
            return
        text = delta.content or delta.refusal
        if text:
            self._text.append(text)
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._add_call(call)
        elif not text and not (delta.reasoning_content or delta.reasoning):
            return
        self._unheard = True
        if delta.reasoning_content or delta.reasoning:
            self._think(delta)
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()

    def tell(self) -> None:
        """Say what has come since the last time, in one piece however many chunks it came in.

        A model that thinks, or calls, has no text to say, but shows that it lives.
        """
        if self._unheard:
            self._unheard = False
            if self._on_text is not None:
                self._on_text("".join(self._text[self._told :]))
                self._told = len(self._text)

    def _think(self, delta: Delta) -> None:
        # Some servers send it under both names.
        if delta.reasoning_content:
            self._thinking.append(delta.reasoning_content)
        elif delta.reasoning:
            self._thinking.append(delta.reasoning)
            self._thinks_as = "reasoning"

    def _add_call(self, delta: CallDelta) -> None:
        function = delta.function
        name = function.name if function is not None else None
        arguments = function.arguments if function is not None else None
        call = self._continued(delta, name)
        if call is None:
            call = _CallDraft(delta.id or None)
            self._calls.append(call)
        elif delta.id and call.id is None:
            call.id = delta.id
        if delta.index is not None:
            self._by_index[delta.index] = call
        # A server that repeats the id repeats the name too; others send the name in pieces.
        if name and not (name == call.name and (call.arguments or delta.id)):
            call.name += name
        if arguments:
            call.arguments.append(arguments)

    def _continued(self, delta: CallDelta, name: str | None) -> _CallDraft | None:
        """The call that this delta goes on with, or None if it begins one."""
        if delta.index is None:
            if delta.id:
                return next((call for call in self._calls if call.id == delta.id), None)
            return self._calls[-1] if self._calls and not name else None
        call = self._by_index.get(delta.index)
        if call is None or not name:
            return call
        # From here on: servers that give every call the index 0.
        if delta.id:
            return None if call.id and call.id != delta.id else call
        if call.arguments and _is_json("".join(call.arguments)):
            return None
        return call

    def reply(self, request: Request, body: bytes, started_at: float) -> Reply:
        """The finished reply. `body` is what was sent, for servers that do not count tokens."""
        ended_at = time.perf_counter()
        first_at = self.first_token_at or ended_at
        text = "".join(self._text)
        calls = self._finished_calls(request) if self._calls else ()
        thoughts = None
        if calls and self._thinking:
            thoughts = reasoning.kept(self._thinking, named=self._thinks_as, by=self._name)
        finish = _FINISHES.get(self.finish_reason or "stop", Finish.STOP)
        if finish is not Finish.LENGTH:
            finish = Finish.TOOLS if calls else Finish.STOP
        return Reply(
            message=AssistantMessage(text, calls, thoughts),
            usage=self._used(body, text, calls),
            finish=finish,
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
            if not draft.name and not draft.arguments:
                continue
            call_id = draft.id
            if call_id is None or call_id in taken:
                call_id = next(made_up)
            taken.add(call_id)
            calls.append(ToolCall(call_id, draft.name, "".join(draft.arguments)))
        return tuple(calls)

    def _used(self, body: bytes, text: str, calls: tuple[ToolCall, ...]) -> Usage:
        usage, timings = self._usage or _NO_USAGE, self._timings or _NO_TIMINGS
        cached = tokens_of(timings.cache_n)
        tokens_in = tokens_of(usage.prompt_tokens)
        tokens_out = tokens_of(usage.completion_tokens)
        if tokens_in or tokens_out:
            details = usage.prompt_tokens_details
            if details is not None and details.cached_tokens is not None:
                cached = tokens_of(details.cached_tokens)
            elif usage.prompt_cache_hit_tokens is not None:
                cached = tokens_of(usage.prompt_cache_hit_tokens)
        elif timings.prompt_n is not None:
            tokens_in = tokens_of(timings.prompt_n) + cached
            tokens_out = tokens_of(timings.predicted_n)
        else:
            written = "".join((text, *self._thinking, *(c.name + c.arguments for c in calls)))
            return Usage(estimate_tokens(body), 0, estimate_tokens(written), estimated=True)
        return Usage(tokens_in, min(cached, tokens_in), tokens_out)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True
