"""Models that a program brings, whose replies are checked against the declared types."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from retinue.domain.messages import AssistantMessage, Reply, Request, Usage
from retinue.errors import ProviderError
from retinue.ports.model import Model


class CheckedModel:
    """A model that fails with the name of the wrong field if it returns another type.

    Lists and strings that stand for tuples and enums are converted.
    """

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self._model = model

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        def checked(text: str) -> None:
            if not isinstance(text, str):
                raise self._error(f"must call `on_text` with a str, not {_kind(text)}")
            if on_text is not None:
                on_text(text)

        reply = await self._model.reply(request, checked)
        if not isinstance(reply, Reply):
            raise self._error(f"must return a retinue.Reply, not {_kind(reply)}")
        for field, kind in (("message", AssistantMessage), ("usage", Usage)):
            if not isinstance(value := getattr(reply, field), kind):
                wanted = f"a Reply whose `{field}` is a retinue.{kind.__name__}"
                raise self._error(f"must return {wanted}, not {_kind(value)}")
        try:
            return msgspec.convert(msgspec.to_builtins(reply, enc_hook=repr), Reply)
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at ")
            field = where.strip("`").removeprefix("$.")
            raise self._error(f"must return a valid Reply; `{field}`: {what}") from None

    async def aclose(self) -> None:
        await self._model.aclose()

    def _error(self, problem: str) -> ProviderError:
        return ProviderError(f"The model {self.name}: `reply` {problem}.")


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
