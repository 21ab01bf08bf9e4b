"""Registry of the tools of a run, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import msgspec

from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, ToolSpec
from retinue.domain.plural import plural
from retinue.domain.tool_names import is_mcp_tool, server_of
from retinue.errors import UsageError
from retinue.ports.tool import Tool

WINDOW_SHARE = 4
"""Tools of MCP servers get at most 1/WINDOW_SHARE of the context window: servers have dozens."""


class Registry(Mapping[str, Tool]):
    """An immutable mapping of names to tools."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            name = tool.spec.name
            if name in self._tools:
                raise UsageError(f"There are two tools named {name!r}; give one another name.")
            self._tools[name] = tool
        self._effects = MappingProxyType({n: tool.effect for n, tool in self._tools.items()})
        # A fan-out asks for the same few sets of tools ten thousand times.
        self._specs: dict[_SpecsKey, tuple[ToolSpec, ...]] = {}
        self._without_room: dict[tuple[tuple[str, ...], int], frozenset[str]] = {}

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self._tools.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __repr__(self) -> str:
        return f"Registry({', '.join(sorted(self._tools))})"

    def specs(self, grant: Grant, *, window: int) -> tuple[ToolSpec, ...]:
        """Specs of the tools of a grant, as the model sees them, sorted by name.

        Equal grants get the same object, since prompt prefixes must be byte-stable. Tools of MCP
        servers are included as far as they fit into their share of `window` tokens.
        """
        names = grant.allowed_tools + grant.ask_tools
        key = (names, grant.spawn_roles, grant.skills, self._hidden(names, window))
        specs = self._specs.get(key)
        if specs is None:
            for name in names:
                if name not in self._tools:
                    raise UsageError(self.unknown(name))
            shown = sorted(set(names) - self._hidden(names, window))
            specs = tuple(self._tools[name].spec_for(grant) for name in shown)
            self._specs[key] = specs
        return specs

    def omitted_tool_notes(self, grant: Grant, *, window: int) -> tuple[str, ...]:
        """A line for each MCP server whose tools do not fit into the context window."""
        hidden = self._hidden(grant.allowed_tools + grant.ask_tools, window)
        notes = []
        for server, tools in _by_server(hidden).items():
            count = plural(len(tools), "tool")
            notes.append(
                f"{count} of the MCP server {server} ({tools[0]}, …) left out: tools of servers may"
                f" take a quarter of its {window:,} tokens; name the tools it needs in `tools`, or"
                f" under [mcp.{server}] in the settings"
            )
        return tuple(notes)

    def _hidden(self, names: tuple[str, ...], window: int) -> frozenset[str]:
        """Tools of MCP servers that do not fit. The server with the largest tools loses first."""
        hidden = self._without_room.get((names, window))
        if hidden is None:
            servers = _by_server(name for name in names if is_mcp_tool(name) and name in self)
            sizes = {
                name: self._tools[name].spec.tokens for tools in servers.values() for name in tools
            }
            ordered = sorted(servers.values(), key=lambda tools: sum(sizes[n] for n in tools))
            line = [name for tools in ordered for name in tools]
            used = accumulate(sizes[name] for name in line)
            hidden = frozenset(
                name
                for name, tokens in zip(line, used, strict=True)
                if tokens > window // WINDOW_SHARE
            )
            self._without_room[names, window] = hidden
        return hidden

    @property
    def effects(self) -> Mapping[str, Effect]:
        """The effect of each tool, by name."""
        return self._effects

    def closest(self, name: str) -> str | None:
        """The tool with the most similar name."""
        return next(iter(difflib.get_close_matches(name, self._tools, n=1)), None)

    def unknown(self, name: str) -> str:
        """Message about a name that no tool has."""
        close = self.closest(name)
        if close is not None:
            return f"There is no tool {name!r}. Did you mean {close!r}?"
        return f"There is no tool {name!r}; there are: {', '.join(sorted(self._tools))}."


_SpecsKey = tuple[
    tuple[str, ...], tuple[str, ...], tuple[str, ...] | msgspec.UnsetType, frozenset[str]
]


def _by_server(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        found.setdefault(server_of(name), []).append(name)
    return found
