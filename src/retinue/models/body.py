"""A request as chat completions spells it."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.domain.messages import Assistant, Message, Request, System, ToolAnswer, ToolSpec, User

_TOOLS_REMEMBERED = 64


class _Function(msgspec.Struct, frozen=True, gc=False):
    name: str
    arguments: str


class _Call(msgspec.Struct, frozen=True, gc=False):
    id: str
    function: _Function
    type: str = "function"


class _Assistant(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="assistant"):
    # null and not absent: some servers insist on the key.
    content: str | None
    tool_calls: list[_Call] | msgspec.UnsetType = msgspec.UNSET


class _Answer(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str


class _ToolFunction(msgspec.Struct, frozen=True, gc=False):
    name: str
    description: str
    parameters: msgspec.Raw


class _Tool(msgspec.Struct, frozen=True, gc=False):
    function: _ToolFunction
    type: str = "function"


class _StreamOptions(msgspec.Struct, frozen=True, gc=False):
    include_usage: bool = True


class _Body(msgspec.Struct, frozen=True, gc=False):
    model: str
    messages: list[System | User | _Assistant | _Answer]
    tools: msgspec.Raw | msgspec.UnsetType
    max_tokens: int | msgspec.UnsetType
    stream: bool = True
    stream_options: _StreamOptions = _StreamOptions()


class _AnyObject(msgspec.Struct):
    pass


_encode = msgspec.json.Encoder().encode
# Into a struct without fields: the whole text is checked, and nothing is built.
_check_object = msgspec.json.Decoder(_AnyObject).decode


class BodyEncoder:
    """Encodes requests for one model, and the schemas of a set of tools only once."""

    def __init__(self, model: str) -> None:
        self._model = model
        # Keyed by identity, since hashing the schemas would cost what encoding them does. The
        # tuple is kept too, so that its id cannot be given to another one.
        self._tools: dict[int, tuple[tuple[ToolSpec, ...], msgspec.Raw]] = {}

    def encode(self, request: Request) -> bytes:
        try:
            return self._encode(request)
        except UnicodeEncodeError:
            # Half a surrogate pair, say from a file name, has no UTF-8.
            return self._encode(_repaired(request))

    def _encode(self, request: Request) -> bytes:
        limit = request.max_output_tokens
        return _encode(
            _Body(
                self._model,
                [_wire(message) for message in request.messages],
                self._schemas(request.tools) if request.tools else msgspec.UNSET,
                msgspec.UNSET if limit is None else limit,
            )
        )

    def _schemas(self, tools: tuple[ToolSpec, ...]) -> msgspec.Raw:
        known = self._tools.get(id(tools))
        if known is not None:
            return known[1]
        encoded = msgspec.Raw(
            _encode([_Tool(_ToolFunction(t.name, t.description, t.parameters)) for t in tools])
        )
        if len(self._tools) >= _TOOLS_REMEMBERED:
            del self._tools[next(iter(self._tools))]
        self._tools[id(tools)] = (tools, encoded)
        return encoded


def _wire(message: Message) -> System | User | _Assistant | _Answer:
    # Ordered by how often each occurs; System and User are spelt as the API spells them.
    if isinstance(message, ToolAnswer):
        return _Answer(message.call_id, message.content)
    if isinstance(message, Assistant):
        if not message.calls:
            return _Assistant(message.content)
        return _Assistant(
            message.content or None,
            [
                _Call(call.id, _Function(call.name, _valid_arguments(call.arguments)))
                for call in message.calls
            ],
        )
    return message


def _valid_arguments(arguments: str) -> str:
    """The same text if it is a JSON object, else an object that holds the text.

    Servers parse the arguments of earlier calls for their chat template, and one broken call in
    the history would make them refuse every later request.
    """
    try:
        _check_object(arguments)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return _encode({"invalid_json": arguments}).decode() if arguments.strip() else "{}"
    return arguments


def _repaired(request: Request) -> Request:
    def clean(value: Any) -> Any:
        match value:
            case str():
                return value.encode("utf-8", "replace").decode()
            case dict():
                return {key: clean(item) for key, item in value.items()}
            case list() | tuple():
                return [clean(item) for item in value]
            case _:
                return value

    plain = clean(msgspec.to_builtins(request.messages))
    return msgspec.structs.replace(request, messages=msgspec.convert(plain, tuple[Message, ...]))
