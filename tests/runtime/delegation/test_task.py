"""Tasks as programs write them, and as journals store them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

import retinue
from retinue.errors import UsageError
from retinue.models.scripted.model import ScriptedModel, say
from retinue.runtime.delegation.task import (
    OTHER_NAMES,
    TaskOptions,
    encode_task,
    make_task,
    without_cache_for_duplicates,
)
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"color": "red"},
            r"Unknown option 'color'; there are: role, task, tools, .*max_retries\.",
        ),
        ({"tool_budget": 5}, r"Unknown option 'tool_budget'; retinue has `max_tool_calls`\."),
        (
            {"max_turns": "many"},
            r"max_turns is of the wrong type: expected `int \| null`, got `str`\.",
        ),
    ],
)
async def test_a_wrong_option_is_named(
    opened: Opened, options: dict[str, Any], message: str
) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError, match=message):
            await rt.spawn("researcher", "x", **options)


async def test_a_task_object_may_hold_plain_values(opened: Opened) -> None:
    task = retinue.Task(role="researcher", task="x", mode="plan", tools=["read_file"])  # type: ignore[arg-type]
    async with opened(model=ScriptedModel([say("ok")])) as rt:
        (result,) = await rt.fan_out([task])
    assert result.ok


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"tools": "read_file"}, "tools is of the wrong type: expected `array | null`, got `str`."),
        ({"mode": "turbo"}, "mode is of the wrong type: invalid enum value 'turbo'."),
        ({"context": None}, "context is of the wrong type: expected `str`, got `null`."),
    ],
)
async def test_a_wrong_value_in_a_task_object_is_named(
    opened: Opened, task: dict[str, Any], message: str
) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        wrong = retinue.Task(role="researcher", task="x", **task)
        for use in (rt.fan_out, rt.forecast):
            with pytest.raises(UsageError) as told:
                await use([wrong])
            assert str(told.value) == message


@pytest.mark.parametrize("tasks", [("researcher", "x"), [("researcher",)], [7]])
async def test_an_item_that_is_no_task_is_refused(opened: Opened, tasks: Any) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError, match=r"A task is a retinue\.Task or a pair"):
            await rt.fan_out(tasks)


def test_spawn_takes_the_fields_of_a_task() -> None:
    fields = {*retinue.Task.__struct_fields__} - {"role", "task", "output"}
    assert {*TaskOptions.__annotations__} == fields | {*OTHER_NAMES}


def test_other_names_of_options() -> None:
    task = make_task("researcher", "Look.", {"budget": 10, "allowed_tools": ["read_file"]})
    assert task == retinue.Task("researcher", "Look.", max_tool_calls=10, tools=("read_file",))
    with pytest.raises(UsageError, match="budget is another name for max_tool_calls; give one"):
        make_task("researcher", "Look.", {"budget": 1, "max_tool_calls": 2})


def test_a_task_is_stored_flat_with_its_limits_last() -> None:
    task = retinue.Task("researcher", "Look.", max_turns=3, write=("src",), timeout_s=9.0)
    stored = b'{"role":"researcher","task":"Look.","write":["src"],"max_turns":3,"timeout_s":9.0}'
    assert bytes(encode_task(task)) == stored
    assert msgspec.json.decode(stored, type=retinue.Task) == task


def test_identical_tasks_are_not_served_from_the_cache() -> None:
    one, two = retinue.Task("researcher", "Look."), retinue.Task("reviewer", "Look.")
    assert [t.cache for t in without_cache_for_duplicates([one, two, one])] == [True, True, False]
