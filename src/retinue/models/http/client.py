"""A model behind an HTTP API: what is the same for every API that is spoken."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from typing import Protocol, Self

from retinue.domain.messages import Reply, Request
from retinue.models.http.abilities import Abilities, Form
from retinue.models.http.exchange import Draft, Exchange, Intake

OnText = Callable[[str], None]


class Encoder(Protocol):
    def encode(self, request: Request, form: Form, without: Set[str]) -> bytes: ...


class SpokenModel:
    """One model at one endpoint. Any number of replies may be under way at once.

    `encoder` spells requests as the API wants them, and `listen` begins to read an answer.
    """

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        abilities: Abilities,
        encoder: Encoder,
        listen: Callable[[OnText | None], Intake[Draft]],
    ) -> None:
        self._name = name
        self._exchange = exchange
        self._abilities = abilities
        self._encoder = encoder
        self._listen = listen

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._exchange.aclose()

    async def reply(self, request: Request, on_text: OnText | None = None) -> Reply:
        wording = self._abilities.wording(request)
        while True:
            started_at = time.perf_counter()
            body = self._encoder.encode(request, wording.form, self._abilities.without)
            intake = self._listen(on_text)
            fault = await self._exchange.run(body, intake, tries=request.timeouts)
            if fault is None:
                return wording.judged(intake.draft.reply(request, body, started_at))
            if not intake.draft.empty:
                raise fault  # Some of it was heard already, so it cannot be asked otherwise.
            wording.refused(fault)
