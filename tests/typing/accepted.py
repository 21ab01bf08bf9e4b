"""Snippets that type checkers accept: 40 functions, none of which is called.

`assert_type` pins down what a checker infers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Annotated, Any, TypedDict, assert_never, assert_type

import msgspec
import pydantic

import retinue
from retinue import errors, events, testing


class Struct(msgspec.Struct):
    total: int


class Pydantic(pydantic.BaseModel):
    total: int


@dataclasses.dataclass
class Data:
    total: int


class Typed(TypedDict):
    total: int


class OwnModel:
    name = "own"

    async def reply(
        self, request: retinue.Request, on_text: Callable[[str], None] | None = None
    ) -> retinue.Reply:
        return retinue.Reply(
            message=retinue.AssistantMessage(""), usage=retinue.Usage(), finish=retinue.Finish.STOP
        )

    async def aclose(self) -> None: ...


async def s01_open_gives_a_runtime() -> None:
    async with retinue.open(".") as rt:
        assert_type(rt, retinue.Runtime)


async def s02_open_takes_a_model_object() -> None:
    async with retinue.open(".", model=OwnModel()):
        pass


async def s03_open_takes_limits_as_a_dict() -> None:
    async with retinue.open(".", limits={"max_tokens": 1_000}):
        pass


async def s04_spawn_with_a_struct(rt: retinue.Runtime) -> None:
    assert_type(await rt.spawn("researcher", "…", output=Struct), retinue.Result[Struct])


async def s05_spawn_with_pydantic(rt: retinue.Runtime) -> None:
    assert_type((await rt.spawn("researcher", "…", output=Pydantic)).data, Pydantic | None)


async def s06_spawn_with_a_dataclass(rt: retinue.Runtime) -> None:
    assert_type((await rt.spawn("researcher", "…", output=Data)).unwrap(), Data)


async def s07_spawn_with_a_typed_dict(rt: retinue.Runtime) -> None:
    total: int = (await rt.spawn("researcher", "…", output=Typed)).unwrap()["total"]
    del total


async def s08_spawn_with_a_list(rt: retinue.Runtime) -> None:
    assert_type((await rt.spawn("researcher", "…", output=list[Struct])).unwrap(), list[Struct])


async def s09_spawn_with_a_json_schema(rt: retinue.Runtime) -> None:
    result = await rt.spawn("researcher", "…", output={"type": "object"})
    result.unwrap()["anything"]


async def s10_spawn_without_output(rt: retinue.Runtime) -> None:
    assert_type((await rt.spawn("researcher", "…")).response, str)


async def s11_spawn_with_options(rt: retinue.Runtime) -> None:
    await rt.spawn("coder", "…", max_tool_calls=8, mode="auto", write=["src/"], network="none")


async def s12_run_with_output(rt: retinue.Runtime) -> None:
    assert_type(await rt.run("…", output=Struct), retinue.RunResult[Struct])


async def s13_run_result_is_a_result(rt: retinue.Runtime) -> None:
    result: retinue.Result[Struct] = await rt.run("…", output=Struct)
    del result


async def s14_fan_out_with_pairs(rt: retinue.Runtime) -> None:
    for result in await rt.fan_out([("researcher", "a"), ("reviewer", "b")]):
        assert_type(result.ok, bool)


async def s15_fan_out_with_output(rt: retinue.Runtime) -> None:
    found = await rt.fan_out([retinue.Task("researcher", "a")], output=Struct)
    assert_type(found, list[retinue.Result[Struct]])


async def s16_start_and_join(rt: retinue.Runtime) -> None:
    job = await rt.start("researcher", "…", output=Data)
    assert_type(job, retinue.Job[Data])
    assert_type(await rt.join([job]), list[retinue.Result[Data]])


async def s17_join_all(rt: retinue.Runtime) -> None:
    assert_type(await rt.join(), list[retinue.Result[Any]])


async def s18_job_result(job: retinue.Job[Struct]) -> None:
    assert_type((await job.result()).unwrap().total, int)


async def s19_stream(rt: retinue.Runtime) -> None:
    async for item in rt.stream("…", output=Struct):
        match item:
            case retinue.TextDelta(text=text):
                assert_type(text, str)
            case retinue.ToolProgress(tool=tool):
                assert_type(tool, str)
            case events.Event():
                assert_type(item.seq, int)
            case retinue.RunResult():
                assert_type(item.data, Struct | None)
            case _:
                assert_never(item)


async def s20_stream_can_be_closed(rt: retinue.Runtime) -> None:
    async with aclosing(rt.stream("…")) as stream:
        async for _ in stream:
            break


def s21_match_on_a_fact(event: retinue.Event) -> None:
    match event.fact:
        case events.ToolFinished(tool=tool, receipt=receipt):
            assert_type(tool, str)
            assert_type(receipt, retinue.Receipt)
        case events.AgentClosed(final_status=status):
            assert_type(status, str)
        case _:
            pass


def s22_match_with_the_envelope(event: retinue.Event) -> None:
    match event:
        case events.Event(agent_id=agent, fact=events.ModelReplied(usage=usage)):
            assert_type(agent, str)
            assert_type(usage, retinue.Usage)


def s23_facts_are_a_union(fact: events.Fact) -> None:
    if isinstance(fact, events.RunFinished):
        assert_type(fact.status, retinue.Status)


async def s24_events_of_a_run(rt: retinue.Runtime) -> None:
    async for event in rt.events("k3f9", follow=True):
        assert_type(event, retinue.Event)


def s25_fold(found: list[retinue.Event]) -> None:
    assert_type(retinue.fold(found), retinue.RunState)


@retinue.tool
def s26_tool(text: str, times: int = 1) -> str:
    """Repeat."""
    return text * times


def s27_a_tool_can_be_called() -> None:
    assert_type(s26_tool("a", times=2), str)


@retinue.tool(effect="read")
async def s28_async_tool(text: Annotated[str, "A text"]) -> int:
    """Count."""
    return len(text)


@retinue.tool(effect="read")
def s29_generator_tool(agent: retinue.AgentContext) -> Iterator[str]:
    """Report."""
    yield agent.path


@retinue.tool(effect="read")
async def s30_async_generator_tool(agent: retinue.AgentContext) -> AsyncIterator[str]:
    """Report."""
    yield f"{agent.remaining.tool_calls}"


async def s31_tools_go_to_open() -> None:
    async with retinue.open(".", tools=[s26_tool, s28_async_tool, s29_generator_tool]):
        pass


async def s32_approve(request: retinue.ApprovalRequest) -> bool | retinue.Rule | retinue.Refusal:
    return request.rule if request.tool == "run_command" else retinue.Refusal("not now")


def s33_person() -> None:
    retinue.Person(approve=s32_approve)


def s34_listeners() -> None:
    retinue.Listeners(on_event=lambda event: print(event.seq), on_text=print)


def s35_sync() -> None:
    assert_type(retinue.run_sync("…", output=Struct), retinue.RunResult[Struct])
    assert_type(retinue.spawn_sync("researcher", "…", output=Data), retinue.Result[Data])
    many = retinue.fan_out_sync([("researcher", "…")], output=Typed, mode="plan")
    assert_type(many, list[retinue.Result[Typed]])


async def s36_plans(rt: retinue.Runtime) -> None:
    plan = await rt.plan("…")
    assert_type(plan, retinue.Plan)
    assert_type((await rt.execute(plan))["first"], retinue.StepOutcome)


async def s37_undo(rt: retinue.Runtime) -> None:
    assert_type(await rt.undo("k3f9"), retinue.UndoResult)
    assert_type(await rt.diff("k3f9"), list[retinue.ChangePatch])


def s38_errors() -> None:
    try:
        retinue.run_sync("…")
    except errors.RunSuspended as error:
        assert_type(error.run_id, str)
    except retinue.RetinueError:
        pass


def s39_scripted_model() -> None:
    model: retinue.Model = testing.ScriptedModel([testing.call("read_file"), testing.say("Hi.")])
    del model


def s40_result_without_parameter_is_any(result: retinue.Result) -> None:
    result.unwrap().anything()
