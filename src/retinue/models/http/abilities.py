"""What a server can do, found out by asking it: tried once, and remembered while its client lives.

Nothing is probed. A request is sent as the best server would like it; what is refused is left out
or said otherwise, and the request is sent again, which costs nothing since a refused one is not
worked on. The next request knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from retinue.domain.messages import AssistantMessage, Finish, Reply, Request
from retinue.errors import ModelError, RequestRefused
from retinue.models.http.schemas import is_object

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

    def wording(self, request: Request) -> Wording:
        return Wording(self, request)

    def best(self, request: Request, refused: Sequence[Form]) -> Form:
        """The best form that is left for it."""
        schema = request.schema
        if schema is None:
            return Form.WORDS
        for form in self._forms:
            if form in self._missing or form in refused or (form, schema) in self._misfits:
                continue
            if request.tools and not (form is Form.SCHEMA and self._beside_tools):
                continue
            if form is not Form.SCHEMA and not is_object(msgspec.json.decode(schema)):
                continue
            return form
        return Form.WORDS

    def conceded(self, refusal: RequestRefused) -> bool:
        """Whether the server refused something that it can be spared, by name."""
        said = str(refusal).lower()
        for thing, words in self._optional.items():
            if thing not in self.without and re.search(words, said):
                self.without.add(thing)
                return True
        return False

    def give_up(self, form: Form, schema: str) -> None:
        if form not in self._worked:
            self._missing.add(form)
        elif len(self._misfits) < _MISFITS_REMEMBERED:
            self._misfits.add((form, schema))

    def judged(self, reply: Reply, form: Form, schema: str) -> Reply:
        """The reply with its answer as text. A form that was ignored is not used again."""
        if form is Form.TOOL:
            reply = _taken_from_tool(reply)
        if form is Form.WORDS or reply.finish is not Finish.STOP:
            return reply
        if _is_json(reply.message.content):
            self._worked.add(form)
        else:
            self.give_up(form, schema)
        return reply


class Wording:
    """One request, said in the best form that is left until it is not refused."""

    __slots__ = ("_abilities", "_first", "_refused", "_request", "form")

    def __init__(self, abilities: Abilities, request: Request) -> None:
        self._abilities = abilities
        self._request = request
        self._refused: tuple[Form, ...] = ()
        self._first: ModelError | None = None
        self.form = abilities.best(request, ())

    def refused(self, fault: ModelError) -> None:
        """Find another form. Raises what no form helps against."""
        if not isinstance(fault, RequestRefused):
            raise fault
        if not self._abilities.conceded(fault):
            # If it is refused in every form, no form was the reason.
            self._first = self._first or fault
            if self.form is Form.WORDS:
                raise self._first
            self._refused += (self.form,)
        self.form = self._abilities.best(self._request, self._refused)

    def judged(self, reply: Reply) -> Reply:
        """The reply with its answer as text. The forms that were refused are not used again."""
        schema = self._request.schema
        if schema is None:
            return reply
        for form in self._refused:
            self._abilities.give_up(form, schema)
        return self._abilities.judged(reply, self.form, schema)


def _taken_from_tool(reply: Reply) -> Reply:
    message = reply.message
    answer = next((call for call in message.calls if call.name == ANSWER), None)
    if answer is None:
        return reply
    return msgspec.structs.replace(
        reply,
        message=AssistantMessage(answer.arguments),
        finish=Finish.STOP if reply.finish is Finish.TOOLS else reply.finish,
    )


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text.rpartition(_THOUGHT)[2])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
