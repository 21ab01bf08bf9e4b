"""A model behind an HTTP API: what is the same for every dialect."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from retinue.domain.messages import QueuedRequest, Reply, Request
from retinue.errors import ModelError, UnknownModel
from retinue.models.http.capabilities import Capabilities, Negotiation
from retinue.models.http.encoding import RequestEncoder
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.reply import OnText, ReplyReader
from retinue.models.http.transport import Transport


class Dialect(NamedTuple):
    """An API at one endpoint. `new_reader` makes the reader of one response."""

    transport: Transport
    capabilities: Capabilities
    encoder: RequestEncoder
    new_reader: Callable[[OnText | None], ReplyReader[Any]]


class HttpModel:
    """One model at one endpoint. Any number of requests may be in flight at once.

    `other` makes the dialect to use from the first refusal on that says so, if there is one.
    """

    api = "openai"
    """Name of the API whose format the server's list of models has."""

    def __init__(
        self,
        name: str,
        dialect: Dialect,
        *,
        other: Callable[[ModelError], Dialect | None] | None = None,
    ) -> None:
        self.name = name
        self._dialect = dialect
        self._other = other
        self._nearest_names: list[str] | None = None
        self._transports = [dialect.transport]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        for transport in self._transports:
            await transport.aclose()

    def leave_out(self, feature: str) -> None:
        """Send no request with an optional feature that the server is known not to have."""
        self._dialect.capabilities.remember({feature})

    async def reply(self, request: Request, on_text: OnText | None = None) -> Reply:
        dialect = self._dialect
        timeouts = request.timeouts if isinstance(request, QueuedRequest) else 0
        negotiation = Negotiation(dialect.capabilities, request)
        while True:
            started_at = time.perf_counter()
            body = dialect.encoder.encode(request, negotiation.mode, negotiation.unsupported)
            reader = dialect.new_reader(on_text)
            reader.limit_output(request.max_output_tokens)
            error = await dialect.transport.post(body, reader, timeouts=timeouts)
            if error is None:
                reply = reader.reply(request, body, started_at)
                return negotiation.accept(reply, declined=bool(reader.refusal))
            if reader.first_token_at is not None:
                error.received_tokens = reader.received_tokens()
            if not reader.empty:
                raise error  # The caller has seen some of the text, so nothing can be retried.
            if self._switched(error) or dialect is not self._dialect:
                dialect = self._dialect
                negotiation = Negotiation(dialect.capabilities, request)
            elif isinstance(error, UnknownModel):
                raise await self._with_nearest_names(error, dialect.transport.endpoint)
            else:
                negotiation.refused(error)

    async def _with_nearest_names(self, error: UnknownModel, endpoint: Endpoint) -> ModelError:
        """The error with names of models that the server has; the same if it does not list them."""
        from retinue.models.server_info.inventory import nearest_names

        if self._nearest_names is None:
            self._nearest_names = await nearest_names(endpoint, self.api)
        if not self._nearest_names:
            return error
        return UnknownModel(
            f"{endpoint.address} has no model {endpoint.model!r}. Did you mean"
            f" {' or '.join(self._nearest_names)}? Choose with -m, or with `model` in your"
            " settings; `retinue models` lists all."
        )

    def _switched(self, error: ModelError) -> bool:
        """Change to the other dialect if the error asks for it. That happens once."""
        other = None if self._other is None else self._other(error)
        if other is None:
            return False
        self._other = None
        self._dialect = other
        self._transports.append(other.transport)
        return True
