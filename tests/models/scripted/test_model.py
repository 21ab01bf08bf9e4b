from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Message,
    Request,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from retinue.errors import ModelError, ProviderError, RateLimited
from retinue.models.scripted.model import (
    ScriptedModel,
    ScriptedReply,
    Step,
    call,
    calls,
    fail,
    hold,
    raw_call,
    say,
)
from retinue.ports.model import Model
from retinue.testing.model_contract import ModelContract


def asked(*messages: Message) -> Request:
    return Request(messages=messages)


HI = asked(UserMessage("Hi."))


async def said(model: ScriptedModel, request: Request = HI) -> str:
    return (await model.reply(request)).message.content


async def talk(model: ScriptedModel, *opening: Message) -> list[str]:
    """A whole conversation: what was said and called, until the first reply without calls."""
    messages = list(opening)
    log: list[str] = []
    while True:
        reply = await model.reply(Request(messages=tuple(messages)))
        messages.append(reply.message)
        log += [made.name for made in reply.message.calls]
        if reply.finish is not Finish.TOOLS:
            return [*log, reply.message.content]
        messages += [ToolMessage(made.id, "") for made in reply.message.calls]


class TestScriptedModel(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Model]:
        async with ScriptedModel(steps) as model:
            yield model


async def test_requests_take_the_steps_in_order() -> None:
    model = ScriptedModel([say("one"), say("two")])
    assert [await said(model), await said(model, asked(UserMessage("Other.")))] == ["one", "two"]
    model.assert_exhausted()


async def test_running_out_says_how_many_steps_there_were() -> None:
    model = ScriptedModel([say("one")])
    await said(model)
    with pytest.raises(ProviderError, match="has 1 step and was asked for one more") as caught:
        await said(model)
    assert not caught.value.retryable


async def test_steps_left_over_are_listed() -> None:
    script: list[Step] = [say("one"), call("read_file", path="a"), fail(RateLimited("No."))]
    model = ScriptedModel(script)
    await said(model)
    with pytest.raises(AssertionError) as caught:
        await model.aclose()
    assert 'step 2, call read_file({"path":"a"}); step 3, fail with RateLimited' in str(
        caught.value
    )


async def test_leftovers_do_not_hide_an_error() -> None:
    with pytest.raises(KeyError):
        async with ScriptedModel([say("one")]):
            raise KeyError


async def test_a_lenient_model_closes_with_leftovers() -> None:
    await ScriptedModel([say("one")], strict=False).aclose()


async def test_a_failure_is_raised_and_the_next_try_goes_on() -> None:
    error = RateLimited("No.", retry_after_s=3.0)
    model = ScriptedModel([fail(error), say("yes")])
    with pytest.raises(RateLimited, match="No") as caught:
        await said(model)
    assert caught.value.retry_after_s == 3.0
    assert await said(model) == "yes"


async def test_a_function_makes_a_step_of_the_request() -> None:
    def echo(request: Request) -> Step:
        (message,) = request.messages
        assert isinstance(message, UserMessage)
        return say(message.content.upper())

    assert await said(ScriptedModel([echo])) == "HI."


async def test_a_held_reply_waits_for_its_gate() -> None:
    gate = asyncio.Event()
    model = ScriptedModel([hold(gate, say("late")), say("early")])
    async with asyncio.TaskGroup() as group:
        late = group.create_task(said(model))
        # A task runs up to its first wait before anything that was made after it.
        await asyncio.sleep(0)
        assert await said(model) == "early"
        assert not late.done()
        gate.set()
    assert late.result() == "late"


async def test_arguments_need_not_be_json() -> None:
    reply = await ScriptedModel([raw_call("x", "{oops")]).reply(HI)
    assert reply.message.calls[0].arguments == "{oops"


async def test_a_tool_may_have_an_argument_of_any_name() -> None:
    reply = await ScriptedModel([call("x", tool="a", name="b", self="c")]).reply(HI)
    assert reply.message.calls[0].arguments == '{"tool":"a","name":"b","self":"c"}'


async def test_a_delay_spreads_the_words() -> None:
    pieces: list[str] = []
    await ScriptedModel([say("a b c").after(1e-6)]).reply(HI, pieces.append)
    assert pieces == ["a", " b", " c"]


async def test_estimated_usage_is_the_same_every_time() -> None:
    first = await ScriptedModel([say("ok")]).reply(HI)
    second = await ScriptedModel([say("ok")]).reply(HI)
    assert first == second


RULES: dict[str, list[Step]] = {
    "researcher": [call("read_file", path="a"), say("found")],
    "Write tests": [say("written")],
    "": [say("whatever")],
}


@pytest.mark.parametrize(
    ("opening", "log"),
    [
        ((SystemMessage("You are a researcher."), UserMessage("Go.")), ["read_file", "found"]),
        ((SystemMessage("You are a coder."), UserMessage("Write tests for a.")), ["written"]),
        ((UserMessage("Hi."),), ["whatever"]),
    ],
)
async def test_the_first_rule_that_fits_is_taken(
    opening: tuple[Message, ...], log: list[str]
) -> None:
    assert await talk(ScriptedModel(RULES, strict=False), *opening) == log


async def test_only_the_first_user_message_chooses_the_rule() -> None:
    model = ScriptedModel(RULES, strict=False)
    request = asked(UserMessage("Hi."), UserMessage("researcher"))
    assert await said(model, request) == "whatever"


async def test_many_conversations_play_the_same_rule_at_once() -> None:
    model = ScriptedModel({"researcher": RULES["researcher"]})
    logs = await asyncio.gather(
        *(talk(model, SystemMessage("researcher"), UserMessage(f"Part {n}.")) for n in range(50))
    )
    assert logs == [["read_file", "found"]] * 50
    await model.aclose()


async def test_resumed_conversation_continues() -> None:
    request = asked(UserMessage("researcher"), AssistantMessage("", ()), ToolMessage("c", ""))
    assert await said(ScriptedModel(RULES, strict=False), request) == "found"


async def test_unused_rule_is_reported() -> None:
    model = ScriptedModel(RULES)
    await talk(model, UserMessage("researcher"))
    with pytest.raises(AssertionError, match="rule 'Write tests'; rule ''"):
        await model.aclose()


async def test_a_conversation_that_fits_no_rule_names_the_rules() -> None:
    model = ScriptedModel({"researcher": [say("x")]})
    with pytest.raises(ProviderError, match=r"begins 'Hi\.'. Rules: 'researcher'"):
        await said(model)


async def test_a_rule_that_runs_out_names_itself() -> None:
    model = ScriptedModel({"Hi": [say("x")]})
    with pytest.raises(ProviderError, match="rule 'Hi' of the script has 1 step"):
        await said(model, asked(UserMessage("Hi."), AssistantMessage("x"), UserMessage("More.")))


async def test_failures_in_a_rule_are_one_for_each_try_of_each_conversation() -> None:
    def failure() -> Step:
        return fail(ProviderError("Down.", retryable=True))

    model = ScriptedModel({"": [failure(), failure(), say("up"), failure(), say("end")]})
    for name in ("a", "b"):
        opening = UserMessage(name)
        for _ in range(2):
            with pytest.raises(ModelError):
                await said(model, asked(opening))
        assert await said(model, asked(opening)) == "up"
        later = asked(opening, AssistantMessage("up"), UserMessage("More."))
        with pytest.raises(ModelError):
            await said(model, later)
        assert await said(model, later) == "end"


async def test_call_ids_differ_between_turns() -> None:
    step = calls(call("x"), call("x"))
    model = ScriptedModel([step, step])
    ids = [made.id for _ in range(2) for made in (await model.reply(HI)).message.calls]
    assert len(set(ids)) == 4
