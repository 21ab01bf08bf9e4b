"""`delegate_task`: a plan of a few steps, one after the other, and one report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from retinue.domain.contract import Contract
from retinue.domain.messages import Request, ToolMessage
from retinue.errors import ProviderError
from retinue.models.scripted.model import ScriptedModel, Step, call, fail, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]

ROOT = "at work in the user's project"


def led(plan: Step, **children: list[Step]) -> ScriptedModel:
    return ScriptedModel({ROOT: [plan, say("All done.")], **children})


def report(model: ScriptedModel) -> str:
    last = [r for r in model.requests if ROOT in r.messages[0].content][-1]
    (answer,) = (m.content for m in last.messages if isinstance(m, ToolMessage))
    return answer


def opening(model: ScriptedModel, task: str) -> str:
    return next(
        r.messages[1].content for r in model.requests if r.messages[1].content.startswith(task)
    )


def plan(*subtasks: object, goal: str = "Understand auth") -> Step:
    each = [{"role": "researcher"} | one if isinstance(one, dict) else one for one in subtasks]
    return call("delegate_task", plan=goal, subtasks=each)


async def test_steps_run_in_order_and_make_one_report(opened: Opened, contracts: Contracts) -> None:
    model = led(
        plan({"task": "Find files"}, {"task": "Plan it", "role": "planner", "scope": "src"}),
        Find=[say("Found 5 files.")],
        Plan=[say("Auth uses JWT.")],
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.children == 2
    head, first, second = report(model).split("\n\n")
    assert head == "2 of 2 done: Understand auth"
    assert first.startswith("0. [completed] a1 researcher: 1 turn, 0 tool calls, ")
    assert "\nFound 5 files.\n" in first
    assert second.startswith("1. [completed] a2 planner: ")
    assert "\nAuth uses JWT.\n" in second
    child = (await contracts())["a2"]
    assert child.step.scope == ("src",)
    assert child.parent.step_idx == 1
    assert child.parent.goal_summary == "Understand auth"


@pytest.mark.parametrize("on", [0, [0], "0"])
async def test_dependent_step_gets_the_earlier_result(opened: Opened, on: object) -> None:
    model = led(
        plan({"task": "List"}, {"task": "Analyse", "depends_on": on}, {"task": "Wonder"}),
        List=[say("a.ts, b.ts")],
        Analyse=[say("Analysed.")],
        Wonder=[say("Why?")],
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    given = opening(model, "Analyse")
    assert "This is part 1 of: Understand auth" in given
    assert 'from="part 0">\na.ts, b.ts\n</report-' in given
    assert "a.ts" not in opening(model, "Wonder")


async def test_dependent_step_gets_several_results(opened: Opened) -> None:
    model = led(
        plan(
            {"task": "One"},
            {"task": "Two", "depends_on": None},
            {"task": "Three", "depends_on": [0, 1]},
        ),
        One=[say("eins")],
        Two=[say("zwei")],
        Three=[say("drei")],
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    given = opening(model, "Three")
    assert given.index("eins") < given.index("zwei")


async def test_long_results_are_cut_and_noted(
    opened: Opened, settings: Callable[[str], None]
) -> None:
    settings("[roles.planner.budget]\nmax_context_tokens = 7_500\n")
    novel = "word " * 1_600
    last = {"task": "Three", "role": "planner", "depends_on": [0, 1]}
    model = led(
        plan({"task": "One"}, {"task": "Two"}, last),
        One=[say(novel)],
        Two=[say(novel)],
        Three=[say("drei")],
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    third = report(model).split("\n\n")[-1]
    assert third.startswith("2. [completed] ")
    for part in (0, 1):
        assert f"\nnote: the report of part {part} was cut to 1,8" in third
    given = opening(model, "Three")
    assert given.count("<report-") == given.count("</report-") == 2


async def test_an_error_stops_the_rest(opened: Opened) -> None:
    model = led(
        plan({"task": "Break"}, {"task": "Never"}, {"task": "Neither"}),
        Break=[fail(ProviderError("connection refused"))],
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.children == 1
    assert report(model).split("\n\n") == [
        "[ERROR] 0 of 3 done: Understand auth",
        "0. [ERROR] error: connection refused\n"
        "(a1 researcher: 0 turns, 0 tool calls, 0 tokens, 0.0s)\n"
        "It returned no text.",
        "Stopped there: 2 more were not begun.",
    ]


async def test_steps_before_an_error_are_reported(opened: Opened) -> None:
    model = led(
        plan({"task": "Work"}, {"task": "Break", "role": "cook"}, {"task": "Never"}),
        Work=[say("Worked.")],
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    head, first, second, rest = report(model).split("\n\n")
    assert head == "[ERROR] 1 of 3 done: Understand auth"
    assert "\nWorked.\n" in first
    assert second.startswith("1. [ERROR] Unknown role 'cook'; you may spawn: ")
    assert rest == "Stopped there: 1 more were not begun."


@pytest.mark.parametrize(
    ("subtasks", "answer"),
    [
        ([], "[ERROR] No subtasks; give at least one."),
        (
            [{"task": f"Task {n}"} for n in range(8)],
            "[ERROR] Maximum 5 subtasks; there are 8. Join some of them.",
        ),
        ([{"task": "a"}, {"task": " "}], "[ERROR] Subtask 1 has no task."),
        (
            [{"task": "a", "depends_on": 0}],
            "[ERROR] Subtask 0 depends on 0, which is no earlier subtask; they are numbered from 0,"
            " in order.",
        ),
        (
            [{"task": "a"}, {"task": "b", "depends_on": [0, 2]}],
            "[ERROR] Subtask 1 depends on 2, which is no earlier subtask; they are numbered from 0,"
            " in order.",
        ),
        (
            [{"task": "a"}, {"task": "b", "depends_on": -1}],
            "[ERROR] Subtask 1 depends on -1, which is no earlier subtask; they are numbered from"
            " 0, in order.",
        ),
    ],
)
async def test_invalid_plan_is_refused_as_a_whole(
    opened: Opened, subtasks: list[object], answer: str
) -> None:
    model = led(plan(*subtasks))
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.children == 0
    assert report(model) == answer


async def test_subtask_without_a_task_is_answered_with_the_right_form(opened: Opened) -> None:
    model = led(plan({"role": "planner"}))
    async with opened(model=model) as rt:
        assert (await rt.run("Go.")).children == 0
    assert report(model).startswith("[ERROR] delegate_task: wrong 'subtasks': ")


@pytest.mark.parametrize(
    "subtasks", ['[{"task": "One"}, {"task": "Two"}]', '["One", "Two"]', ["One", "Two"]]
)
async def test_plan_of_a_weak_model_is_repaired(opened: Opened, subtasks: object) -> None:
    steps = [call("delegate_task", plan="Both", subtasks=subtasks), say("All done.")]
    # Children without a role have the instructions of the root.
    model = ScriptedModel({"One": [say("1")], "Two": [say("2")], ROOT: steps})
    async with opened(model=model) as rt:
        assert (await rt.run("Go.")).children == 2


async def test_each_child_costs_the_parent_a_call(opened: Opened) -> None:
    model = led(
        plan({"task": "One"}, {"task": "Two"}, {"task": "Three"}),
        One=[say("1")],
        Two=[say("2")],
    )
    async with opened(model=model, limits={"max_tool_calls": 2}) as rt:
        result = await rt.run("Go.")
    assert result.usage.tool_calls == 2
    assert result.children == 2
    assert "2. skipped: no tool calls are left for it" in report(model)


async def test_step_prompt_holds_nothing_of_the_parents_conversation(opened: Opened) -> None:
    def look(request: Request) -> Step:
        assert "hush" not in "".join(message.content for message in request.messages)
        return say("ok")

    model = led(plan({"task": "One"}), One=[look])
    async with opened(model=model) as rt:
        await rt.run("Go, and hush.")
