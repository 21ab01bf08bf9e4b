"""Anthropic's Messages API, which some local servers speak as well."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Self
from urllib.parse import urlsplit

import msgspec

from retinue.domain.messages import Reply, Request
from retinue.domain.thinking import Thinking
from retinue.errors import ModelError
from retinue.models.abilities import Abilities, Form
from retinue.models.anthropic_body import REFUSABLE, MessagesEncoder
from retinue.models.anthropic_draft import MessageDraft
from retinue.models.anthropic_events import decode_event
from retinue.models.endpoint import Endpoint
from retinue.models.exchange import Exchange, bearer, decoded
from retinue.models.faults import Faults

_FORMS = (Form.SCHEMA, Form.TOOL)
_ANTHROPIC = "api.anthropic.com"
_VERSION = {"anthropic-version": "2023-06-01"}
# Thinking between tool calls. A model that decides by itself when to think does so anyway.
_INTERLEAVED = {"anthropic-beta": "interleaved-thinking-2025-05-14"}


class AnthropicModel:
    """One model at one endpoint. Any number of replies may be under way at once."""

    def __init__(
        self, endpoint: Endpoint, *, name: str | None = None, thinking: Thinking | None = None
    ) -> None:
        thinking = thinking or Thinking()
        self._name = name or f"anthropic:{endpoint.model}{thinking}@{endpoint.address}"
        self._bodies = MessagesEncoder(endpoint.model, name=self._name, thinking=thinking)
        self._faults = Faults(endpoint, ending="")
        self._exchange = Exchange(
            endpoint,
            self._faults,
            path="/v1/messages",
            headers=_VERSION | (_INTERLEAVED if thinking.budget_tokens else {}),
            credentials=_credentials(endpoint),
        )
        # Not beside tools: held to a schema, models that think have answered instead of calling.
        self._abilities = Abilities(_FORMS, optional=REFUSABLE)

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"AnthropicModel({self._name!r})"

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
        draft = MessageDraft(on_text, name=self._name)
        fault = await self._exchange.run(body, _Message(draft, self._faults))
        if fault is None:
            return draft.reply(body, started_at)
        if not draft.empty:
            raise fault  # Some of it was heard already, so it cannot be asked otherwise.
        return fault


class _Message:
    """Reads one message into a draft."""

    __slots__ = ("_draft", "_faults", "done")

    def __init__(self, draft: MessageDraft, faults: Faults) -> None:
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
        return self.done or self._draft.stop_reason is not None

    def take(self, events: list[bytes]) -> ModelError | None:
        for data in events:
            if self.done:
                return None
            try:
                event = decode_event(data)
            except msgspec.DecodeError:
                # Gateways that translate from chat completions end as those do.
                if data.strip() == b"[DONE]":
                    self.done = True
                elif data.strip():
                    return self._faults.garbled(data)
                continue
            if event.error or event.type == "error":
                return self._faults.complained(event.error)
            self._draft.add(event)
            if event.type == "message_stop":
                self.done = True
        return None

    def take_whole(self, body: bytes) -> ModelError | None:
        try:
            event = decode_event(body)
        except msgspec.DecodeError:
            return self._faults.garbled(body)
        if event.type != "message" or event.content is None:
            return self._faults.complained(decoded(body))
        self._draft.add(event)
        self.done = True
        return None

    def objection(self) -> ModelError | None:
        match self._draft.stop_reason:
            case "refusal":
                return self._faults.filtered(self._draft.refusal)
            case None if self.done and self._draft.empty:
                return self._faults.empty()
            case _:
                return None


def _credentials(endpoint: Endpoint) -> Callable[[str], Mapping[str, str]]:
    """Anthropic documents `x-api-key`; of those who speak its API, some want a bearer's token."""

    def headers(key: str) -> Mapping[str, str]:
        own = urlsplit(endpoint.base_url).hostname == _ANTHROPIC
        return {"x-api-key": key} if own else {"x-api-key": key, **bearer(key)}

    return headers
