"""Screens, compared with stored text. RETINUE_UPDATE_SCREENS=1 updates them; review the diff."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.errors import ProviderError
from retinue.interfaces.chat.chat import Chat
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say

Opening = Callable[..., AbstractAsyncContextManager[Any]]
SCREENS = Path(__file__).parent / "screens"
UPDATE = "RETINUE_UPDATE_SCREENS" in os.environ
SMALL, MIDDLE, LARGE = (80, 24), (120, 40), (200, 60)
LARGER = [pytest.param(size, marks=pytest.mark.slow) for size in (MIDDLE, LARGE)]


@pytest.fixture
def project() -> Iterator[Path]:
    # The screen shows its path, so the path always needs the same length.
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as path:
        yield Path(path)


async def compare(name: str, shown: Any) -> None:
    """Wait until the screen equals the stored one, apart from parts that always differ."""
    path = SCREENS / f"{name}.txt"
    if UPDATE:
        await shown.rest()
        path.write_text(cleaned(shown) + "\n")
    expected = path.read_text()
    end = time.monotonic() + 20
    while cleaned(shown) + "\n" != expected and time.monotonic() < end:
        await shown.pilot.pause(0.05)
    assert cleaned(shown) + "\n" == expected


def cleaned(shown: Any) -> str:
    text = shown.text.replace(str(shown.chat.directory), "/tmp/project01")
    text = re.sub(r"(?m)^( sha256 +)[0-9a-f]+", r"\1…", text)
    # Remove the ends of scroll bars.
    return re.sub(r"(?m) +$", "", re.sub("[▁▂▃▄▅▆▇]", " ", text))


def spawning_model(count: int, gate: asyncio.Event) -> ScriptedModel:
    """A model that spawns `count` agents: every fifth fails, every third keeps running."""
    look = call("list_dir", path=".").using(400, 38)
    rules: dict[str, list[Step]] = {
        "Break": [look, fail(ProviderError("403: the key is not valid."))],
        "Wait": [look, hold(gate, say("Late.").using(460, 3))],
        "Look": [look, say("All is **well** in this part.").using(460, 9)],
    }
    kinds = ["Break" if n % 5 == 3 else "Wait" if n % 3 == 1 else "Look" for n in range(count)]
    spawn = calls(
        *(
            call("spawn_agent", role="researcher", task=f"{kind} at part {n} of the project")
            for n, kind in enumerate(kinds)
        ),
        text=f"I send {count} researchers, one for each part:\n\n- `src` first\n- then the tests",
    ).using(1_200, 40 * count)
    report = "# Report\n\nMost parts are well.\n\n```\n$ make\nok\n```"
    # A reminder of the failed agents follows the report.
    rules[""] = [spawn, say(report).using(2_100, 80), say("Some parts failed.").using(2_300, 5)]
    return ScriptedModel(rules, strict=False)


def settled(chat: Chat, count: int) -> Callable[[], bool]:
    """Whether only the held agents still run."""

    def check() -> bool:
        agents = [a for _, a in chat.agents() if a.parent_id]
        open_ones = [a for a in agents if a.closed_at is None]
        return len(agents) == count and all(a.turn == 2 and not a.pending_calls for a in open_ones)

    return check


@pytest.mark.parametrize(
    ("count", "size"),
    [
        (5, SMALL),
        pytest.param(5, MIDDLE, marks=pytest.mark.slow),
        (50, MIDDLE),
        pytest.param(50, LARGE, marks=pytest.mark.slow),
        pytest.param(500, SMALL, marks=pytest.mark.slow),
        (500, LARGE),
    ],
)
async def test_screens_with_many_agents(
    screen: Opening, wait: Any, size: tuple[int, int], count: int
) -> None:
    gate = asyncio.Event()
    # Room for 500 reports: a script cannot go on after a summary.
    limits = {"max_tool_calls": 1_000, "max_context_tokens": 200_000}
    options = {"limits": limits, "max_concurrent": 1_000}
    async with screen(spawning_model(count, gate), size=size, **options) as shown:
        await shown.type("Check all parts")
        await shown.press("enter")
        if count > 80:  # The circuit breaker asks first.
            await wait(lambda: shown.chat.questions.open)
            await shown.type("y\n")
        await wait(settled(shown.chat, count))
        shown.chat.clock.advance(12.4)
        await shown.shows("12.4s")
        await compare(f"working-{count}-{size[0]}x{size[1]}", shown)
        gate.set()
        await wait(lambda: not shown.chat.host.busy)
        await shown.shows("Some parts failed.")
        await compare(f"done-{count}-{size[0]}x{size[1]}", shown)


@pytest.mark.parametrize("size", [SMALL, MIDDLE])
async def test_no_frame_has_the_wrong_width(
    screen: Opening, wait: Any, size: tuple[int, int]
) -> None:
    gate = asyncio.Event()
    gate.set()
    async with screen(spawning_model(5, gate), size=size) as shown:
        frames: list[str] = []
        laid_out = shown.app.screen.screen_layout_refresh_signal
        laid_out.subscribe(shown.app, lambda _: frames.append(shown.text), immediate=True)
        await shown.type("Check all parts\n")
        await wait(lambda: shown.chat.session)
        await shown.shows("Some parts failed.")
    headings = [line for frame in frames for line in frame.split("\n") if " agent " in line + " "]
    assert headings
    assert [line for line in headings if not line.endswith(" time")] == []


@pytest.mark.parametrize("size", [SMALL, *LARGER])
async def test_failure_screen(screen: Opening, wait: Any, size: tuple[int, int]) -> None:
    gate = asyncio.Event()
    gate.set()
    async with screen(spawning_model(5, gate), size=size) as shown:
        await shown.type("Check all parts")
        await shown.press("enter")
        await wait(lambda: shown.chat.session)
        await shown.press("ctrl+g")
        await shown.shows("403: the key is not valid.", "Transcript")
        await compare(f"failure-{size[0]}x{size[1]}", shown)


@pytest.mark.parametrize("size", [SMALL, LARGER[0]])
async def test_question_screen(screen: Opening, wait: Any, size: tuple[int, int]) -> None:
    edit = call("edit_file", path="a.py", old_text="x = 1\n", new_text="x = 2\ny = 3\n")
    edit = edit.using(1_200, 50)
    model = ScriptedModel([edit, say("ok")], strict=False)
    async with screen(model, size=size) as shown:
        (shown.chat.directory / "a.py").write_text("# A\n\nx = 1\n")
        await shown.type("Change it")
        await shown.press("enter")
        await shown.shows("The agent asks to change a file:", "y yes")
        await compare(f"question-{size[0]}x{size[1]}", shown)


@pytest.mark.parametrize("size", [SMALL, LARGER[0]])
async def test_help_screen(screen: Opening, size: tuple[int, int]) -> None:
    async with screen(ScriptedModel([]), size=size) as shown:
        await shown.press("f1")
        await shown.shows("Commands")
        await compare(f"help-{size[0]}x{size[1]}", shown)


async def test_first_screen_and_completions(screen: Opening) -> None:
    async with screen(ScriptedModel([])) as shown:
        await compare("first", shown)
        await shown.type("/m")
        await compare("completions", shown)


async def test_first_screen_without_a_model(screen: Opening) -> None:
    async with screen(None) as shown:
        await shown.shows("No model")
