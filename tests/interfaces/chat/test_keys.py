"""Every key of the help has a test here; also the mouse and colours."""

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
from retinue.interfaces.chat.slash_commands import submit
from retinue.interfaces.view.agent_tree import TreeRow
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say

Opening = Callable[..., AbstractAsyncContextManager[Any]]
TESTED: set[KeyBinding] = set()


Test = Callable[..., Awaitable[None]]


def covers(table: tuple[KeyBinding, ...], *names: str) -> Callable[[Test], Test]:
    """Register a test for these keys."""
    found = [key for key in table if key.keys in names]
    assert len(found) == len(names)
    TESTED.update(found)
    return lambda test: test


def spawning_model(count: int = 9, gate: asyncio.Event | None = None) -> ScriptedModel:
    rules: dict[str, list[Step]] = {
        "Break": [fail(ProviderError("Refused."))],
        "Wait": [hold(gate or asyncio.Event(), say("Late."))],
        "Look": [call("list_dir", path="."), say("Well.")],
    }
    tasks = ["Break 0", "Break 1", *(f"Look {n}" for n in range(count - 3)), "Wait 9"]
    spawn = calls(*(call("spawn_agent", role="researcher", task=task) for task in tasks))
    return ScriptedModel({**rules, "": [spawn, say("Done.")]}, strict=False)


async def start_run(shown: Any, wait: Any) -> None:
    """Start a run with one running agent, two failed ones, and the others done."""
    await shown.type("Go\n")
    await wait(
        lambda: len(shown.chat.failed_agents()) == 2 and len(shown.chat.active_children()) == 1
    )
    await shown.shows("Refused.", "1 running")


def tree(shown: Any) -> AgentTreePane:
    found: AgentTreePane = shown.app.query_one("#tree", AgentTreePane)
    return found


def selected(shown: Any) -> TreeRow:
    """The row under the cursor."""
    found = tree(shown).row
    assert found is not None
    return found


# Input


@covers(KEYS, "enter")
async def test_enter_sends_and_ctrl_j_adds_a_line(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([say("ok")])) as shown:
        await shown.type("one")
        await shown.press("ctrl+j")
        await shown.type("two\\")
        await shown.press("enter")
        await shown.type("three")
        await shown.press("enter")
        await shown.shows("❯ one", "   two", "   three", " ok")


@covers(KEYS, "up,down")
async def test_up_and_down_browse_the_history(screen: Opening, wait: Any) -> None:
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
        assert shown.field.text == "draft\nmore", "inside a text, up moves the cursor"


@covers(KEYS, "tab")
async def test_tab_accepts_a_completion(screen: Opening, project: Path) -> None:
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


@covers(KEYS, "ctrl+underscore", "ctrl+z")
async def test_undo_is_not_on_ctrl_z(screen: Opening) -> None:
    async with screen(ScriptedModel([])) as shown:
        await shown.type("half a line")
        await shown.press("ctrl+z")  # There is no shell here; test_terminal.py covers it.
        assert shown.field.text == "half a line"
        await shown.press("ctrl+underscore")
        assert shown.field.text != "half a line"


@covers(KEYS, "f4")
async def test_without_a_terminal_no_editor_opens(screen: Opening) -> None:
    """test_terminal.py has one."""
    async with screen(ScriptedModel([])) as shown:
        await shown.type("half a line")
        await shown.press("f4")
        await shown.shows("This terminal cannot open an editor.")
        assert shown.field.text == "half a line"


# Everywhere


@covers(KEYS, "escape")
async def test_escape_interrupts(screen: Opening, wait: Any) -> None:
    async with screen(spawning_model()) as shown:
        await start_run(shown, wait)
        await shown.press("tab")
        assert tree(shown).has_focus
        await shown.press("escape")
        assert shown.field.has_focus
        assert shown.chat.current_run_id
        await shown.press("escape")
        await shown.shows("■ interrupted by the user", "/resume continues it")


@covers(KEYS, "ctrl+c")
async def test_ctrl_c_interrupts_clears_and_quits(screen: Opening, wait: Any) -> None:
    async with screen(spawning_model()) as shown:
        await start_run(shown, wait)
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


@covers(KEYS, "ctrl+q")
async def test_ctrl_q_quits(screen: Opening, wait: Any) -> None:
    async with screen(spawning_model()) as shown:
        await start_run(shown, wait)
        await shown.press("ctrl+q")
        await wait(lambda: not shown.app.is_running)
        assert shown.chat.active_children() == []
        assert shown.chat.interrupted_run


@covers(KEYS, "ctrl+o")
async def test_ctrl_o_shows_full_tool_output(screen: Opening, wait: Any) -> None:
    steps = [call("list_dir", path=".").using(1, 1), say("ok")]
    async with screen(ScriptedModel(steps)) as shown:
        await shown.type("Go\n")
        await shown.shows("· list_dir .", " ok")
        assert "[The directory is empty.]" not in shown.text
        await shown.press("ctrl+o")
        await shown.shows("[The directory is empty.]")
        await shown.press("ctrl+o")
        await wait(lambda: "[The directory is empty.]" not in shown.text)


@covers(KEYS, "ctrl+t")
async def test_ctrl_t_hides_agents(screen: Opening, wait: Any) -> None:
    async with screen(spawning_model()) as shown:
        await start_run(shown, wait)
        await shown.press("ctrl+t")
        await wait(lambda: "agent   " not in shown.text)
        await shown.press("ctrl+t")
        await shown.shows("agent   ")


async def test_ctrl_t_shows_the_only_agent(screen: Opening) -> None:
    async with screen(ScriptedModel([say("ok")])) as shown:
        await shown.type("Go\n")
        assert "● lead" not in await shown.shows(" ok")
        await shown.press("ctrl+t")
        await shown.shows("✓ lead")
        await shown.press("tab", "enter")
        await shown.shows("a0  root  completed")


@covers(KEYS, "shift+tab")
async def test_shift_tab_changes_the_mode(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([])) as shown:
        for mode in ("auto", "plan", "normal"):
            await shown.press("shift+tab")
            await shown.shows(f"scripted  {mode}")


@covers(KEYS, "pageup", "pagedown")
async def test_page_keys_scroll(screen: Opening, wait: Any) -> None:
    text = "\n".join(f"line {n}" for n in range(60))
    async with screen(ScriptedModel([say(text)])) as shown:
        await shown.type("Go\n")
        await shown.shows("line 59")
        assert "line 20" not in shown.text
        await shown.press("pageup", "pageup")
        await shown.shows("line 20")
        shown.chat.conversation.add_notice("something new")
        await shown.pilot.pause(0.4)
        assert "line 20" in shown.text, "the view does not jump while the user reads above"
        await shown.press("pagedown", "pagedown", "pagedown")
        await shown.shows("something new")


@covers(KEYS, "f1")
async def test_help(screen: Opening) -> None:
    async with screen(ScriptedModel([]), size=(100, 90)) as shown:
        await shown.press("f1")
        text = await shown.shows("Commands", "Prefixes", "Keys")
        for key in (*KEYS, *TREE_KEYS, *AGENT_SCREEN_KEYS):
            assert f"  {key.label} " in text
            assert key.help.split(".")[0].split(";")[0] in text


@covers(KEYS, "ctrl+g")
@covers(AGENT_SCREEN_KEYS, "f,ctrl+g", "escape,q")
async def test_ctrl_g_shows_failures(screen: Opening, wait: Any) -> None:
    async with screen(spawning_model()) as shown:
        await shown.press("ctrl+g")
        await shown.shows("No agent has failed.")
        await start_run(shown, wait)
        await shown.press("ctrl+g")
        await shown.shows("a1  root/researcher.1  error", "Refused.")
        await shown.press("ctrl+g")
        await shown.shows("a2  root/researcher.2  error")
        await shown.press("f")
        await shown.shows("a1  root/researcher.1  error")
        await shown.press("q")
        await shown.shows("ctrl+g failure")


# Agent tree


@covers(TREE_KEYS, "up,k", "down,j", "home", "end", "pageup", "pagedown")
async def test_moving_in_the_tree(screen: Opening, wait: Any) -> None:
    async with screen(spawning_model(), size=(80, 20)) as shown:
        await start_run(shown, wait)
        await shown.press("tab")
        await shown.press("home")
        assert selected(shown).name == "lead"
        await shown.press("down", "j")
        assert selected(shown).name == "researcher.2"
        await shown.press("up", "k")
        assert selected(shown).name == "lead"
        await shown.press("end")
        assert (selected(shown).name, selected(shown).count) == ("researcher", 6)
        await shown.press("pageup")
        assert selected(shown).name == "lead"
        await shown.press("pagedown")
        assert selected(shown).name == "researcher"


@covers(TREE_KEYS, "left", "right")
async def test_expanding_and_collapsing(screen: Opening, wait: Any) -> None:
    async with screen(spawning_model(), size=(120, 30)) as shown:
        await start_run(shown, wait)
        await shown.press("tab", "end", "right")
        await shown.shows("Look 0", "Look 5")
        await shown.press("right")
        assert selected(shown).task.startswith("Look ")
        await shown.press("left")
        assert selected(shown).count == 6
        await shown.press("left")
        await wait(lambda: "Look 5" not in shown.text)
        await shown.press("left")
        assert selected(shown).name == "lead"
        await shown.press("left")
        await shown.shows("2 failed below")


@covers(TREE_KEYS, "enter")
async def test_enter_shows_details(screen: Opening, wait: Any) -> None:
    async with screen(spawning_model(), size=(120, 30)) as shown:
        await start_run(shown, wait)
        await shown.press("tab", "home", "down", "enter")
        await shown.shows("a1  root/researcher.1  error", "Contract")
        await shown.press("escape", "end", "enter")
        await shown.shows("Look 5")


@covers(TREE_KEYS, "x")
async def test_x_cancels_an_agent(screen: Opening, wait: Any) -> None:
    async with screen(spawning_model()) as shown:
        await start_run(shown, wait)
        await shown.press("tab", "home", "down", "down", "down")
        assert selected(shown).task == "Wait 9"
        await shown.press("x")
        await wait(lambda: not shown.chat.host.busy)
        await shown.shows("stopped by the user", "Done.")


# Agent screen


@covers(AGENT_SCREEN_KEYS, "n", "p", "o,ctrl+o", "t", "up,k", "down,j", "pageup,b",
        "pagedown,space", "home", "end", "x")  # fmt: skip
async def test_keys_of_the_agent_screen(screen: Opening, wait: Any) -> None:
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
        await shown.shows("waiting for 1 agent")
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
        assert "there" not in shown.text, "the reply is still streaming"
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


# Mouse and colours


async def test_mouse_in_the_tree(screen: Opening, wait: Any) -> None:
    async with screen(spawning_model(), size=(120, 30)) as shown:
        await start_run(shown, wait)
        await shown.rest()  # A row that comes into the tree meanwhile would move the others.
        await shown.pilot.click("#tree", offset=(5, 1))
        assert selected(shown).name == "researcher.1"
        assert tree(shown).has_focus
        await shown.pilot.click("#tree", offset=(5, 1), times=2)
        await shown.shows("a1  root/researcher.1  error")
        await shown.press("escape")
        await shown.pilot.click("#input-field")
        assert shown.field.has_focus


@covers(KEYS, "ctrl+r", "ctrl+p")
async def test_history_is_searched_and_a_command_chosen(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([say("ok"), say("ok")])) as shown:
        for text in ("Fix the parser", "Write tests"):
            submit(shown.chat, text)
            await wait(lambda: shown.chat.current_run_id is None)
        await shown.press("ctrl+r")
        await shown.shows("History", "Write tests", "Fix the parser")
        await shown.press("p", "a", "r", "s", "enter")
        await wait(lambda: shown.field.text == "Fix the parser")
        await shown.press("ctrl+p")
        await shown.shows("Commands", "/undo")
        await shown.press("b", "u", "d", "g", "enter")
        await wait(lambda: shown.field.text == "/budget ")


def test_every_key_has_a_test() -> None:
    assert {*KEYS, *TREE_KEYS, *AGENT_SCREEN_KEYS} == TESTED


@pytest.mark.parametrize("colour", [True, False])
async def test_no_color(new: Any, monkeypatch: pytest.MonkeyPatch, wait: Any, colour: bool) -> None:
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    app = ChatApp(new(ScriptedModel([fail(ProviderError("Refused."))])))
    async with app.run_test(size=(80, 24)) as pilot:
        await wait(lambda: app.chat.host.ready)
        await pilot.press("G", "o", "enter")
        await wait(lambda: app.chat.session)
        await pilot.pause(0.4)
        svg = app.export_screenshot()
        assert ("#cc555a" in svg) is colour, "failures are red"
        await pilot.press("ctrl+q")
        await wait(lambda: not app.is_running)
