"""Models, and what their servers tell about them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Protocol

from retinue.domain.messages import Reply, Request
from retinue.domain.price import PoolPrice, Price
from retinue.domain.server_info import EndpointLoad, ServedModel
from retinue.errors import UsageError


class Model(Protocol):
    """A language model. One instance serves any number of agents at once.

    Nothing needs to be inherited: every object with these three members is a model. `retinue.open`
    takes it, and `retinue.testing.ModelContract` is a test class that it should pass.

    ```python
    class Parrot:
        name = "parrot"

        async def reply(self, request, on_text=None):
            message = retinue.AssistantMessage(request.messages[-1].content)
            usage = retinue.Usage.estimate(request, message.content)
            return retinue.Reply(message=message, usage=usage, finish=retinue.Finish.STOP)

        async def aclose(self):
            pass

    async with retinue.open(".", model=Parrot()) as rt:
        assert "Hello" in (await rt.run("Hello")).response
    ```
    """

    @property
    def name(self) -> str:
        """The name that the user chose, such as `openai:qwen3@http://127.0.0.1:8080/v1`."""
        ...

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        """Answer, or raise ModelError. `on_text` gets the text as it arrives.

        An empty text means that the model thinks or that the request is queued.
        """
        ...

    async def aclose(self) -> None:
        """Release connections. Called when the runtime closes."""
        ...


def check_model(model: object) -> None:
    """Raise UsageError, with all that the object lacks, if it is no Model."""
    if inspect.isclass(model):
        raise UsageError(f"{model.__name__} is a class; pass an instance of it as the model.")
    lacks = []
    if not isinstance(getattr(model, "name", None), str):
        lacks.append("`name`, a string")
    reply = getattr(model, "reply", None)
    if not callable(reply):
        lacks.append("`async def reply(self, request, on_text=None) -> Reply`")
    else:
        try:
            inspect.signature(reply).bind(None, None)
        except TypeError as error:
            lacks.append(f"a `reply` that takes `request` and `on_text` ({error})")
        if not inspect.iscoroutinefunction(reply):
            lacks.append("an async `reply`")
    if not inspect.iscoroutinefunction(getattr(model, "aclose", None)):
        lacks.append("`async def aclose(self)`")
    if lacks:
        kind = type(model).__name__
        raise UsageError(f"{kind} is no retinue.Model: it lacks {', '.join(lacks)}.")


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
        """The price of the model; None if none is known."""
        ...

    async def served(self, model: str) -> ServedModel | None:
        """The server's description of that model; asked once. None if it has none."""
        ...

    def known(self, model: str) -> ServedModel | None:
        """Like `served`, without asking the server: None until it was asked."""
        ...

    def loads(self) -> Sequence[EndpointLoad]:
        """How busy the endpoints of the models are."""
        ...
