"""Every key that the help names, and the mouse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.errors import ProviderError
from retinue.interfaces.chat.app import ChatApp
from retinue.interfaces.chat.keys import AGENT_SCREEN_KEYS, KEYS, TREE_KEYS, KeyBinding
from retinue.interfaces.chat.panes import AgentTreePane
from retinue.interfaces.view.agent_tree import AgentRow
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say

Opening = Callable[..., AbstractAsyncContextManager[Any]]
TESTED: set[KeyBinding] = set()


Test = Callable[..., Awaitable[None]]


def about(table: tuple[KeyBinding, ...], *names: str) -> Callable[[Test], Test]:
    """Mark a test as one of these keys."""
    found = [key for key in table if key.keys in names]
    assert len(found) == len(names)
    TESTED.update(found)
    return lambda test: test


def crew(count: int = 9, gate: asyncio.Event | None = None) -> ScriptedModel:
    rules: dict[str, list[Step]] = {
        "Break": [fail(ProviderError("Refused."))],
        "Wait": [hold(gate or asyncio.Event(), say("Late."))],
        "Look": [call("list_dir", path="."), say("Well.")],
    }
    tasks = ["Break 0", "Break 1", *(f"Look {n}" for n in range(count - 3)), "Wait 9"]
    spawn = calls(*(call("spawn_agent", role="researcher", task=task) for task in tasks))
    return ScriptedModel({**rules, "": [spawn, say("Done.")]}, strict=False)


async def begun(shown: Any, wait: Any) -> None:
    """A run with one agent at work, two that failed, and the others done."""
    await shown.type("Go\n")
    await wait(
        lambda: len(shown.chat.failed_agents()) == 2 and len(shown.chat.active_children()) == 1
    )
    await shown.shows("Refused.", "1 running")


def tree(shown: Any) -> AgentTreePane:
    found: AgentTreePane = shown.app.query_one("#tree", AgentTreePane)
    return found


def row(shown: Any) -> AgentRow:
    """The agent under the cursor."""
    found = tree(shown).row
    assert found is not None
    return found


# The prompt


@about(KEYS, "enter")
async def test_sending_and_new_lines(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([say("ok")])) as shown:
        await shown.type("one")
        await shown.press("ctrl+j")
        await shown.type("two\\")
        await shown.press("enter")
        await shown.type("three")
        await shown.press("enter")
        await shown.shows("❯ one", "   two", "   three", " ok")


@about(KEYS, "up,down")
async def test_what_was_typed_before(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([])) as shown:
        await shown.type("/status\n/budget\ndraft")
        await shown.shows("sandbox", "max_turns")
        await shown.press("up")
        assert shown.field.text == "/budget"
        await shown.press("up", "up")
        assert shown.field.text == "/status"
        await shown.press("down", "down")
        assert shown.field.text == "draft"
        await shown.press("ctrl+j")
        await shown.type("more")
        await shown.press("up")
        assert shown.field.text == "draft\nmore", "in the middle of a text they move the cursor"


@about(KEYS, "tab")
async def test_taking_what_is_proposed(screen: Opening, project: Path) -> None:
    (project / "notes.txt").write_text("")
    async with screen(ScriptedModel([])) as shown:
        await shown.type("/mo")
        await shown.shows("❯ /model")
        await shown.press("down")
        await shown.shows("❯ /mode")
        await shown.press("tab")
        await shown.shows("agents only read")
        assert shown.field.text == "/mode "
        await shown.press("tab")
        assert shown.field.text == "/mode plan "
        await shown.press("ctrl+c")
        await shown.type("see @no")
        await shown.shows("❯ notes.txt")
        await shown.press("tab")
        assert shown.field.text == "see @notes.txt "
        await shown.press("ctrl+c")
        await shown.type("/he")
        await shown.shows("❯ /help")
        await shown.press("escape")
        assert "❯ /help" not in shown.text
        assert shown.field.text == "/he"


async def test_enter_finishes_a_command_before_it_sends_it(screen: Opening) -> None:
    async with screen(ScriptedModel([])) as shown:
        await shown.type("/stat")
        await shown.shows("❯ /status")
        await shown.press("enter")
        assert shown.field.text == "/status "
        await shown.press("enter")
        await shown.shows("sandbox")


@about(KEYS, "ctrl+underscore", "ctrl+z")
async def test_taking_back_is_not_on_the_key_that_goes_to_the_shell(screen: Opening) -> None:
    async with screen(ScriptedModel([])) as shown:
        await shown.type("half a line")
        await shown.press("ctrl+z")  # Here is no shell; in a real terminal it is tested too.
        assert shown.field.text == "half a line"
        await shown.press("ctrl+underscore")
        assert shown.field.text != "half a line"


async def test_pasting_many_lines(screen: Opening, wait: Any) -> None:
    from textual import events

    async with screen(ScriptedModel([say("ok")])) as shown:
        shown.field.post_message(events.Paste("first\nsecond\n" + "x" * 300))
        await wait(lambda: "second" in shown.field.text)
        assert "❯ first" not in shown.text, "nothing is sent by itself"
        await shown.press("enter")
        await shown.shows("❯ first", " ok")


# The whole screen


@about(KEYS, "escape")
async def test_stopping_by_escape(screen: Opening, wait: Any) -> None:
    async with screen(crew()) as shown:
        await begun(shown, wait)
        await shown.press("tab")
        assert tree(shown).has_focus
        await shown.press("escape")
        assert shown.field.has_focus
        assert shown.chat.current_run_id
        await shown.press("escape")
        await shown.shows("■ interrupted by the user", "/resume continues it")


@about(KEYS, "ctrl+c")
async def test_interrupting(screen: Opening, wait: Any) -> None:
    async with screen(crew()) as shown:
        await begun(shown, wait)
        await shown.type("half a line")
        await shown.press("ctrl+c")
        await shown.shows("■ interrupted by the user", "/resume continues it")
        assert shown.field.text == "half a line"
        await shown.press("ctrl+c")
        assert shown.field.text == ""
        await shown.press("ctrl+c")
        await shown.shows("ctrl+c again to quit")
        await shown.press("ctrl+c")
        await wait(lambda: not shown.app.is_running)


@about(KEYS, "ctrl+q")
async def test_leaving(screen: Opening, wait: Any) -> None:
    async with screen(crew()) as shown:
        await begun(shown, wait)
        await shown.press("ctrl+q")
        await wait(lambda: not shown.app.is_running)
        assert shown.chat.active_children() == []
        assert shown.chat.interrupted_run


@about(KEYS, "ctrl+o")
async def test_all_that_tools_did(screen: Opening, wait: Any) -> None:
    steps = [call("list_dir", path=".").using(1, 1), say("ok")]
    async with screen(ScriptedModel(steps)) as shown:
        await shown.type("Go\n")
        await shown.shows("· list_dir .", " ok")
        assert "[The directory is empty.]" not in shown.text
        await shown.press("ctrl+o")
        await shown.shows("[The directory is empty.]")
        await shown.press("ctrl+o")
        await wait(lambda: "[The directory is empty.]" not in shown.text)


@about(KEYS, "ctrl+t")
async def test_hiding_the_agents(screen: Opening, wait: Any) -> None:
    async with screen(crew()) as shown:
        await begun(shown, wait)
        await shown.press("ctrl+t")
        await wait(lambda: "agent   " not in shown.text)
        await shown.press("ctrl+t")
        await shown.shows("agent   ")


async def test_showing_the_only_agent(screen: Opening) -> None:
    async with screen(ScriptedModel([say("ok")])) as shown:
        await shown.type("Go\n")
        assert "● lead" not in await shown.shows(" ok")
        await shown.press("ctrl+t")
        await shown.shows("✓ lead")
        await shown.press("tab", "enter")
        await shown.shows("a0  root  completed")


@about(KEYS, "shift+tab")
async def test_the_next_mode(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([])) as shown:
        for mode in ("auto", "plan", "normal"):
            await shown.press("shift+tab")
            await shown.shows(f"scripted  {mode}")


@about(KEYS, "pageup", "pagedown")
async def test_scrolling(screen: Opening, wait: Any) -> None:
    text = "\n".join(f"line {n}" for n in range(60))
    async with screen(ScriptedModel([say(text)])) as shown:
        await shown.type("Go\n")
        await shown.shows("line 59")
        assert "line 20" not in shown.text
        await shown.press("pageup", "pageup")
        await shown.shows("line 20")
        shown.chat.conversation.add_notice("something new")
        await shown.pilot.pause(0.4)
        assert "line 20" in shown.text, "who reads above is left there"
        await shown.press("pagedown", "pagedown", "pagedown")
        await shown.shows("something new")


@about(KEYS, "f1")
async def test_help(screen: Opening) -> None:
    async with screen(ScriptedModel([]), size=(100, 90)) as shown:
        await shown.press("f1")
        text = await shown.shows("Commands", "Prefixes", "Keys")
        for key in (*KEYS, *TREE_KEYS, *AGENT_SCREEN_KEYS):
            assert f"  {key.label} " in text
            assert key.help.split(".")[0].split(";")[0] in text


@about(KEYS, "ctrl+g")
@about(AGENT_SCREEN_KEYS, "f,ctrl+g", "escape,q")
async def test_a_failure_is_found_and_its_reason_read_by_one_key(
    screen: Opening, wait: Any
) -> None:
    async with screen(crew()) as shown:
        await shown.press("ctrl+g")
        await shown.shows("No agent has failed.")
        await begun(shown, wait)
        await shown.press("ctrl+g")
        await shown.shows("a1  root/researcher.1  error", "Refused.")
        await shown.press("ctrl+g")
        await shown.shows("a2  root/researcher.2  error")
        await shown.press("f")
        await shown.shows("a1  root/researcher.1  error")
        await shown.press("q")
        await shown.shows("ctrl+g failure")


# The agents


@about(TREE_KEYS, "up,k", "down,j", "home", "end", "pageup", "pagedown")
async def test_walking_through_the_agents(screen: Opening, wait: Any) -> None:
    async with screen(crew(), size=(80, 20)) as shown:
        await begun(shown, wait)
        await shown.press("tab")
        await shown.press("home")
        assert row(shown).name == "lead"
        await shown.press("down", "j")
        assert row(shown).name == "researcher.2"
        await shown.press("up", "k")
        assert row(shown).name == "lead"
        await shown.press("end")
        assert (row(shown).name, row(shown).count) == ("researcher", 6)
        await shown.press("pageup")
        assert row(shown).name == "lead"
        await shown.press("pagedown")
        assert row(shown).name == "researcher"


@about(TREE_KEYS, "left", "right")
async def test_folding(screen: Opening, wait: Any) -> None:
    async with screen(crew(), size=(120, 30)) as shown:
        await begun(shown, wait)
        await shown.press("tab", "end", "right")
        await shown.shows("researcher.3", "researcher.8")
        await shown.press("right")
        assert row(shown).task.startswith("Look ")
        await shown.press("left")
        assert row(shown).count == 6
        await shown.press("left")
        await wait(lambda: "researcher.8" not in shown.text)
        await shown.press("left")
        assert row(shown).name == "lead"
        await shown.press("left")
        await shown.shows("2 failed below")


@about(TREE_KEYS, "enter")
async def test_all_about_one(screen: Opening, wait: Any) -> None:
    async with screen(crew(), size=(120, 30)) as shown:
        await begun(shown, wait)
        await shown.press("tab", "home", "down", "enter")
        await shown.shows("a1  root/researcher.1  error", "Contract")
        await shown.press("escape", "end", "enter")
        await shown.shows("researcher.8")


@about(TREE_KEYS, "x")
async def test_stopping_one(screen: Opening, wait: Any) -> None:
    async with screen(crew()) as shown:
        await begun(shown, wait)
        await shown.press("tab", "home", "down", "down", "down")
        assert row(shown).task == "Wait 9"
        await shown.press("x")
        await wait(lambda: not shown.chat.host.busy)
        await shown.shows("stopped by the user", "Done.")


# All about one agent


@about(AGENT_SCREEN_KEYS, "n", "p", "o,ctrl+o", "t", "up,k", "down,j", "pageup,b", "pagedown,space",
     "home", "end", "x")  # fmt: skip
async def test_the_keys_of_the_details(screen: Opening, wait: Any) -> None:
    long = "\n".join(f"line {n}" for n in range(40))
    model = ScriptedModel(
        {
            "Look": [call("read_file", path="long.txt"), say("Halfway there.").after(3000)],
            "": [call("spawn_agent", role="researcher", task="Look"), say("Done.")],
        },
        strict=False,
    )
    async with screen(model, size=(80, 24)) as shown:
        (shown.chat.directory / "long.txt").write_text(long)
        await shown.type("Go\n")
        await wait(
            lambda: shown.chat.active_children() and shown.chat.active_children()[0][1].turn == 2
        )
        await shown.shows("waiting for 1 of 1 agent")
        await shown.press("tab", "home", "enter")
        await shown.shows("a0  root  running")
        await shown.press("n")
        await shown.shows("a1  root/researcher.1  running")
        await shown.press("p")
        await shown.shows("a0  root  running")
        await shown.press("p")
        await shown.shows("a1  root/researcher.1  running", "→ read_file long.txt")
        await shown.press("end")
        await shown.shows("Receipts", "… 32 more lines", "Halfway")
        assert "there" not in shown.text, "it is still being said"
        await shown.press("home")
        await shown.shows("a1  root/researcher.1  running")
        await shown.press("t")
        await wait(lambda: "root/researcher.1" not in shown.text)
        await shown.press("o", "end")
        await shown.shows("line 39")
        await shown.press("up", "k")
        await wait(lambda: "✓ read_file" not in shown.text)
        await shown.press("down", "j")
        await shown.shows("✓ read_file")
        await shown.press("b", "pageup", "b", "pageup")
        await shown.shows("a1  root/researcher.1  running")
        await shown.press("space", "pagedown", "space", "pagedown")
        await shown.shows("✓ read_file")
        await shown.press("x")
        await wait(lambda: not shown.chat.active_children())
        await shown.press("home")
        await shown.shows("a1  root/researcher.1  cancelled", "stopped by the user")


# The mouse


async def test_the_mouse(screen: Opening, wait: Any) -> None:
    async with screen(crew(), size=(120, 30)) as shown:
        await begun(shown, wait)
        await shown.pilot.click("#tree", offset=(5, 1))
        assert row(shown).name == "researcher.1"
        assert tree(shown).has_focus
        await shown.pilot.click("#tree", offset=(5, 1), times=2)
        await shown.shows("a1  root/researcher.1  error")
        await shown.press("escape")
        await shown.pilot.click("#input-field")
        assert shown.field.has_focus


async def test_clicking_on_calls_shows_them_whole(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([call("list_dir", path="."), say("ok")])) as shown:
        await shown.type("Go\n")
        text = await shown.shows("· list_dir .", " ok")
        line = text.split("\n").index("   · list_dir .")
        await shown.pilot.click("#conversation", offset=(5, line - 1))
        await shown.shows("[The directory is empty.]")


def test_every_key_has_been_tested() -> None:
    assert {*KEYS, *TREE_KEYS, *AGENT_SCREEN_KEYS} == TESTED


@pytest.mark.parametrize("colour", [True, False])
async def test_without_colour(
    new: Any, monkeypatch: pytest.MonkeyPatch, wait: Any, colour: bool
) -> None:
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    app = ChatApp(new(ScriptedModel([fail(ProviderError("Refused."))])))
    async with app.run_test(size=(80, 24)) as pilot:
        await wait(lambda: app.chat.host.ready)
        await pilot.press("G", "o", "enter")
        await wait(lambda: app.chat.session)
        await pilot.pause(0.4)
        svg = app.export_screenshot()
        assert ("#cc555a" in svg) is colour, "red is what failed"
        await pilot.press("ctrl+q")
        await wait(lambda: not app.is_running)
