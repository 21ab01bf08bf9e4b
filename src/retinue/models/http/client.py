"""A model behind an HTTP API: what is the same for every dialect."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from retinue.domain.messages import Reply, Request
from retinue.models.http.capabilities import Capabilities, Negotiation
from retinue.models.http.encoding import RequestEncoder
from retinue.models.http.reply import OnText, ReplyReader
from retinue.models.http.transport import Transport


class HttpModel:
    """One model at one endpoint. Any number of requests may be in flight at once.

    A dialect gives an `encoder` for its requests and a `new_reader` for each of its responses.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        capabilities: Capabilities,
        encoder: RequestEncoder,
        new_reader: Callable[[OnText | None], ReplyReader[Any]],
    ) -> None:
        self.name = name
        self._transport = transport
        self._capabilities = capabilities
        self._encoder = encoder
        self._new_reader = new_reader

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def reply(self, request: Request, on_text: OnText | None = None) -> Reply:
        negotiation = Negotiation(self._capabilities, request)
        while True:
            started_at = time.perf_counter()
            body = self._encoder.encode(request, negotiation.mode, self._capabilities.unsupported)
            reader = self._new_reader(on_text)
            reader.limit_output(request.max_output_tokens)
            error = await self._transport.post(body, reader, timeouts=request.timeouts)
            if error is None:
                return negotiation.accept(reader.reply(request, body, started_at))
            if reader.first_token_at is not None:
                error.received_tokens = reader.received_tokens()
            if not reader.empty:
                raise error  # The caller has seen some of the text, so nothing can be retried.
            negotiation.refused(error)
