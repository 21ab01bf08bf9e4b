from __future__ import annotations

import pytest

from retinue.domain.grant import Grant
from retinue.domain.messages import Effect
from retinue.errors import UsageError
from retinue.tools.builtin import builtin_tools
from retinue.tools.function import tool
from retinue.tools.registry import Registry


@tool
async def shout() -> None: ...


def test_a_mapping() -> None:
    registry = Registry(builtin_tools())
    assert registry["read_file"].spec.name == "read_file"
    assert registry.get("nothing") is None
    assert len(registry) == 9
    assert registry.effects["read_file"] is Effect.READ
    assert repr(Registry([shout])) == "Registry(shout)"


def test_another_one_with_more() -> None:
    registry = Registry(builtin_tools())
    assert "shout" in registry.plus(shout)
    assert "shout" not in registry
    with pytest.raises(UsageError, match="There are two tools named 'shout'"):
        registry.plus(shout, shout)


def test_specs_are_sorted_and_made_once() -> None:
    registry = Registry(builtin_tools())
    grant = Grant(allowed_tools=("list_dir",), ask_tools=("write_file",))
    specs = registry.specs(grant, window=8_192)
    assert [spec.name for spec in specs] == ["list_dir", "write_file"]
    again = Grant(allowed_tools=("list_dir",), ask_tools=("write_file",))
    assert registry.specs(again, window=8_192) is specs
    other = Grant(allowed_tools=("write_file", "list_dir"))
    assert registry.specs(other, window=8_192) == specs
    assert registry.specs(Grant(), window=8_192) == ()


def test_a_name_that_no_tool_has() -> None:
    registry = Registry(builtin_tools(shell=False))
    assert registry.closest("readfile") == "read_file"
    assert registry.closest("zzz") is None
    assert registry.unknown("readfile") == "There is no tool 'readfile'. Did you mean 'read_file'?"
    with pytest.raises(UsageError) as caught:
        registry.specs(Grant(allowed_tools=("zzz",)), window=8_192)
    assert str(caught.value) == (
        "There is no tool 'zzz'; there are: edit_file, find_files, list_dir, read_file, recall,"
        " remember, search_files, write_file."
    )
