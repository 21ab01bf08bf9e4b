"""All tools of a run, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, ToolSpec, estimate_tokens
from retinue.domain.tool_names import is_mcp_tool, server_of
from retinue.errors import UsageError
from retinue.ports.tool import Tool

WINDOW_SHARE = 4
"""A quarter of the window is the most that tools of servers may take: they come by the dozen."""


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
        # A fan-out asks for the same few sets ten thousand times.
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

    def plus(self, *tools: Tool) -> Registry:
        """Another registry, with these tools as well."""
        return Registry([*self._tools.values(), *tools])

    def specs(self, grant: Grant, *, window: int) -> tuple[ToolSpec, ...]:
        """The tools of a grant as its model is told of them, sorted by name.

        Sorted, and the same object for the same grant, since prefixes must be byte-stable. Of the
        tools of servers, only those that fit their share of a window of so many tokens.
        """
        names = grant.allowed_tools + grant.ask_tools
        key = (names, grant.spawn_roles, self._hidden(names, window))
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
        """A line for each server whose tools a model is not told of, for lack of room."""
        hidden = self._hidden(grant.allowed_tools + grant.ask_tools, window)
        notes = []
        for server, tools in _by_server(hidden).items():
            count = f"{len(tools)} tool{'' if len(tools) == 1 else 's'}"
            notes.append(
                f"not told of {count} of the MCP server {server} ({tools[0]}, …): a quarter of its"
                f" {window:,} tokens is full; name the tools it needs in `tools`, or under"
                f" [mcp.{server}] in the settings"
            )
        return tuple(notes)

    def _hidden(self, names: tuple[str, ...], window: int) -> frozenset[str]:
        """The tools of servers for which there is no room: of the server with the most, by name."""
        hidden = self._without_room.get((names, window))
        if hidden is None:
            servers = _by_server(name for name in names if is_mcp_tool(name) and name in self)
            sizes = {name: self._size(name) for tools in servers.values() for name in tools}
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

    def _size(self, name: str) -> int:
        spec = self._tools[name].spec
        return estimate_tokens(spec.name + spec.description) + estimate_tokens(
            bytes(spec.parameters)
        )

    @property
    def effects(self) -> Mapping[str, Effect]:
        """What each tool can do to the world."""
        return self._effects

    def closest(self, name: str) -> str | None:
        """The tool that was probably meant."""
        close = difflib.get_close_matches(name, self._tools, n=1)
        return close[0] if close else None

    def unknown(self, name: str) -> str:
        """What to say about a name that no tool has."""
        close = self.closest(name)
        if close is not None:
            return f"There is no tool {name!r}. Did you mean {close!r}?"
        return f"There is no tool {name!r}; there are: {', '.join(sorted(self._tools))}."


_SpecsKey = tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]


def _by_server(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        found.setdefault(server_of(name), []).append(name)
    return found
