"""Anthropic's Messages API, which some local servers speak as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec

from retinue.domain.thinking import ThinkingOptions
from retinue.errors import ModelError
from retinue.models.anthropic.events import Event, decode_event, decode_loosely
from retinue.models.anthropic.reply import MessageDraft
from retinue.models.anthropic.request import REFUSABLE, MessagesEncoder
from retinue.models.http.abilities import Abilities, Form
from retinue.models.http.client import SpokenModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.exchange import Exchange, OnHead, bearer, decoded
from retinue.models.http.faults import Faults

_FORMS = (Form.SCHEMA, Form.TOOL)
_ANTHROPIC = "api.anthropic.com"
_VERSION = {"anthropic-version": "2023-06-01"}
# Thinking between tool calls. A model that decides by itself when to think does so anyway.
_INTERLEAVED = {"anthropic-beta": "interleaved-thinking-2025-05-14"}


class AnthropicModel(SpokenModel):
    def __init__(
        self,
        endpoint: Endpoint,
        *,
        name: str | None = None,
        thinking: ThinkingOptions | None = None,
        on_head: OnHead | None = None,
    ) -> None:
        thinking = thinking or ThinkingOptions()
        name = name or f"anthropic:{endpoint.model}{thinking}@{endpoint.address}"
        faults = Faults(endpoint, ending="")
        exchange = Exchange(
            endpoint,
            faults,
            path="/v1/messages",
            headers=_VERSION | (_INTERLEAVED if thinking.budget_tokens else {}),
            credentials=_credentials(endpoint),
            on_head=on_head,
        )
        super().__init__(
            name,
            exchange,
            # Not beside tools: held to a schema, models that think have answered and not called.
            Abilities(_FORMS, optional=REFUSABLE),
            MessagesEncoder(endpoint.model, name=name, thinking=thinking),
            lambda on_text: _Message(MessageDraft(on_text, name=name), faults),
        )


class _Message:
    """Reads one message."""

    __slots__ = ("_faults", "done", "draft")

    def __init__(self, draft: MessageDraft, faults: Faults) -> None:
        self.draft = draft
        self._faults = faults
        self.done = False

    @property
    def ended(self) -> bool:
        return self.done or self.draft.stop_reason is not None

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
                if self.done or not data.strip():
                    continue
                loose = decode_loosely(data)
                if loose is None:
                    return self._faults.garbled(data)
                event = loose
            if event.error or event.type == "error":
                return self._faults.complained(event.error or decoded(data))
            self.draft.add(event)
            if event.type == "message_stop":
                self.done = True
        return None

    def take_whole(self, body: bytes) -> ModelError | None:
        event: Event | None
        try:
            event = decode_event(body)
        except msgspec.DecodeError:
            event = decode_loosely(body)
        if event is None:
            return self._faults.garbled(body)
        if event.type != "message" or event.content is None:
            return self._faults.complained(decoded(body))
        self.draft.add(event)
        self.done = True
        return None

    def objection(self) -> ModelError | None:
        match self.draft.stop_reason:
            case "refusal":
                return self._faults.filtered(self.draft.refusal)
            case None if self.done and self.draft.empty:
                return self._faults.empty()
            case _:
                return None


def _credentials(endpoint: Endpoint) -> Callable[[str], Mapping[str, str]]:
    """Anthropic documents `x-api-key`; of those who speak its API, some want a bearer's token."""

    def headers(key: str) -> Mapping[str, str]:
        own = urlsplit(endpoint.base_url).hostname == _ANTHROPIC
        return {"x-api-key": key} if own else {"x-api-key": key, **bearer(key)}

    return headers
