"""Models, and what their servers tell about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from retinue.domain.messages import Reply, Request
from retinue.domain.price import PoolPrice, Price
from retinue.domain.server_info import EndpointLoad, ServedModel


class Model(Protocol):
    """A language model. One instance serves any number of agents at once."""

    @property
    def name(self) -> str:
        """The name that the user chose, such as `openai:qwen3@http://127.0.0.1:8080/v1`."""
        ...

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        """Answer, or raise ModelError. `on_text` gets the text as it arrives.

        An empty text means that the model thinks or that the request is queued.
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
