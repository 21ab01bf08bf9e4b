"""Makes the pictures of the chat in this folder, and the help tables in docs/chat.md.

    script/pictures
    script/pictures FOLDER    only those of first tasks, into FOLDER

The pictures are screens of a real run with a scripted model. They are the same every time, so a
difference in a picture is a difference in the chat.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from textual.pilot import Pilot

from retinue.config.environment import Environment
from retinue.config.settings import Theme
from retinue.errors import ProviderError
from retinue.interfaces.chat.app import ChatApp
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.input_box import InputField
from retinue.interfaces.chat.slash_commands import help_tables, submit
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say
from retinue.testing.clock import FakeClock

HERE = Path(__file__).parent
HELP = "<!-- script/pictures writes everything below from the tables of /help. -->\n"
HOME = Path("/tmp/retinue-pictures")
RECTANGLE = re.compile(
    r'<rect fill="([^"]+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="24\.65"'
    r' shape-rendering="crispEdges"/>\n?'
)
TEST = """from snip.links import LINKS, add


def test_add() -> None:
    add("a", "https://example.com")
    assert LINKS["a"] == "https://example.com"
"""
LINKS = '''"""The links that were made."""

LINKS: dict[str, str] = {}


def add(code: str, url: str) -> None:
    LINKS[code] = url
'''


class DemoProject:
    """A project, a clock, and a scripted model whose held replies wait for `gate`."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.clock = FakeClock()
        self.directory = HOME / "snip"

    def set_up(self) -> None:
        shutil.rmtree(HOME, ignore_errors=True)
        (self.directory / "snip").mkdir(parents=True)
        (self.directory / "snip" / "links.py").write_text(LINKS)

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
            "Inspect 7": [fail(ProviderError("403: the key of big-box:8080 has expired"))],
            "Inspect": [say("Nothing strange here.").using(900, 12)],
            "Look at all": [
                calls(
                    *(
                        call("spawn_agent", role="researcher", task=f"Inspect {n}: a module")
                        for n in range(1, 31)
                    ),
                    text="I send 30 researchers, one for each module.",
                ).using(2_400, 900),
                hold(gate, say("29 modules are fine. One could not be read.").using(5_100, 40)),
            ],
            "Write a test": [
                call("write_file", path="tests/test_links.py", content=TEST).using(1_900, 80),
                say("Written.").using(2_000, 10),
            ],
            "Let an executor": [
                call("spawn_agent", role="executor", task="Write a test").using(1_500, 60),
                say("The executor wrote `tests/test_links.py`.").using(1_700, 20),
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
                # It answers the reminder of the failed researcher.
                say("I did not try again: that needs a new key.").using(4_100, 20),
            ],
        }
        return ScriptedModel(rules, name="openai:qwen3-coder@127.0.0.1:8080", strict=False)


class OpenChat:
    """A chat on a screen of a fixed size."""

    def __init__(self, chat: Chat, pilot: Pilot[None], project: DemoProject) -> None:
        self.chat = chat
        self.pilot = pilot
        self.project = project

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self.pilot.pause(0.02)

    async def picture(self, name: str, folder: Path = HERE) -> None:
        picture, before = "", None
        while picture != before:
            await self.pilot.pause(0.5)
            before, picture = picture, self.pilot.app.export_screenshot(title="retinue")
        # Without the web font, a viewer needs no network.
        picture = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)
        # These differ every time: Textual's class names, and the hash over the run id.
        picture = re.sub(r"terminal-\d+", "terminal", picture)
        picture = re.sub(r">[0-9a-f]{16}<", ">6a1f03d97be45c28<", picture)
        (folder / f"{name}.svg").write_text(compact(picture))


def compact(picture: str) -> str:
    """`picture` in a third of the bytes: rectangles of one colour are joined, clips of lines go."""
    picture = re.sub(r'<clipPath id="terminal-line-.*?</clipPath>', "", picture, flags=re.DOTALL)
    picture = re.sub(r' clip-path="url\(#terminal-line-\d+\)"', "", picture)
    picture = re.sub(r">\s+<", ">\n<", picture)
    rows: dict[str, list[tuple[str, float, float]]] = {}
    for fill, x, y, width in RECTANGLE.findall(picture):
        row, start, end = rows.setdefault(y, []), float(x), float(x) + float(width)
        if row and row[-1][0] == fill:
            start = row.pop()[1]
        row.append((fill, start, end))
    joined = "".join(
        f'<rect fill="{fill}" x="{start:g}" y="{y}" width="{end - start:g}" height="24.65"'
        ' shape-rendering="crispEdges"/>\n'
        for y, row in rows.items()
        for fill, start, end in row
        if end > start
    )
    first = RECTANGLE.search(picture)
    if first is None:
        return picture  # The terminal's own background.
    head, rest = picture[: first.start()], RECTANGLE.sub("", picture[first.start() :])
    return head + joined + rest.lstrip()


async def take(
    size: tuple[int, int],
    scene: Callable[[OpenChat], Awaitable[None]],
    theme: Theme = Theme.TERMINAL,
) -> None:
    project = DemoProject()
    project.set_up()
    chat = Chat(
        project.directory,
        model=project.model(),
        clock=project.clock,
        environment=Environment(variables={"HOME": str(HOME)}),
        max_concurrent=4,
    )
    app = ChatApp(chat, theme=theme)
    async with app.run_test(size=size) as pilot:
        app.query_one(InputField).cursor_blink = False
        chat_screen = OpenChat(chat, pilot, project)
        await chat_screen.until(lambda: chat.host.ready)
        await scene(chat_screen)
        project.gate.set()
        app.action_quit_chat()
        await chat_screen.until(lambda: not app.is_running)


async def send(chat_screen: OpenChat) -> None:
    submit(chat_screen.chat, "What is wrong with this project?")
    await chat_screen.until(lambda: chat_screen.chat.questions.open)
    submit(chat_screen.chat, "y")  # The reviewer and the tester may run commands.
    await chat_screen.until(
        lambda: (
            [a.turn for _, a in chat_screen.chat.active_children() if not a.pending_calls] == [2, 2]
        )
    )
    chat_screen.project.clock.advance(12.4)


async def working(chat_screen: OpenChat) -> None:
    await send(chat_screen)
    await chat_screen.picture("working")


async def done(chat_screen: OpenChat) -> None:
    await send(chat_screen)
    chat_screen.project.gate.set()
    await chat_screen.until(lambda: not chat_screen.chat.host.busy)
    await chat_screen.picture("done")


async def failure(chat_screen: OpenChat) -> None:
    await send(chat_screen)
    await chat_screen.pilot.press("ctrl+g")
    await chat_screen.picture("failure")


async def question(chat_screen: OpenChat) -> None:
    submit(chat_screen.chat, "Add an expiry to links")
    await chat_screen.until(lambda: chat_screen.chat.questions.open)
    chat_screen.project.clock.advance(3.1)
    await chat_screen.picture("question")


async def edit(chat_screen: OpenChat) -> None:
    submit(chat_screen.chat, "Add an expiry to links")
    await chat_screen.until(lambda: chat_screen.chat.questions.open)
    submit(chat_screen.chat, "y")
    await chat_screen.until(lambda: not chat_screen.chat.host.busy)
    await chat_screen.picture("edit")


async def modes(chat_screen: OpenChat) -> None:
    submit(chat_screen.chat, "/mode")
    await chat_screen.picture("modes")


def write_help() -> None:
    """Write the tables of /help at the end of docs/chat.md."""
    page = HERE.parent / "chat.md"
    text, mark, _ = page.read_text().partition(HELP)
    for title, rows in help_tables().items():
        mark += f"\n## {title}\n\n| | |\n|---|---|\n"
        mark += "".join(f"| `{name}` | {help_text} |\n" for name, help_text in rows)
    page.write_text(text + mark)


async def run(chat_screen: OpenChat, text: str, answer: str = "y") -> None:
    """Send a message, answer all its questions so, and wait for the end of the run."""
    chat = chat_screen.chat
    submit(chat, text)
    while chat.host.busy:
        if chat.questions.open:
            submit(chat, answer)
        await chat_screen.pilot.pause(0.02)


async def choose_model(chat_screen: OpenChat) -> None:
    offers = [
        ("openai:qwen3-coder@http://127.0.0.1:8080/v1", "llama.cpp, 32,768 tokens, 4 at a time"),
        ("ollama:gpt-oss:20b", "Ollama, 131,072 tokens"),
        ("anthropic:claude-sonnet-5", "200,000 tokens"),
    ]
    chat_screen.chat.pick("Model (now none)", offers, lambda *_: None)


async def ask(chat_screen: OpenChat) -> None:
    await run(chat_screen, "How are links stored?")


async def approve(chat_screen: OpenChat) -> None:
    submit(chat_screen.chat, "Add an expiry to links")
    await chat_screen.until(lambda: chat_screen.chat.questions.open)
    chat_screen.project.clock.advance(3.1)


async def refuse(chat_screen: OpenChat) -> None:
    await run(chat_screen, "Add an expiry to links", "no, keep the type of LINKS")


async def fan_out(chat_screen: OpenChat) -> None:
    submit(chat_screen.chat, "Look at all modules")
    await chat_screen.until(
        lambda: (
            chat_screen.chat.tree is not None
            and chat_screen.chat.tree.run.root is not None
            and chat_screen.chat.tree.run.root.turn == 2
        )
    )
    chat_screen.project.clock.advance(12.4)


async def why_failed(chat_screen: OpenChat) -> None:
    await fan_out(chat_screen)
    await chat_screen.pilot.press("ctrl+g")


async def undo_child(chat_screen: OpenChat) -> None:
    await run(chat_screen, "Let an executor write a test")
    await run(chat_screen, "/undo a1")


async def resume(chat_screen: OpenChat) -> None:
    await fan_out(chat_screen)
    chat_screen.chat.interrupt()
    await chat_screen.until(lambda: not chat_screen.chat.host.busy)


async def switch_models(chat_screen: OpenChat) -> None:
    (chat_screen.project.directory / "other.yaml").write_text("steps: [{say: Hello.}]\n")
    await run(chat_screen, "/model scripted:missing.yaml")
    await run(chat_screen, "/model scripted:other.yaml")
    await chat_screen.until(lambda: chat_screen.chat.host.ready)


async def export(chat_screen: OpenChat) -> None:
    await ask(chat_screen)
    await run(chat_screen, "/export talk.html")


FIRST_TASKS = (
    choose_model,
    ask,
    approve,
    refuse,
    fan_out,
    why_failed,
    undo_child,
    resume,
    switch_models,
    export,
)
SIZES = ((80, 24), (120, 40), (200, 60))


async def first_tasks(folder: Path) -> None:
    """Take pictures of what a newcomer does first. The folder exists."""
    for number, scene in enumerate(FIRST_TASKS, 1):
        for size in SIZES:
            for theme in (Theme.LIGHT, Theme.DARK):
                name = scene.__name__.replace("_", "-")
                file = f"{number:02}-{name}-{size[0]}x{size[1]}-{theme}"

                async def take_scene(
                    shown: OpenChat,
                    scene: Callable[[OpenChat], Awaitable[None]] = scene,
                    file: str = file,
                ) -> None:
                    await scene(shown)
                    await shown.picture(file, folder)

                await take(size, take_scene, theme)


async def main() -> None:
    if len(sys.argv) > 1:
        os.makedirs(sys.argv[1], exist_ok=True)
        await first_tasks(Path(sys.argv[1]))
        shutil.rmtree(HOME)
        return
    write_help()
    await first_tasks(HERE / "first-tasks")
    await take((120, 32), working)
    await take((120, 36), done)
    await take((100, 30), failure)
    await take((100, 22), question)
    await take((100, 22), edit)
    await take((80, 24), modes)
    shutil.rmtree(HOME)


if __name__ == "__main__":
    asyncio.run(main())
