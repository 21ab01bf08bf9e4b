"""The tools that a model was offered, as a repair needs to know them."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from retinue.domain.messages import ToolSpec
from retinue.domain.tool_names import MCP_PREFIX, is_mcp_tool
from retinue.models.repair.aliases import READING, TOOLS_BY_ALIAS, folded

_OFFERS_REMEMBERED = 64
# Ends of a name: an opening bracket, markup or white space begins something else.
_NAME = re.compile(r"[\s`\"'*]*([\w.:/@-]+)")
_NUMBER = re.compile(r":\d+$")
_SPACES = re.compile(r"[.:/@]|__")


class Shape(msgspec.Struct, frozen=True):
    """One tool: its name and its fields."""

    name: str
    fields: frozenset[str]
    order: tuple[str, ...]
    """The fields as the schema lists them."""
    required: frozenset[str]
    kinds: dict[str, str]
    """The type of each field that has a simple one."""
    any_field: bool
    """Whether the schema says that fields it does not list are welcome."""

    @property
    def reads(self) -> bool:
        return self.name in READING

    @property
    def only_text(self) -> str | None:
        """The one field that must be given, if it is a text."""
        if len(self.required) != 1:
            return None
        (field,) = self.required
        return field if self.kinds.get(field, "string") == "string" else None


class Offer:
    """What was offered, and which of it a name means."""

    __slots__ = ("_folded", "fields", "shapes")

    def __init__(self, tools: tuple[ToolSpec, ...]) -> None:
        self.shapes = {tool.name: _shape(tool) for tool in tools}
        self.fields = {name: shape.fields for name, shape in self.shapes.items()}
        self._folded: dict[str, Shape | None] = {}
        for name, shape in self.shapes.items():
            key = folded(name)
            # Two tools that differ in spelling only: neither may stand for the other.
            self._folded[key] = None if key in self._folded else shape
        for name, shape in self.shapes.items():
            if is_mcp_tool(name):
                # A model may leave out the server, where only one tool can be meant.
                key = folded(name.removeprefix(MCP_PREFIX).partition("__")[2])
                if not any(other in self.shapes for other in TOOLS_BY_ALIAS.get(key, ())):
                    self._folded[key] = None if key in self._folded else shape

    def named(self, name: str, *, strictly: bool = False) -> Shape | None:
        """The tool that `name` means; `strictly` allows for spelling only, not for aliases."""
        exact = self.shapes.get(name)
        if exact is not None:
            return exact
        found = _NAME.match(name)
        if found is None:
            return None
        plain = _NUMBER.sub("", found[1])
        # The last part first: `functions.read_file`, `default_api:read_file`.
        for part in (plain, *reversed(_SPACES.split(plain))):
            shape = self._meant(folded(part), strictly)
            if shape is not None:
                return shape
        return None

    def _meant(self, key: str, strictly: bool) -> Shape | None:
        if not key:
            return None
        for spelling in (key, key.removesuffix("tool")):
            shape = self._folded.get(spelling)
            if shape is not None:
                return shape
            if strictly:
                continue
            for target in TOOLS_BY_ALIAS.get(spelling, ()):
                if target in self.shapes:
                    return self.shapes[target]
        return None


# Keyed by identity: hashing the schemas would cost more than a repair. The tuple is kept too, so
# that its id cannot be given to another one.
_offers: dict[int, tuple[tuple[ToolSpec, ...], Offer]] = {}


def offer_of(tools: tuple[ToolSpec, ...]) -> Offer:
    known = _offers.get(id(tools))
    if known is not None:
        return known[1]
    offer = Offer(tools)
    if len(_offers) >= _OFFERS_REMEMBERED:
        del _offers[next(iter(_offers))]
    _offers[id(tools)] = (tools, offer)
    return offer


def _shape(tool: ToolSpec) -> Shape:
    schema = _decoded(tool.parameters)
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    extra = schema.get("additionalProperties")
    return Shape(
        name=tool.name,
        fields=frozenset(properties),
        order=tuple(properties),
        required=frozenset(name for name in properties if name in required)
        if isinstance(required, list)
        else frozenset(),
        kinds={
            field: kind
            for field, about in properties.items()
            if isinstance(about, dict) and isinstance(kind := about.get("type"), str)
        },
        any_field=extra is True or isinstance(extra, dict),
    )


def _decoded(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        schema = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return schema if isinstance(schema, dict) else {}
