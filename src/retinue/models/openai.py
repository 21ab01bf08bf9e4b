"""The chat-completions API, as OpenAI and nearly every local server speak it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

import msgspec

from retinue.domain.messages import Reply, Request
from retinue.errors import ModelError
from retinue.models.abilities import Abilities, Form
from retinue.models.body import REFUSABLE, BodyEncoder
from retinue.models.chunks import decode_chunk
from retinue.models.draft import Draft
from retinue.models.endpoint import Endpoint
from retinue.models.exchange import Exchange, decoded
from retinue.models.faults import Faults

_FORMS = (Form.SCHEMA, Form.OBJECT, Form.TOOL)
_OPENAI = "api.openai.com"


class OpenAIModel:
    """One model at one endpoint. Any number of replies may be under way at once."""

    def __init__(self, endpoint: Endpoint, *, name: str | None = None) -> None:
        self._name = name or f"openai:{endpoint.model}@{endpoint.address}"
        self._bodies = BodyEncoder(endpoint.model, name=self._name)
        self._faults = Faults(endpoint)
        self._exchange = Exchange(endpoint, self._faults, path="/chat/completions")
        # vLLM, Ollama and llama.cpp take both, and then never let the model call a tool.
        both = self._exchange.host == _OPENAI
        self._abilities = Abilities(_FORMS, beside_tools=both, optional=REFUSABLE)

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"OpenAIModel({self._name!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._exchange.aclose()

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        return await self._abilities.answer(request, lambda form: self._ask(request, form, on_text))

    async def _ask(
        self, request: Request, form: Form, on_text: Callable[[str], None] | None
    ) -> Reply | ModelError:
        started_at = time.perf_counter()
        body = self._bodies.encode(request, form, self._abilities.without)
        draft = Draft(on_text, name=self._name)
        fault = await self._exchange.run(body, _Completion(draft, self._faults))
        if fault is None:
            return draft.reply(request, body, started_at)
        if not draft.empty:
            raise fault  # Some of it was heard already, so it cannot be asked otherwise.
        return fault


class _Completion:
    """Reads one completion into a draft."""

    __slots__ = ("_draft", "_faults", "done")

    def __init__(self, draft: Draft, faults: Faults) -> None:
        self._draft = draft
        self._faults = faults
        self.done = False

    @property
    def first_token_at(self) -> float | None:
        return self._draft.first_token_at

    @property
    def empty(self) -> bool:
        return self._draft.empty

    @property
    def ended(self) -> bool:
        return self.done or self._draft.finish_reason is not None or self._draft.counted

    def take(self, events: list[bytes]) -> ModelError | None:
        for data in events:
            if self.done:
                return None
            try:
                chunk = decode_chunk(data)
            except msgspec.DecodeError:
                if data.strip() == b"[DONE]":
                    self.done = True
                elif data.strip():
                    return self._faults.garbled(data)
                continue
            if chunk.error:
                return self._faults.complained(chunk.error)
            self._draft.add(chunk)
        return None

    def take_whole(self, body: bytes) -> ModelError | None:
        try:
            chunk = decode_chunk(body)
        except msgspec.DecodeError:
            return self._faults.garbled(body)
        if chunk.error:
            return self._faults.complained(chunk.error)
        if not chunk.choices:
            # Errors without the word "error": {"detail": …}, {"object": "error", "message": …}.
            return self._faults.complained(decoded(body))
        self._draft.add(chunk)
        self.done = True
        return None

    def objection(self) -> ModelError | None:
        match self._draft.finish_reason:
            case "content_filter":
                return self._faults.filtered()
            case "error":
                return self._faults.broken_off()
            case None if self.ended and self._draft.empty:
                return self._faults.empty()
            case _:
                return None
