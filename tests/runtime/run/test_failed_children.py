"""A failed child of a model's run counts, unless the lead settles it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from retinue.domain.messages import UserMessage
from retinue.errors import ProviderError
from retinue.models.scripted.model import ScriptedModel, Step, call, fail, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Settings = Callable[[str], None]
ROOT = "at work in the user's project"
LOOK = call("spawn_agent", role="researcher", task="Look around.")
BROKEN: list[Step] = [fail(ProviderError("The server said no."))]


def reminders(model: ScriptedModel) -> list[str]:
    messages = [m for m in model.requests[-1].messages if isinstance(m, UserMessage)]
    return [m.content for m in messages[1:]]


async def test_answer_to_the_reminder_settles_a_failure(opened: Opened) -> None:
    done = [say("All done."), say("It does not matter: I know the answer.")]
    model = ScriptedModel({ROOT: [LOOK, *done], "Look around": BROKEN})
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.ok
    assert result.response == "It does not matter: I know the answer."
    assert reminders(model) == [
        "a1 failed: The server said no.\nContinue it or replace it (spawn_agent with continues or"
        " replaces), or answer again and say why it no longer matters."
    ]


async def test_the_same_answer_again_settles_nothing(opened: Opened) -> None:
    model = ScriptedModel(
        {ROOT: [LOOK, say("All done."), say("All done.\n")], "Look around": BROKEN}
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert (result.status, result.error) == ("error", "incomplete: a1 failed")
    assert result.response == "All done.\n"


async def test_failure_after_the_reminder_makes_the_run_incomplete(opened: Opened) -> None:
    again = call("spawn_agent", role="researcher", task="Look again.", replaces="a1")
    root = [LOOK, say("All done."), again, say("Well.")]
    model = ScriptedModel({ROOT: root, "Look around": BROKEN, "Look again": BROKEN})
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert (result.status, result.error) == ("error", "incomplete: a2 failed")
    assert result.response == "Well."
    assert [(f.agent_id, f.status) for f in result.failures] == [("a2", "error")]


async def test_replacement_settles_a_failure_without_a_reminder(opened: Opened) -> None:
    again = call("spawn_agent", role="researcher", task="Look again.", replaces="[a1]")
    steps = [LOOK, again, say("All done.")]
    script: dict[str, list[Step]] = {
        ROOT: [*steps],
        "Look around": BROKEN,
        "Look again": [say("Seen.")],
    }
    async with opened(model=ScriptedModel(script)) as rt:
        assert (await rt.run("Go.")).ok


async def test_unknown_child_cannot_be_replaced(opened: Opened) -> None:
    other = call("spawn_agent", role="researcher", task="Look.", replaces="a7")
    model = ScriptedModel([other, say("All done.")])
    async with opened(model=model) as rt:
        await rt.run("Go.")
    answer = model.requests[-1].messages[-1].content
    assert answer == "[ERROR] You have no child 'a7'; you have: none yet."


async def test_setting_ignores_failures(opened: Opened, settings: Settings) -> None:
    settings('on_child_failure = "ignore"\n')
    model = ScriptedModel({ROOT: [LOOK, say("All done.")], "Look around": BROKEN})
    async with opened(model=model) as rt:
        assert (await rt.run("Go.")).ok


async def test_no_words_settle_that_a_child_could_not_write(opened: Opened) -> None:
    write = call("spawn_agent", role="executor", task="Write a.")
    model = ScriptedModel({ROOT: [write, say("All done.")], "Write a": [say("I could not.")]})
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert (result.status, result.error) == (
        "error",
        "incomplete: a1 could not write: needs --mode auto",
    )
    assert [failure.status for failure in result.failures] == ["rejected"]


async def test_cancelled_child_is_no_failure(opened: Opened) -> None:
    start = call("spawn_agent", role="researcher", task="Look around.", background=True)
    root = [start, call("agent_cancel", id="a1"), say("All done.")]
    model = ScriptedModel(
        {ROOT: root, "Look around": [say("Seen.")]},
    )
    async with opened(model=model) as rt:
        assert (await rt.run("Go.")).ok
