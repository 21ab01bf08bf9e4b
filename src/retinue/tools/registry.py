"""All tools of a run, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, ToolSpec
from retinue.errors import UsageError
from retinue.ports import Tool


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
        self._specs: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[ToolSpec, ...]] = {}

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __repr__(self) -> str:
        return f"Registry({', '.join(sorted(self._tools))})"

    def plus(self, *tools: Tool) -> Registry:
        """Another registry, with these tools as well."""
        return Registry([*self._tools.values(), *tools])

    def specs(self, grant: Grant) -> tuple[ToolSpec, ...]:
        """The tools of a grant as its model is told of them, sorted by name.

        Sorted, and the same object for the same grant, since prefixes must be byte-stable.
        """
        names = grant.allowed_tools + grant.ask_tools
        key = (names, grant.spawn_roles)
        specs = self._specs.get(key)
        if specs is None:
            for name in names:
                if name not in self._tools:
                    raise UsageError(self.unknown(name))
            specs = tuple(self._tools[name].spec_for(grant) for name in sorted(set(names)))
            self._specs[key] = specs
        return specs

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
