from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from retinue.domain.messages import Effect
from retinue.errors import ToolFailure, UsageError
from retinue.ports.tool import Tool, ToolContext, ToolOutcome
from retinue.tools.agent_context import AgentContext
from retinue.tools.function import tool


class Point(msgspec.Struct):
    x: int
    y: int = 0


DEFAULT = [Point(1)]


@tool
async def greet(
    name: Annotated[str, msgspec.Meta(description="whom")],
    times: int = 1,
    loud: bool = False,
    title: str | None = None,
) -> str:
    """Say hello,
    several times if wanted.

    This paragraph is for people.
    """
    text = f"hello {title or ''}{name}"
    return " ".join([text.upper() if loud else text] * times)


async def refusal(subject: Tool, arguments: dict[str, Any], ctx: ToolContext) -> str:
    with pytest.raises(ToolFailure) as caught:
        await subject.run(arguments, ctx)
    return str(caught.value)


def test_tool_spec() -> None:
    assert greet.spec.name == "greet"
    assert greet.spec.description == "Say hello, several times if wanted."
    assert msgspec.json.decode(greet.spec.parameters) == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "whom"},
            "times": {"type": "integer"},
            "loud": {"type": "boolean"},
            "title": {"type": "string"},
        },
        "required": ["name"],
    }
    assert greet.effect is Effect.WRITE
    assert repr(greet) == "FunctionTool('greet')"


async def test_tool_can_be_called_as_a_function() -> None:
    assert await greet("Ada", times=2) == "hello Ada hello Ada"


@pytest.mark.parametrize(
    ("arguments", "content"),
    [
        ({"name": "Ada"}, "hello Ada"),
        ({"name": "Ada", "times": "2", "loud": "true"}, "HELLO ADA HELLO ADA"),
        ({"name": "Ada", "times": None, "loud": None, "title": None}, "hello Ada"),
        ({"name": "Ada", "times": 2.0}, "hello Ada hello Ada"),
        ({"name": "Ada", "mood": "good"}, "hello Ada"),
    ],
)
async def test_arguments(arguments: dict[str, Any], content: str, ctx: ToolContext) -> None:
    assert await greet.run(arguments, ctx) == ToolOutcome(content=content)


SEND = 'Send {"name": string, "times"?: integer, "loud"?: boolean, "title"?: string}.'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "greet: missing 'name'."),
        ({"nam": "Ada"}, "greet: missing 'name' (there is no 'nam')."),
        ({"name": None}, "greet: wrong 'name': Expected 'str', got 'null', in null."),
        ({"name": 3}, "greet: wrong 'name': Expected 'str', got 'int', in 3."),
        (
            {"name": "Ada", "times": "x" * 200},
            f"greet: wrong 'times': Expected 'int', got 'str', in \"{'x' * 79}….",
        ),
    ],
)
async def test_wrong_arguments(arguments: dict[str, Any], said: str, ctx: ToolContext) -> None:
    assert await refusal(greet, arguments, ctx) == f"{said} {SEND}"


async def test_arguments_of_any_type(ctx: ToolContext) -> None:
    @tool(name="where-is", description="Find it.", effect="read")
    async def where(point: Point, near: list[Point] = DEFAULT) -> list[Point]:
        return [point, *near]

    assert where.spec.name == "where-is"
    assert where.spec.description == "Find it."
    assert where.effect is Effect.READ
    done = await where.run({"point": {"x": 2}}, ctx)
    assert done.content == '[{"x":2,"y":0},{"x":1,"y":0}]'
    assert "wrong 'point'" in await refusal(where, {"point": {"x": "?"}}, ctx)


async def test_context_is_passed_and_not_in_the_schema(ctx: ToolContext) -> None:
    @tool(effect=Effect.EXECUTE)
    async def who(ctx: ToolContext) -> ToolOutcome:
        return ToolOutcome(content=ctx.agent_id, ok=False)

    assert msgspec.json.decode(who.spec.parameters) == {"type": "object", "properties": {}}
    assert await who.run({}, ctx) == ToolOutcome(content="a1", ok=False)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ValueError("bad"), "ValueError('bad')"),
        (StopIteration(3), "RuntimeError('StopIteration(3)')"),
        (SystemExit(1), "RuntimeError('it tried to exit the program: SystemExit(1)')"),
    ],
)
async def test_exception_in_a_thread_fails_only_the_call(
    raised: BaseException, told: str, ctx: ToolContext
) -> None:
    @tool
    def failing() -> str:
        """Fail."""
        raise raised

    with pytest.raises(Exception) as caught:  # noqa: PT011
        await failing.run({}, ctx)
    assert repr(caught.value) == told


HANGING = """
import asyncio, sys, threading, retinue
from retinue.models.scripted.model import call

begun = threading.Event()

@retinue.tool(effect="read")
def hang() -> str:
    "Never come back."
    begun.set()
    threading.Event().wait()
    return ""

async def main() -> None:
    model = retinue.ScriptedModel([call("hang")])
    async with retinue.open(sys.argv[1], model=model, tools=[hang]) as rt:
        job = await rt.start("researcher", "Hang.", tools=("hang",))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait)
        job.cancel("enough")
        print((await rt.join([job]))[0].status)

asyncio.run(main())
"""


def test_program_ends_despite_a_hanging_tool(tmp_path: Path) -> None:
    environment = {"HOME": f"{tmp_path}-home", "PATH": os.defpath}
    done = subprocess.run(
        [sys.executable, "-c", HANGING, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "cancelled\n"), done.stderr


async def test_sync_function_runs_in_a_thread(ctx: ToolContext) -> None:
    @tool
    def where(ctx: ToolContext, deep: bool) -> dict[str, Any]:
        return {"main": threading.current_thread() is threading.main_thread(), "deep": deep}

    assert (await where.run({"deep": True}, ctx)).content == '{"main":false,"deep":true}'


async def test_sync_function_may_return_a_coroutine(ctx: ToolContext) -> None:
    @tool
    def later() -> Awaitable[str]:
        return asyncio.sleep(0, "done")

    assert (await later.run({}, ctx)).content == "done"


async def test_values_outside_json_become_text(ctx: ToolContext) -> None:
    @tool
    async def odd() -> object:
        return {"a": complex(1, 2)}

    assert (await odd.run({}, ctx)).content == '{"a":"(1+2j)"}'


async def test_error_of_the_function_propagates(ctx: ToolContext) -> None:
    @tool
    async def broken() -> str:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        await broken.run({}, ctx)


def test_functions_that_cannot_be_tools() -> None:
    async def untyped(a, b: int):  # type: ignore[no-untyped-def]
        return a

    async def starred(*names: str) -> None: ...

    async def keywords(**options: str) -> None: ...

    async def positional(a: str, /) -> None: ...

    async def unknown(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    async def misfit(a: threading.Thread) -> None: ...

    async def two_contexts(a: AgentContext, b: AgentContext) -> None: ...

    cases: list[tuple[Callable[..., object], str]] = [
        (untyped, "Tool 'untyped': parameter 'a' has no type; write for example 'a: str'."),
        (starred, "Tool 'starred': parameter '*names: 'str''"),
        (keywords, "Tool 'keywords': parameter '**options: 'str''"),
        (positional, "Tool 'positional': parameter 'a: 'str''"),
        (
            unknown,
            "Tool 'unknown': the type of parameter 'a' cannot be resolved: name 'Missing' is not",
        ),
        (misfit, "Tool 'misfit': parameter 'a' has a type that a model cannot send: "),
        (two_contexts, "Tool 'two_contexts': parameter 'b' is a second context."),
    ]
    for function, said in cases:
        with pytest.raises(UsageError) as caught:
            tool(function)
        assert str(caught.value).startswith(said)


def test_invalid_names_and_effects() -> None:
    async def fine() -> None: ...

    with pytest.raises(UsageError, match="A tool cannot be called 'a b'"):
        tool(fine, name="a b")
    with pytest.raises(UsageError, match="Unknown effect 'reed'; known: read, write, execute"):
        tool(fine, effect="reed")
    with pytest.raises(UsageError, match="A tool cannot be called '<lambda>'"):
        tool(lambda: None)
