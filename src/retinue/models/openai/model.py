"""The chat-completions API, as OpenAI and nearly every local server speak it."""

from __future__ import annotations

import msgspec

from retinue.errors import ModelError
from retinue.models.http.abilities import Abilities, Form
from retinue.models.http.client import SpokenModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.exchange import Exchange, OnHead, decoded
from retinue.models.http.faults import Faults, complaint_of
from retinue.models.openai.chunks import Chunk, decode_chunk, decode_loosely
from retinue.models.openai.reply import Draft
from retinue.models.openai.request import REFUSABLE, BodyEncoder

_FORMS = (Form.SCHEMA, Form.OBJECT, Form.TOOL)
_OPENAI = "api.openai.com"
_DONE = b" [DONE]"  # as nearly everybody writes it; other ways cost an exception


class OpenAIModel(SpokenModel):
    def __init__(
        self, endpoint: Endpoint, *, name: str | None = None, on_head: OnHead | None = None
    ) -> None:
        name = name or f"openai:{endpoint.model}@{endpoint.address}"
        faults = Faults(endpoint)
        exchange = Exchange(endpoint, faults, path="/chat/completions", on_head=on_head)
        # vLLM, Ollama and llama.cpp take both, and then never let the model call a tool.
        both = exchange.host == _OPENAI
        super().__init__(
            name,
            exchange,
            Abilities(_FORMS, beside_tools=both, optional=REFUSABLE),
            BodyEncoder(endpoint.model, name=name),
            lambda on_text: _Completion(Draft(on_text, name=name), faults),
        )


class _Completion:
    """Reads one completion."""

    __slots__ = ("_faults", "done", "draft")

    def __init__(self, draft: Draft, faults: Faults) -> None:
        self.draft = draft
        self._faults = faults
        self.done = False

    @property
    def ended(self) -> bool:
        return self.done or self.draft.finish_reason is not None or self.draft.counted

    def take(self, events: list[bytes]) -> ModelError | None:
        fault = self._added(events)
        self.draft.tell()
        return fault

    def _added(self, events: list[bytes]) -> ModelError | None:
        for data in events:
            if self.done or data == _DONE:
                self.done = True
                return None
            try:
                chunk = decode_chunk(data)
            except msgspec.DecodeError:
                if data.strip() == b"[DONE]":
                    self.done = True
                if self.done or not data.strip():
                    continue
                loose = decode_loosely(data)
                if loose is None:
                    return self._faults.garbled(data)
                chunk = loose
            if chunk.error:
                return self._faults.complained(chunk.error)
            if chunk.choices is None and chunk.usage is None and (value := _unnamed(data)):
                return self._faults.complained(value)
            self.draft.add(chunk)
        return None

    def take_whole(self, body: bytes) -> ModelError | None:
        chunk: Chunk | None
        try:
            chunk = decode_chunk(body)
        except msgspec.DecodeError:
            chunk = decode_loosely(body)
        if chunk is None:
            return self._faults.garbled(body)
        if chunk.error:
            return self._faults.complained(chunk.error)
        if not chunk.choices:
            return self._faults.complained(decoded(body))
        self.draft.add(chunk)
        self.draft.tell()
        self.done = True
        return None

    def objection(self) -> ModelError | None:
        match self.draft.finish_reason:
            case "content_filter":
                return self._faults.filtered()
            case "error" | "abort" | "aborted" | "cancel" | "cancelled":
                return self._faults.broken_off()
            case None if self.ended and self.draft.empty:
                return self._faults.empty()
            case _:
                return None


def _unnamed(data: bytes) -> object:
    """An error without the word "error", such as {"detail": …} or {"code": 500, "message": …}."""
    value = decoded(data)
    return value if complaint_of(value).message else None
