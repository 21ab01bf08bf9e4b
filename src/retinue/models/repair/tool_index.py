"""Indexes the tools of a request by the names and fields that a model may write."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from retinue.domain.messages import ToolSpec
from retinue.domain.tool_aliases import TOOLS_BY_ALIAS, normalize_name
from retinue.domain.tool_names import MCP_PREFIX, is_mcp_tool
from retinue.models.repair.aliases import READ_ONLY_TOOLS
from retinue.models.tools_cache import ToolsCache

# A name ends at an opening bracket, markup or white space.
_NAME = re.compile(r"[\s`\"'*]*([\w.:/@-]+)")
_NUMBER = re.compile(r":\d+$")
_SPACES = re.compile(r"[.:/@]|__")


class IndexedTool(msgspec.Struct, frozen=True):
    """One tool: its name and its fields."""

    name: str
    fields: frozenset[str]
    field_order: tuple[str, ...]
    """The fields in the order of the schema."""
    required: frozenset[str]
    field_types: dict[str, str]
    """The type of each field that has a simple one."""
    allows_extra_fields: bool
    """Whether the schema explicitly allows other fields."""

    @property
    def reads_only(self) -> bool:
        return self.name in READ_ONLY_TOOLS

    @property
    def sole_text_field(self) -> str | None:
        """The only required field, if it is a text."""
        if len(self.required) != 1:
            return None
        (field,) = self.required
        return field if self.field_types.get(field, "string") == "string" else None


class ToolIndex:
    """The tools of one request, and which of them a name means."""

    def __init__(self, tools: tuple[ToolSpec, ...]) -> None:
        self.tools = {tool.name: _index_tool(tool) for tool in tools}
        self.fields = {name: tool.fields for name, tool in self.tools.items()}
        self._by_name: dict[str, IndexedTool | None] = {}
        for name, tool in self.tools.items():
            key = normalize_name(name)
            # Of two tools that differ in spelling only, neither may stand for the other.
            self._by_name[key] = None if key in self._by_name else tool
        for name, tool in self.tools.items():
            if is_mcp_tool(name):
                # A model may leave out the MCP server, where only one tool can be meant.
                key = normalize_name(name.removeprefix(MCP_PREFIX).partition("__")[2])
                if not any(other in self.tools for other in TOOLS_BY_ALIAS.get(key, ())):
                    self._by_name[key] = None if key in self._by_name else tool

    def find(self, name: str, *, no_aliases: bool = False) -> IndexedTool | None:
        """The tool that `name` means. With `no_aliases`, only the spelling may differ."""
        exact = self.tools.get(name)
        if exact is not None:
            return exact
        found = _NAME.match(name)
        if found is None:
            return None
        plain = _NUMBER.sub("", found[1])
        parts = _SPACES.split(plain)
        if is_mcp_tool(plain):
            parts = parts[-1:]  # The name of a server is no name of a tool.
        # The last part first: `functions.read_file`, `default_api:read_file`.
        for part in (plain, *reversed(parts)):
            tool = self._lookup(normalize_name(part), no_aliases)
            if tool is not None:
                return tool
        return None

    def _lookup(self, key: str, no_aliases: bool) -> IndexedTool | None:
        if not key:
            return None
        for spelling in (key, key.removesuffix("tool")):
            tool = self._by_name.get(spelling)
            if tool is not None:
                return tool
            if no_aliases:
                continue
            for target in TOOLS_BY_ALIAS.get(spelling, ()):
                if target in self.tools:
                    return self.tools[target]
        return None


index_tools = ToolsCache(ToolIndex)


def _index_tool(tool: ToolSpec) -> IndexedTool:
    schema = _decoded(tool.parameters)
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    extra = schema.get("additionalProperties")
    return IndexedTool(
        name=tool.name,
        fields=frozenset(properties),
        field_order=tuple(properties),
        required=frozenset(name for name in properties if name in required)
        if isinstance(required, list)
        else frozenset(),
        field_types={
            field: kind
            for field, about in properties.items()
            if isinstance(about, dict) and isinstance(kind := about.get("type"), str)
        },
        allows_extra_fields=extra is True or isinstance(extra, dict),
    )


def _decoded(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        schema = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return schema if isinstance(schema, dict) else {}
