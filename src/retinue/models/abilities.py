"""What a server can do, found out by asking it: tried once, and remembered while its client lives.

Nothing is probed. A request is sent as the best server would like it; what is refused is left out
or said otherwise, and the request is sent again, which costs nothing since a refused one is not
worked on. The next request knows.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum

import msgspec

from retinue.domain.messages import Assistant, Finish, Reply, Request
from retinue.errors import ModelError, RequestRefused
from retinue.models.schemas import is_object

ANSWER = "answer"
"""The tool that takes an answer as its arguments."""

_MISFITS_REMEMBERED = 256
_THOUGHT = "</think>"


class Form(StrEnum):
    """How a model is held to a schema."""

    SCHEMA = "schema"
    """The server constrains the text."""
    OBJECT = "object"
    """The server sees to it that the text is a JSON object."""
    TOOL = "tool"
    """The model must call a tool whose arguments are the answer."""
    WORDS = "words"
    """It was asked to; nobody else sees to it."""


class Abilities:
    """Of one model at one endpoint.

    `forms` are those that the API has, the best first. `beside_tools` says whether constraining
    the text leaves the model free to call tools: many servers then never let it call one, and do
    not say so. `optional` are the things a request can do without, each with a pattern of the words
    by which a refusal tells that it is meant.
    """

    def __init__(
        self,
        forms: tuple[Form, ...],
        *,
        beside_tools: bool = False,
        optional: Mapping[str, str] | None = None,
    ) -> None:
        self._forms = forms
        self._beside_tools = beside_tools
        self._optional = dict(optional or {})
        self._worked: set[Form] = set()
        self._missing: set[Form] = set()
        # A form that works refuses some schemas all the same.
        self._misfits: set[tuple[Form, str]] = set()
        self.without: set[str] = set()
        """What of `optional` this server does not want."""

    async def answer(
        self, request: Request, ask: Callable[[Form], Awaitable[Reply | ModelError]]
    ) -> Reply:
        """Ask in the best form that is left, until the request is not refused."""
        refused: list[Form] = []
        first: ModelError | None = None
        while True:
            form = Form.WORDS if request.schema is None else self._best(request, refused)
            reply = await ask(form)
            if isinstance(reply, Reply):
                break
            if not isinstance(reply, RequestRefused):
                raise reply
            if self._conceded(reply):
                continue
            # If it is refused in every form, no form was the reason.
            first = first or reply
            if form is Form.WORDS:
                raise first
            refused.append(form)
        if request.schema is None:
            return reply
        for form_refused in refused:
            self._give_up(form_refused, request.schema)
        return self._judged(reply, form, request.schema)

    def _best(self, request: Request, refused: list[Form]) -> Form:
        schema = request.schema
        assert schema is not None
        for form in self._forms:
            if form in self._missing or form in refused or (form, schema) in self._misfits:
                continue
            if request.tools and not (form is Form.SCHEMA and self._beside_tools):
                continue
            if form is not Form.SCHEMA and not is_object(msgspec.json.decode(schema)):
                continue
            return form
        return Form.WORDS

    def _conceded(self, refusal: RequestRefused) -> bool:
        """Whether the server refused something that it can be spared, by name."""
        said = str(refusal).lower()
        for thing, words in self._optional.items():
            if thing not in self.without and re.search(words, said):
                self.without.add(thing)
                return True
        return False

    def _give_up(self, form: Form, schema: str) -> None:
        if form not in self._worked:
            self._missing.add(form)
        elif len(self._misfits) < _MISFITS_REMEMBERED:
            self._misfits.add((form, schema))

    def _judged(self, reply: Reply, form: Form, schema: str) -> Reply:
        """The reply with its answer as text. A form that was ignored is not used again."""
        if form is Form.TOOL:
            reply = _taken_from_tool(reply)
        if form is Form.WORDS or reply.finish is not Finish.STOP:
            return reply
        if _is_json(reply.message.content):
            self._worked.add(form)
        else:
            self._give_up(form, schema)
        return reply


def _taken_from_tool(reply: Reply) -> Reply:
    message = reply.message
    answer = next((call for call in message.calls if call.name == ANSWER), None)
    if answer is None:
        return reply
    return msgspec.structs.replace(
        reply,
        message=Assistant(answer.arguments),
        finish=Finish.STOP if reply.finish is Finish.TOOLS else reply.finish,
    )


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text.rpartition(_THOUGHT)[2])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
