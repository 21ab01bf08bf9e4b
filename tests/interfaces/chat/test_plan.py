"""/plan: from a goal to a report, with a person in between."""

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
ASKED = "r run it   e edit it   n neither   then enter"


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


def asked(chat: Chat, text: str) -> Callable[[], bool]:
    return lambda: any(text in question.text for question in chat.questions.open)


def idle(chat: Chat) -> Callable[[], bool]:
    return lambda: not chat.host.busy


async def test_a_plan_is_shown_agreed_to_and_carried_out(
    opened: Opened, said: Said, wait: Wait
) -> None:
    model = planner()
    async with opened(model) as chat:
        submit(chat, "/plan Know it")
        await wait(asked(chat, ASKED))
        shown = said(chat)
        assert "❯ /plan Know it\n\nIn normal mode the steps of a plan only read; " in shown
        assert "[planner] Completed:" in shown
        assert '"steps"' not in shown, "what a planner answers is shown as a plan"
        assert "Know it\nLook, then tell.\n\nstep  role        writes  checks  what\n" in shown
        assert "└─ look\n   └─ tell\n\nForecast: about " in shown
        submit(chat, "r")
        await wait(idle(chat))
        assert "• Steps: 2 of 2 done" in said(chat)
        assert [tree.run.kind for tree in chat.forest.trees.values()] == ["planning", "plan"]
        submit(chat, "What came of it?")
        await wait(idle(chat))
    assert "- Steps: 2 of 2 done" in str(model.requests[-1].messages), "the lead is told of it"


async def test_only_an_answer_answers(opened: Opened, said: Said, wait: Wait) -> None:
    async with opened(planner()) as chat:
        submit(chat, "/plan Know it")
        await wait(asked(chat, ASKED))
        submit(chat, "How are you?")
        await wait(lambda: "I know." in said(chat))
        assert chat.questions.open
        submit(chat, "neither")
        await wait(idle(chat))
    assert "Nothing was run. The plan is in .retinue/plan.toml." in said(chat)


async def test_a_plan_is_edited_until_it_is_right(opened: Opened, said: Said, wait: Wait) -> None:
    given: list[str] = []

    async def edit(text: str) -> str | None:
        given.append(text)
        if len(given) == 3:
            return None
        return text.replace(*[("reviewer", "cook"), ("cook", "tester")][len(given) - 1])

    async with opened(planner(), on_edit=edit) as chat:
        submit(chat, "/plan Know it")
        await wait(asked(chat, ASKED))
        submit(chat, "e")
        await wait(asked(chat, "e edit it again   n no   then enter"))
        assert "step 'tell': role: 'cook' is unknown; there are: executor, " in said(chat)
        submit(chat, "e")
        await wait(asked(chat, ASKED))
        assert given[1].startswith("#! step 'tell': role: 'cook' is unknown")
        assert "\ntell  tester " in said(chat)
        submit(chat, "e")
        await wait(lambda: len(given) == 3 and asked(chat, ASKED)())
        assert said(chat).count("tell  tester ") == 2, "what is left as it was is shown again"
        submit(chat, "n")
        await wait(idle(chat))


@pytest.mark.parametrize("when", ["asked", "carried out"])
async def test_a_plan_is_stopped(opened: Opened, said: Said, wait: Wait, when: str) -> None:
    async with opened(planner(look=say("never ever").after(3000))) as chat:
        submit(chat, "/plan Know it")
        await wait(asked(chat, ASKED))
        if when == "carried out":
            submit(chat, "r")
            await wait(lambda: chat.active_children() and chat.active_children()[0][1].turn == 1)
        submit(chat, "/cancel")
        await wait(idle(chat))
        assert not chat.questions.open
        trees = list(chat.forest.trees.values())
        assert trees[-1].run.status == ("completed" if when == "asked" else "cancelled")
    assert said(chat).endswith("■ The plan was stopped.")


async def test_what_is_wrong_is_told(opened: Opened, said: Said, wait: Wait) -> None:
    async with opened(planner({**STEPS[1], "depends_on": ["b"]})) as chat:
        submit(chat, "/plan")
        assert said(chat).endswith("/plan needs a goal: /plan GOAL")
        submit(chat, "/plan Eat")
        await wait(idle(chat))
    assert "The plan cannot be run; 1 problem:\n- step 'tell': depends_on: 'b' is " in said(chat)


async def test_an_editor_that_is_not_there(
    opened: Opened, said: Said, wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(planner()) as chat:
        submit(chat, "/plan Know it")
        await wait(asked(chat, ASKED))
        submit(chat, "e")
        await wait(asked(chat, "e edit it again   n no   then enter"))
        assert "There is no terminal to open an editor in." in said(chat)
        submit(chat, "n")
        await wait(asked(chat, ASKED))
        submit(chat, "n")
        await wait(idle(chat))
    monkeypatch.setenv("VISUAL", "false")
    with pytest.raises(UsageError, match=r"^false: Editing failed\. Set EDITOR to one that works"):
        open_in_editor("")
