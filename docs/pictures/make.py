"""Makes the pictures of the chat in this folder: real screens of a real run, with a scripted model;
and the tables of docs/chat.md.

    script/pictures

They come out the same every time, so that a difference in one of them is a difference in the chat.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from textual.pilot import Pilot

from retinue.config.environment import Environment
from retinue.errors import ProviderError
from retinue.interfaces.chat.app import ChatApp
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.input_box import Field
from retinue.interfaces.chat.slash_commands import help_tables, submit
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say
from retinue.testing.clock import FakeClock

HERE = Path(__file__).parent
HELP = "<!-- What /help tells; script/pictures writes it. -->\n"
HOME = Path("/tmp/retinue-pictures")
LINKS = '''"""The links that were made."""

LINKS: dict[str, str] = {}


def add(code: str, url: str) -> None:
    LINKS[code] = url
'''


class Studio:
    """A project, a clock and a model that waits for `go_on` where the script says so."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.clock = FakeClock()
        self.project = HOME / "snip"

    def set_up(self) -> None:
        shutil.rmtree(HOME, ignore_errors=True)
        (self.project / "snip").mkdir(parents=True)
        (self.project / "snip" / "links.py").write_text(LINKS)

    def model(self) -> ScriptedModel:
        gate = self.gate
        read = call("read_file", path="snip/links.py").using(1_840, 31)
        rules: dict[str, list[Step]] = {
            "How are links stored": [
                read,
                say("In a dict, in `snip/links.py`; nothing is written to disk.").using(2_105, 48),
            ],
            "Review the error": [read, hold(gate, say("Two routes answer 200.").using(2_300, 55))],
            "Which tests": [
                call("search_files", pattern="def test_").using(1_700, 28),
                hold(gate, say("None for expiry.").using(1_950, 30)),
            ],
            "Look up the": [
                call("list_dir", path=".").using(1_500, 20),
                fail(ProviderError("401: the key of endpoint big-box:8080 was refused")),
            ],
            "Add an expiry": [
                call(
                    "edit_file",
                    path="snip/links.py",
                    old_text="LINKS: dict[str, str] = {}",
                    new_text="LINKS: dict[str, tuple[str, float]] = {}\nLIFETIME_S = 86_400.0",
                ).using(3_100, 92),
                say("Links now live for a day.").using(3_400, 40),
            ],
            "": [
                calls(
                    call("spawn_agent", role="researcher", task="How are links stored?"),
                    call("spawn_agent", role="reviewer", task="Review the error handling"),
                    call("spawn_agent", role="tester", task="Which tests are missing?"),
                    call("spawn_agent", role="researcher", task="Look up the rate limits"),
                    text=(
                        "I look at it from four sides at once:\n\n"
                        "1. how links are **stored**\n2. the error handling\n"
                        "3. the tests\n4. the rate limits of the `big-box` endpoint"
                    ),
                ).using(2_400, 310),
                say(
                    "## What I found\n\n- Links are kept in memory: a restart loses them.\n"
                    "- Two routes answer `200` where they should say `404`.\n"
                    "- Nothing tests that links expire.\n\n"
                    "The rate limits could not be looked up: the key was refused."
                ).using(3_900, 160),
            ],
        }
        return ScriptedModel(rules, name="openai:qwen3-coder@127.0.0.1:8080", strict=False)


class Sitting:
    def __init__(self, chat: Chat, pilot: Pilot[None], studio: Studio) -> None:
        self.chat = chat
        self.pilot = pilot
        self.studio = studio

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self.pilot.pause(0.02)

    async def picture(self, name: str) -> None:
        picture, before = "", None
        while picture != before:
            await self.pilot.pause(0.5)
            before, picture = picture, self.pilot.app.export_screenshot(title="retinue")
        # Whoever looks at a picture should not have to fetch a font from somewhere for it.
        picture = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)
        # What differs every time: Textual's names of classes, and a hash over the id of the run.
        picture = re.sub(r"terminal-\d+", "terminal", picture)
        picture = re.sub(r">[0-9a-f]{16}<", ">6a1f03d97be45c28<", picture)
        (HERE / f"{name}.svg").write_text(picture)


async def sit(size: tuple[int, int], scene: Callable[[Sitting], Awaitable[None]]) -> None:
    studio = Studio()
    studio.set_up()
    chat = Chat(
        studio.project,
        model=studio.model(),
        clock=studio.clock,
        environment=Environment(variables={"HOME": str(HOME)}),
        max_concurrent=4,
    )
    app = ChatApp(chat)
    async with app.run_test(size=size) as pilot:
        app.query_one(Field).cursor_blink = False
        sitting = Sitting(chat, pilot, studio)
        await sitting.until(lambda: chat.engine.ready)
        await scene(sitting)
        studio.gate.set()
        app.action_leave()
        await sitting.until(lambda: not app.is_running)


async def send(sitting: Sitting) -> None:
    submit(sitting.chat, "What is wrong with this project?")
    await sitting.until(
        lambda: [a.turn for _, a in sitting.chat.at_work() if not a.pending] == [2, 2]
    )
    sitting.studio.clock.advance(12.4)


async def working(sitting: Sitting) -> None:
    await send(sitting)
    await sitting.picture("working")


async def done(sitting: Sitting) -> None:
    await send(sitting)
    sitting.studio.gate.set()
    await sitting.until(lambda: not sitting.chat.engine.busy)
    await sitting.picture("done")


async def failure(sitting: Sitting) -> None:
    await send(sitting)
    await sitting.pilot.press("ctrl+g")
    await sitting.picture("failure")


async def question(sitting: Sitting) -> None:
    submit(sitting.chat, "Add an expiry to links")
    await sitting.until(lambda: sitting.chat.questions.open)
    sitting.studio.clock.advance(3.1)
    await sitting.picture("question")


def write_help() -> None:
    """Put what /help tells at the end of the page about the chat."""
    page = HERE.parent / "chat.md"
    text, mark, _ = page.read_text().partition(HELP)
    for title, rows in help_tables().items():
        mark += f"\n## {title}\n\n| | |\n|---|---|\n"
        mark += "".join(f"| `{what}` | {told} |\n" for what, told in rows)
    page.write_text(text + mark)


async def main() -> None:
    write_help()
    await sit((120, 32), working)
    await sit((120, 36), done)
    await sit((100, 30), failure)
    await sit((100, 22), question)
    shutil.rmtree(HOME)


if __name__ == "__main__":
    asyncio.run(main())
