"""Models that answer requests, and what is known of the servers behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from retinue.domain.messages import Reply, Request
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


class ModelServers(Protocol):
    """What is known of the servers behind the names of models."""

    async def served(self, model: str) -> ServedModel | None:
        """What the server says of that model; it is asked once. None if it does not tell."""
        ...

    def known(self, model: str) -> ServedModel | None:
        """The same without asking: None until it was asked."""
        ...

    def loads(self) -> Sequence[EndpointLoad]:
        """How busy the endpoints are that may be asked."""
        ...
