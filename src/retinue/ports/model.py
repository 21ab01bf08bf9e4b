"""Models that answer requests, and what is known of the servers behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from retinue.domain.messages import Reply, Request
from retinue.domain.price import PoolPrice, Price
from retinue.domain.server_info import EndpointLoad, ServedModel


class Model(Protocol):
    """Something that answers. One instance serves any number of agents at once."""

    @property
    def name(self) -> str:
        """What the user calls it, such as `openai:qwen3@http://127.0.0.1:8080/v1`. No secrets."""
        ...

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        """Answer, or raise a ModelError. Text is given to `on_text` as it arrives.

        An empty text is a sign of life: of a model that thinks, or of a queue before it.
        """
        ...

    async def aclose(self) -> None: ...


class ModelCatalog(Protocol):
    """The models that agents can use, by name, and what their servers tell."""

    def get(self, name: str) -> Model:
        """The model of that name. Raises ConfigError if there is none."""
        ...

    def resolve(self, model: str | None, endpoint: str | None) -> str | None:
        """The full name for a choice of model and endpoint; None if neither is given.

        Raises UsageError for an endpoint that the user has not made known.
        """
        ...

    def price(self, name: str) -> Price | PoolPrice | None:
        """What the model costs; None if no price is known."""
        ...

    async def served(self, model: str) -> ServedModel | None:
        """What the server says of that model; asked once. None if the server does not say."""
        ...

    def known(self, model: str) -> ServedModel | None:
        """Like `served`, without asking the server: None until it was asked."""
        ...

    def loads(self) -> Sequence[EndpointLoad]:
        """How busy the endpoints of the models are."""
        ...
