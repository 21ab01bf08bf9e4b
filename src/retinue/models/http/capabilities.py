"""Capabilities of a server, learned from its refusals and kept as long as its client.

Nothing is probed. A request is first sent as the most capable server would like it. A feature that
the server refuses is left out or expressed in another way, and the request is sent again. That
costs nothing: servers do not work on a request that they refuse. The next request starts from what
was learned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from enum import StrEnum

import msgspec

from retinue.domain.messages import AssistantMessage, Finish, Reply, Request
from retinue.errors import ModelError, RequestRefused
from retinue.models.http.decoding import is_json
from retinue.models.http.images import CANNOT_SEE, IMAGE_FEATURES, IMAGES, has_images

ANSWER_TOOL = "answer"
"""Name of the tool that takes an answer as its arguments."""

_MAX_REFUSED_SCHEMAS = 256
_THINKING_END = "</think>"
# The server complains that a field is missing, not that a field is present.
_MISSED = re.compile(
    r"\bmissing\b|field required|must be (?:passed|provided|included|supplied|present|sent back)"
    r"|[a-z_]['\"`]? (?:is|are) required"
)


class OutputMode(StrEnum):
    """How a model is held to an output schema."""

    SCHEMA = "schema"
    """The server constrains the text to the schema."""
    OBJECT = "object"
    """The server constrains the text to a JSON object."""
    TOOL = "tool"
    """The model must call a tool whose arguments are the answer."""
    PROMPT = "prompt"
    """The prompt asks for it; nothing enforces it."""


class Capabilities:
    """The features that one model at one endpoint supports.

    `output_modes` are the modes that the API has, the best first. `schema_with_tools` says whether
    the model can still call tools while the server constrains its text: many servers then never let
    it call one, and do not say so. `optional_features` are parts of a request that can be left out,
    each with a pattern that a refusal of it matches. `required_features` are parts that can be
    added, each with a pattern that a complaint about its absence matches. `passing_features` are
    refused because of what one conversation holds, which says nothing about others.
    """

    def __init__(
        self,
        output_modes: tuple[OutputMode, ...],
        *,
        schema_with_tools: bool = False,
        optional_features: Mapping[str, str] | None = None,
        required_features: Mapping[str, str] | None = None,
        passing_features: Set[str] = frozenset(),
    ) -> None:
        self._output_modes = output_modes
        self._schema_with_tools = schema_with_tools
        self._optional_features = dict(optional_features or {})
        self._required_features = dict(required_features or {})
        self._passing_features = passing_features
        self._proven_modes: set[OutputMode] = set()
        self._missing_modes: set[OutputMode] = set()
        # A server that has a mode still refuses some schemas in it.
        self._refused_schemas: set[tuple[OutputMode, str]] = set()
        self.unsupported: Set[str] = frozenset()
        """The optional features that this server refuses, and those that it requires.

        Replaced, never changed in place.
        """

    def best_mode(self, request: Request, refused: Sequence[OutputMode]) -> OutputMode:
        """The best mode for the request that is left."""
        schema = request.schema
        if schema is None:
            return OutputMode.PROMPT
        is_object = msgspec.json.decode(schema).get("type") == "object"
        for mode in self._output_modes:
            fits = (
                (self._schema_with_tools or not request.tools)
                if mode is OutputMode.SCHEMA
                else (is_object and not request.tools)
            )
            excluded = {*self._missing_modes, *refused}
            if fits and mode not in excluded and (mode, schema) not in self._refused_schemas:
                return mode
        return OutputMode.PROMPT

    def refused_feature(self, refusal: RequestRefused, unsupported: Set[str]) -> str | None:
        """The feature to leave out or to add, because the refusal names it; None if there is none.

        A field that the server misses is never left out.
        """
        text = str(refusal).lower()
        missed = _MISSED.search(text) is not None
        features = self._required_features if missed else self._optional_features
        for feature, pattern in features.items():
            if feature not in unsupported and re.search(pattern, text):
                return feature
        return None

    def remember(self, unsupported: Set[str]) -> None:
        """Keep what a request had to leave out or to add until it was accepted, or what is known
        from elsewhere not to work.
        """
        self.unsupported = self.unsupported | (unsupported - self._passing_features)

    def give_up_mode(self, mode: OutputMode, schema: str) -> None:
        if mode not in self._proven_modes:
            self._missing_modes.add(mode)
        elif len(self._refused_schemas) < _MAX_REFUSED_SCHEMAS:
            self._refused_schemas.add((mode, schema))

    def accept(self, reply: Reply, mode: OutputMode, schema: str) -> Reply:
        """Return the reply with its answer as text. A mode that was ignored is not used again."""
        if mode is OutputMode.TOOL:
            reply = _with_answer_as_text(reply)
        if mode is OutputMode.PROMPT or reply.finish is not Finish.STOP:
            return reply
        if is_json(reply.message.content.rpartition(_THINKING_END)[2]):
            self._proven_modes.add(mode)
        else:
            self.give_up_mode(mode, schema)
        return reply


class Negotiation:
    """One request, which is sent in the best mode that is left until a mode is not refused."""

    def __init__(self, capabilities: Capabilities, request: Request) -> None:
        self._capabilities = capabilities
        self._request = request
        self._refused_modes: tuple[OutputMode, ...] = ()
        self._first_error: ModelError | None = None
        self.mode = capabilities.best_mode(request, ())
        self.unsupported = capabilities.unsupported
        """The optional features that the request leaves out."""

    def refused(self, error: ModelError) -> None:
        """Choose another mode. Raises an error that no other mode helps against."""
        with_images = has_images(self._request.messages)
        if not isinstance(error, RequestRefused):
            is_blind = with_images and CANNOT_SEE.search(str(error).lower())
            if not is_blind or IMAGES in self.unsupported:
                raise error
            self.unsupported = self.unsupported | {IMAGES}
            return
        # A complaint about images in a request without any is about something else.
        absent = frozenset() if with_images else frozenset(IMAGE_FEATURES)
        feature = self._capabilities.refused_feature(error, self.unsupported | absent)
        if feature is not None:
            self.unsupported = self.unsupported | {feature}
        else:
            # If the request is refused in every mode, no mode was the reason.
            self._first_error = self._first_error or error
            if self.mode is OutputMode.PROMPT:
                raise self._first_error
            self._refused_modes += (self.mode,)
        self.mode = self._capabilities.best_mode(self._request, self._refused_modes)

    def accept(self, reply: Reply, *, declined: bool = False) -> Reply:
        """Return the reply with its answer as text, and remember what was refused before.

        A refused feature is remembered only now: the request was accepted without the feature, so
        the feature was the reason. If the model `declined` to answer, nothing is known of the mode.
        """
        capabilities = self._capabilities
        if self.unsupported is not capabilities.unsupported:
            capabilities.remember(self.unsupported)
        schema = self._request.schema
        if schema is None or declined:
            return reply
        for mode in self._refused_modes:
            capabilities.give_up_mode(mode, schema)
        return capabilities.accept(reply, self.mode, schema)


def _with_answer_as_text(reply: Reply) -> Reply:
    message = reply.message
    answer = next((call for call in message.calls if call.name == ANSWER_TOOL), None)
    if answer is None:
        return reply
    return msgspec.structs.replace(
        reply,
        message=AssistantMessage(answer.arguments),
        finish=Finish.STOP if reply.finish is Finish.TOOLS else reply.finish,
    )
