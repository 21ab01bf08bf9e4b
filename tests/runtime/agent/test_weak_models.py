"""Weak models, end to end: what they write is understood, or answered with what to send."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from retinue.domain.events import Event, ModelReplied
from retinue.domain.messages import ToolMessage
from retinue.errors import ProviderError
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, raw_call, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Settings = Callable[[str], None]

ROOT = "Go."


def answers(model: ScriptedModel) -> list[str]:
    return [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]


# Calls to spawn


@pytest.mark.parametrize(
    "step",
    [
        call("spawn", task="Dig here"),
        call("spawn_task", task="Dig here"),
        call("task", prompt="Dig here", subagent_type="researcher"),
        call("spawn_agent", prompt="Dig here"),
        call("spawn_agent", instructions="Dig here", agent="researcher"),
        call("spawn_agent", task="Dig here", max_iterations=3),
        call("spawn_agent", task="Dig here", max_turns="3", background="false"),
        call("SpawnAgent", task="Dig here"),
        call("spawn_agent", arguments={"task": "Dig here"}),
        call("spawn_agent", task="Dig here", role=None, scope=None, tools=None),
        raw_call("spawn_agent", '{"task": "Dig here",}'),
        raw_call("spawn_agent", "{'task': 'Dig here'}"),
        raw_call("spawn_agent", '```json\n{"task": "Dig here"}\n```'),
        raw_call("spawn_agent", '{"task": "Dig here"'),
        say(
            '<tool_call>\n{"name": "spawn_agent", "arguments": {"task": "Dig here"}}\n</tool_call>'
        ),
        say('```json\n{"name": "spawn", "arguments": {"prompt": "Dig here"}}\n```'),
        say("<function=spawn_agent>\n<parameter=task>\nDig here\n</parameter>\n</function>"),
    ],
    ids=lambda step: str(step.text or step.calls)[:60],
)
async def test_malformed_calls_are_repaired(opened: Opened, step: Step) -> None:
    model = ScriptedModel({ROOT: [step, say("ok")], "Dig here": [say("A bone.")]})
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        result = await rt.run("Go.")
    assert (result.ok, result.children) == (True, 1)
    (answer,) = answers(model)
    assert answer.startswith(("[completed] a1 researcher: ", "[completed] a1 general: "))


@pytest.mark.parametrize("text", ["Dig here", '"Dig here"', "task Dig here"])
async def test_text_that_is_no_json_is_no_task(opened: Opened, text: str) -> None:
    model = ScriptedModel({ROOT: [raw_call("spawn_agent", text), say("ok")]})
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.children == 0
    (answer,) = answers(model)
    assert answer.startswith("[ERROR] The arguments of spawn_agent ")


async def test_repairs_are_recorded(opened: Opened) -> None:
    model = ScriptedModel(
        {ROOT: [call("spawn_task", prompt="Dig here"), say("ok")], "Dig": [say("A bone.")]}
    )
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        await rt.run("Go.")
    replied = next(e.fact for e in seen if isinstance(e.fact, ModelReplied))
    assert replied.repairs == (
        "spawn_agent: was called 'spawn_task'",
        "spawn_agent: 'prompt' was taken as 'task'",
    )


@pytest.mark.parametrize("ids", [{"id": "a1"}, {"jobs": ["a1"]}, {"agent_id": "a1"}])
async def test_calls_of_other_tools_are_repaired_too(
    opened: Opened, ids: dict[str, object]
) -> None:
    model = ScriptedModel(
        {
            ROOT: [
                call("spawn", task="Dig", background=True),
                call("wait", **ids),
                call("send_message", to="a1", message="Hello"),
                say("ok"),
            ],
            "Dig": [say("A bone.")],
        }
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    told = answers(model)
    assert told[1] == "[a1: OK]\nA bone."
    assert told[2].startswith('[ERROR] a1 has ended; spawn_agent with continues="a1"')


async def test_a_text_that_holds_a_call_is_executed_by_a_child_too(
    opened: Opened, project: Path
) -> None:
    (project / "a.txt").write_text("hello")
    written = '<tool_call>{"name": "read", "arguments": {"file_path": "a.txt"}}</tool_call>'
    model = ScriptedModel([say(f"Let me look.\n{written}"), say("It says hello.")])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Read a.txt.")
    assert result.ok
    assert answers(model) == ["hello"]
    assert result.files_read == ("a.txt",)


# What cannot be understood


async def test_unrepairable_call_is_answered_with_the_right_form(opened: Opened) -> None:
    model = ScriptedModel(
        [
            calls(raw_call("read_file", "{{{"), call("read_file", colour="red")),
            call("read_file", path=["a", "b"]),
            say("I give up."),
        ]
    )
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Read.")
    assert result.ok
    broken, missing, wrong = answers(model)
    assert broken.startswith("[ERROR] The arguments of read_file are not JSON (")
    assert "Send one JSON object." in broken
    assert missing.startswith("[ERROR] read_file: missing 'path' (there is no 'colour'). Send {")
    assert wrong.startswith("[ERROR] read_file: wrong 'path': ")
    assert '"path": string' in wrong
    assert result.usage.tool_calls == 3


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (
            raw_call("read_file", "{{{"),
            "the model sent the same broken call 3 times in a row: read_file {{{ was answered:"
            " [ERROR] The arguments of read_file are not JSON (",
        ),
        (
            call("fly", to="the moon"),
            'the model sent the same broken call 3 times in a row: fly {"to":"the moon"} was'
            " answered: [DENIED] You have no tool 'fly'. You have: ",
        ),
        (
            call("read_file", colour="red"),
            'the model sent the same broken call 3 times in a row: read_file {"colour":"red"} was'
            " answered: [ERROR] read_file: missing 'path'",
        ),
    ],
)
async def test_the_same_broken_call_three_times_ends_the_attempt(
    opened: Opened, broken: Step, reason: str
) -> None:
    seen: list[Event] = []
    model = ScriptedModel([broken, broken, broken])
    async with opened(model=model, on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Go.", max_retries=0)
    assert result.status == "error"
    assert (result.error or "").startswith(reason)
    assert result.usage.turns == 3


@pytest.mark.parametrize(
    "broken",
    [
        call("spawn_agent", role="researcher"),
        call("spawn_agent", task="Dig", role="cook"),
        call("delegate_task", plan="Dig", subtasks=[]),
        call("agent_message", id="a9", text="Hello"),
    ],
    ids=lambda step: str(step.calls[0].name),
)
async def test_repeated_broken_spawn_ends_the_attempt(opened: Opened, broken: Step) -> None:
    model = ScriptedModel([broken] * 3)
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.status == "error"
    assert (result.error or "").startswith("the model sent the same broken call 3 times in a row")


async def test_three_failed_children_are_not_a_broken_call(opened: Opened) -> None:
    spawn = call("spawn_agent", task="Dig")
    plan = call("delegate_task", plan="Dig", subtasks=[{"task": "Dig"}])
    model = ScriptedModel(
        {
            ROOT: [*[spawn] * 3, *[plan] * 3, say("Then not."), say("I give up.")],
            "Dig": [fail(ProviderError("no"))],
        }
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert (result.ok, result.children) == (True, 6)


async def test_next_attempt_is_told_why_the_last_one_ended(opened: Opened) -> None:
    broken = call("fly", to="the moon")
    model = ScriptedModel([broken, broken, broken, say("I walk.")])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Go.")
    assert (result.ok, result.attempts, result.response) == (True, 2, "I walk.")
    assert (
        "An earlier attempt ended: the model sent the same broken call 3 times in a row: fly"
        in (model.requests[-1].messages[1].content)
    )


async def test_two_broken_calls_or_interrupted_series_are_harmless(opened: Opened) -> None:
    broken = call("fly", to="the moon")
    model = ScriptedModel(
        [broken, broken, call("list_dir"), broken, broken, call("fly", to="Mars"), say("I walk.")]
    )
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Go.")
    assert (result.ok, result.attempts) == (True, 1)


async def test_parent_gets_the_error_of_a_stuck_child(opened: Opened) -> None:
    broken = call("fly", to="the moon")
    model = ScriptedModel(
        {
            ROOT: [call("spawn_agent", task="Soar"), say("Oh."), say("Then not.")],
            "Soar": [broken] * 3,
        }
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.ok
    (answer,) = answers(model)
    assert answer.startswith(
        "[ERROR] error: the model sent the same broken call 3 times in a row: fly "
    )


async def test_profile_name_works_as_role(opened: Opened, settings: Settings) -> None:
    settings('[profiles.poet]\nsystem_prompt = "You are a poet."\n')
    model = ScriptedModel(
        {
            ROOT: [
                call("spawn_agent", task="Write", role="poet"),
                call("spawn_agent", task="Write", profile="researcher"),
                say("ok"),
            ],
            "Write": [say("Roses.")],
        }
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    assert [answer.split(":")[0] for answer in answers(model)] == [
        "[completed] a1 poet",
        "[completed] a2 researcher",
    ]
