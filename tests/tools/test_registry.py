from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, ToolSpec
from retinue.errors import UsageError
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.tools import files
from retinue.tools.builtin import builtin_tools
from retinue.tools.function import tool
from retinue.tools.registry import Registry


@tool
async def shout() -> None: ...


def test_registry_is_a_mapping() -> None:
    registry = Registry(builtin_tools())
    assert registry["read_file"].spec.name == "read_file"
    assert registry.get("nothing") is None
    assert len(registry) == len(builtin_tools())
    assert registry.effects["read_file"] is Effect.READ
    assert repr(Registry([shout])) == "Registry(shout)"


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="There are two tools named 'shout'"):
        Registry([shout, shout])


def test_specs_are_sorted_and_cached() -> None:
    registry = Registry(builtin_tools())
    grant = Grant(allowed_tools=("list_dir",), ask_tools=("write_file",))
    specs = registry.specs(grant, window=8_192)
    assert [spec.name for spec in specs] == ["list_dir", "write_file"]
    again = Grant(allowed_tools=("list_dir",), ask_tools=("write_file",))
    assert registry.specs(again, window=8_192) is specs
    other = Grant(allowed_tools=("write_file", "list_dir"))
    assert registry.specs(other, window=8_192) == specs
    assert registry.specs(Grant(), window=8_192) == ()


def test_unknown_tool_name() -> None:
    registry = Registry([files.read_file, files.write_file])
    assert registry.closest("readfile") == "read_file"
    assert registry.closest("zzz") is None
    assert registry.unknown("readfile") == "There is no tool 'readfile'. Did you mean 'read_file'?"
    with pytest.raises(UsageError) as caught:
        registry.specs(Grant(allowed_tools=("zzz",)), window=8_192)
    assert str(caught.value) == ("There is no tool 'zzz'; there are: read_file, write_file.")


# Tools of servers come by the dozen


def served(*names: str, tokens: int) -> Registry:
    """Tools of so many tokens each."""

    class Served:
        effect = Effect.EXTERNAL

        def __init__(self, name: str) -> None:
            schema = b'{"type":"object","properties":{}}'
            room = 4 * tokens - len(name) - 36  # The schema takes 9 tokens.
            self.spec = ToolSpec(name, "x" * room, msgspec.Raw(schema))

        def spec_for(self, grant: Grant) -> ToolSpec:
            return self.spec

        async def run(self, arguments: Mapping[str, Any], ctx: ToolContext) -> ToolOutcome:
            return ToolOutcome(content="")

    return Registry([*builtin_tools(), *map(Served, names)])


def test_mcp_tools_get_a_quarter_of_the_window() -> None:
    big = [f"mcp__big__t{number}" for number in range(5)]
    registry = served(*big, "mcp__small__a", "mcp__small__b", tokens=100)
    grant = Grant(allowed_tools=("read_file", *big, "mcp__small__a", "mcp__small__b"))
    told = {
        window: [spec.name for spec in registry.specs(grant, window=window)]
        for window in (4_000, 2_000, 800, 400)
    }
    assert len(told[4_000]) == 8
    # The larger server gives way, by name; what is ours stays.
    assert told[2_000] == ["mcp__big__t0", "mcp__big__t1", "mcp__big__t2",
                           "mcp__small__a", "mcp__small__b", "read_file"]  # fmt: skip
    assert told[800] == ["mcp__small__a", "mcp__small__b", "read_file"]
    assert told[400] == ["mcp__small__a", "read_file"]
    assert registry.omitted_tool_notes(grant, window=4_000) == ()
    assert registry.omitted_tool_notes(grant, window=2_000) == (
        "2 tools of the MCP server big (mcp__big__t3, …) left out: tools of servers may take a"
        " quarter of its 2,000 tokens; name the tools it needs in `tools`, or under [mcp.big] in"
        " the settings",
    )
    assert len(registry.omitted_tool_notes(grant, window=400)) == 2


def test_windows_that_hide_the_same_tools_share_specs() -> None:
    registry = served("mcp__s__a", tokens=100)
    grant = Grant(allowed_tools=("read_file", "mcp__s__a"))
    assert registry.specs(grant, window=4_000) is registry.specs(grant, window=8_000)
    assert registry.specs(grant, window=4_000) is not registry.specs(grant, window=100)
