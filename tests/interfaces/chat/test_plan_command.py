"""/plan: the plan, its review, and its report."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from retinue.errors import UsageError
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.slash_commands import submit
from retinue.interfaces.plan_review import open_in_editor
from retinue.models.scripted.model import ScriptedModel, Step, say

Opened = Callable[..., AbstractAsyncContextManager[Chat]]
Said = Callable[..., str]
Wait = Callable[[Callable[[], Any]], Awaitable[None]]

STEPS: list[dict[str, Any]] = [
    {"name": "look", "role": "researcher", "task": "Look around."},
    {"name": "tell", "role": "reviewer", "task": "Tell of it.", "depends_on": ["look"]},
]
QUESTION = "r run it   e edit it   n neither   then enter"


def planner(*steps: dict[str, Any], look: Step | None = None) -> ScriptedModel:
    plan = json.dumps({"summary": "Look, then tell.", "steps": steps or STEPS})
    return ScriptedModel(
        {
            "You are a planner": [say(plan), say(plan)],
            "Look around.": [look or say("It is all there.")],
            "Tell of it.": [say("Told.")],
            "": [say("I know.")],
        },
        strict=False,
    )


def asks(chat: Chat, text: str) -> Callable[[], bool]:
    return lambda: any(text in question.text for question in chat.questions.open)


def idle(chat: Chat) -> Callable[[], bool]:
    return lambda: not chat.host.busy


async def test_plan_is_reviewed_and_run(opened: Opened, said: Said, wait: Wait) -> None:
    model = planner()
    async with opened(model) as chat:
        submit(chat, "/plan Know it")
        await wait(asks(chat, QUESTION))
        shown = said(chat)
        assert "only read" not in shown, "the user is asked about changes"
        assert "[planner] Completed:" in shown
        assert '"steps"' not in shown, "the JSON of the planner is hidden"
        assert "Know it\nLook, then tell.\n\nstep  role        writes  checks  what\n" in shown
        assert "└─ look\n   └─ tell\n\nForecast: about " in shown
        submit(chat, "r")
        await wait(idle(chat))
        assert "• Steps: 2 of 2 done" in said(chat)
        assert [tree.run.kind for tree in chat.forest.trees.values()] == ["planning", "plan"]
        submit(chat, "What came of it?")
        await wait(idle(chat))
    assert "- Steps: 2 of 2 done" in str(model.requests[-1].messages), (
        "the root agent sees the report"
    )


async def test_other_text_does_not_answer_the_plan_question(
    opened: Opened, said: Said, wait: Wait
) -> None:
    async with opened(planner()) as chat:
        submit(chat, "/plan Know it")
        await wait(asks(chat, QUESTION))
        submit(chat, "How are you?")
        await wait(lambda: "I know." in said(chat))
        assert chat.questions.open
        submit(chat, "neither")
        await wait(idle(chat))
    assert "Nothing was run. The plan is in .retinue/plan.toml." in said(chat)


async def test_plan_is_edited_until_valid(opened: Opened, said: Said, wait: Wait) -> None:
    given: list[str] = []

    async def edit(text: str) -> str | None:
        given.append(text)
        if len(given) == 3:
            return None
        return text.replace(*[("reviewer", "cook"), ("cook", "tester")][len(given) - 1])

    async with opened(planner(), on_edit=edit) as chat:
        submit(chat, "/plan Know it")
        await wait(asks(chat, QUESTION))
        submit(chat, "e")
        await wait(asks(chat, "e edit it again   n no   then enter"))
        assert "step 'tell': role: 'cook' is unknown; there are: executor, " in said(chat)
        submit(chat, "e")
        await wait(asks(chat, QUESTION))
        assert given[1].startswith("#! step 'tell': role: 'cook' is unknown")
        assert "\ntell  tester " in said(chat)
        submit(chat, "e")
        await wait(lambda: len(given) == 3 and asks(chat, QUESTION)())
        assert said(chat).count("tell  tester ") == 2, "an unchanged plan is shown again"
        submit(chat, "n")
        await wait(idle(chat))


@pytest.mark.parametrize("when", ["reviewed", "running"])
async def test_cancel_a_plan(opened: Opened, said: Said, wait: Wait, when: str) -> None:
    async with opened(planner(look=say("never ever").after(3000))) as chat:
        submit(chat, "/plan Know it")
        await wait(asks(chat, QUESTION))
        if when == "running":
            submit(chat, "r")
            await wait(lambda: chat.active_children() and chat.active_children()[0][1].turn == 1)
        submit(chat, "/cancel")
        await wait(idle(chat))
        assert not chat.questions.open
        trees = list(chat.forest.trees.values())
        assert trees[-1].run.status == ("completed" if when == "reviewed" else "cancelled")
    assert said(chat).endswith("■ The plan was stopped.")


async def test_invalid_plan_is_reported(opened: Opened, said: Said, wait: Wait) -> None:
    async with opened(planner({**STEPS[1], "depends_on": ["b"]})) as chat:
        submit(chat, "/plan")
        assert said(chat).endswith("/plan needs a goal: /plan GOAL")
        submit(chat, "/plan Eat")
        await wait(idle(chat))
    assert "The plan cannot be run; 1 problem:\n- step 'tell': depends_on: 'b' is " in said(chat)


async def test_missing_editor(
    opened: Opened, said: Said, wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(planner()) as chat:
        submit(chat, "/plan Know it")
        await wait(asks(chat, QUESTION))
        submit(chat, "e")
        await wait(asks(chat, "e edit it again   n no   then enter"))
        assert "There is no terminal to open an editor in." in said(chat)
        submit(chat, "n")
        await wait(asks(chat, QUESTION))
        submit(chat, "n")
        await wait(idle(chat))
    monkeypatch.setenv("VISUAL", "false")
    with pytest.raises(UsageError, match=r"^false: Editing failed\. Set EDITOR to one that works"):
        open_in_editor("")
