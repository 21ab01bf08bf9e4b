"""Runs every command line and every program in the Markdown files of this project.

The README and the manual are run block by block; any other page from top to bottom, as a reader
would type it. The tables of the manual are compared with the code.
"""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import pytest

import retinue
from retinue.config.agent_folders import PROJECT_FOLDERS
from retinue.config.environment import Environment
from retinue.config.mcp_servers import MCP_FILE, configured_servers
from retinue.config.model_routes import parse_route
from retinue.config.roles import builtin_roles, load_roles
from retinue.config.settings import (
    PROJECT_FILE,
    EndpointSettings,
    PoolSettings,
    Settings,
    SettingsLayers,
)
from retinue.config.settings_file import load_settings, read_settings
from retinue.config.skill_files import SKILL_FILE
from retinue.config.skills_and_commands import load_skills_and_commands
from retinue.domain.plan.plan_file import parse
from retinue.domain.plan.plan_file import read as read_plan
from retinue.domain.price import Price
from retinue.domain.sampling import Sampling
from retinue.domain.skill import Skill
from retinue.domain.slash_command import SlashCommand
from retinue.interfaces.cli.commands.demo import copy_tree, demo_files
from retinue.interfaces.cli.main import COMMANDS, cli, main
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.models.scripted.script_file import parse_script
from retinue.testing.server import ModelServer, Received
from retinue.tools.delegation import delegation_tools

if TYPE_CHECKING:
    from tests.conftest import Repo

ROOT = Path(__file__).parents[1]
BY_BLOCK = ("README.md", "docs/manual.md")
RECOVERY = "docs/guides/recovery.md"
# Not pages: what agents are tried on.
DATA = ("src/retinue/interfaces/demo/snip/", "tests/config/data/")
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
ADDRESS = "http://127.0.0.1:8080/v1"  # of the server that the README takes for granted


PAGES = {
    "/v1/models": {"object": "list", "data": [{"id": "qwen3", "owned_by": "llamacpp"}]},
    "/props": {"default_generation_settings": {"n_ctx": 32_768}, "total_slots": 4},
}

PLAN = '{"steps": [{"name": "look", "role": "researcher", "task": "Look at snip."}]}'


KILLED = """
import asyncio, os, signal, sys
import retinue

def kill(event):
    if event.type == "tool.started":
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with retinue.open(".", listeners=retinue.Listeners(on_event=kill)) as rt:
        await rt.run(sys.argv[1])

asyncio.run(main())
"""


def pages() -> dict[str, str]:
    """All Markdown files of the project, by their paths."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = sorted(name for name in listed.stdout.split("\0") if not name.startswith(DATA))
    paths = {name: ROOT / name for name in names}
    return {
        name: path.read_text("utf-8")
        for name, path in paths.items()
        if path.is_file() and not path.is_symlink()  # The package links to the manual.
    }


TEXTS = pages()
README, MANUAL = (TEXTS[page] for page in BY_BLOCK)


class Block(msgspec.Struct, frozen=True):
    """A fenced block: its page and line, what stands behind the fence, and what is between them.

    The word behind the fence is a language; a second one is the file that the block is.
    """

    page: str
    info: str
    line: int
    text: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def file(self) -> str:
        return self.info.partition(" ")[2]

    def __str__(self) -> str:
        return f"{self.page} line {self.line} {self.info}"


def blocks(page: str) -> list[Block]:
    text = TEXTS[page]
    return [
        Block(page, m["info"], text.count("\n", 0, m.start("info")) + 1, m["text"])
        for m in FENCE.finditer(text)
    ]


class Project:
    """A directory as the reader of the README may have it, with a run in its journal."""

    def __init__(
        self, directory: Path, home: Path, call: Callable[[list[str]], tuple[int, str, str]]
    ) -> None:
        self.directory = directory
        self.home = home
        self.call = call

    def run(self, arguments: list[str]) -> str:
        code, out, err = self.call(arguments)
        assert code == 0, err
        return out

    @property
    def run_id(self) -> str:
        """The latest run's, which is what RUN stands for."""
        return self.run(["runs", "-n", "1"]).split()[0]

    @property
    def environment(self) -> Environment:
        return Environment(variables={"HOME": str(self.home)})

    def path(self, file: str) -> Path:
        """Where a file of the README lies."""
        return self.home / file[2:] if file.startswith("~/") else self.directory / file

    def write(self, block: Block, address: str) -> None:
        """Write a file that a page shows."""
        if block.file:
            path = self.path(block.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text.replace(ADDRESS, address))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as address:
        yield address


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Project:
    directory = tmp_path / "project"
    copy_tree(demo_files() / "snip", directory)
    (directory / "tasks.txt").write_text("What is in snip?\n\nWhat is in tests?\n")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("HOME", str(tmp_path))
    # A program sets it: what is set here is taken back.
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    for name in list(os.environ):
        if name.startswith(("XDG_", "RETINUE_", "OPENAI_", "ANTHROPIC_", "OLLAMA_")):
            monkeypatch.delenv(name)

    def call(arguments: list[str]) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return Project(directory, tmp_path, call)


@pytest.mark.parametrize("block", [b for page in BY_BLOCK for b in blocks(page)], ids=str)
def test_block_runs(
    block: Block, project: Project, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_MODEL", f"openai:qwen3@{address}")
    asyncio.run(_one_run(project.directory))
    for one in blocks(block.page):
        project.write(one, address)
    _try(block, project, address, monkeypatch)


@pytest.mark.parametrize("page", [page for page in TEXTS if page not in BY_BLOCK and blocks(page)])
def test_page_runs(
    page: str, project: Project, address: str, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_MODEL", f"openai:qwen3@{address}")
    repo.git("init", "-q", at=project.directory)
    repo.git("add", "-A", at=project.directory)
    repo.git("commit", "-q", "-m", "snip", at=project.directory)
    if page == RECOVERY:
        _leave_killed(project, "What does this project do?")
        _leave_killed(project, "Where are links stored?")
    for block in blocks(page):
        project.write(block, address)
        _try(block, project, address, monkeypatch)


def _leave_killed(project: Project, task: str) -> None:
    """A run whose process is killed as soon as it uses a tool."""
    command = [sys.executable, "-c", KILLED, task]
    done = subprocess.run(command, cwd=project.directory, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def _try(block: Block, project: Project, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = block.text.replace(ADDRESS, address)
    match block.language:
        case "console":
            _converse(text, project, monkeypatch)
        case "python":
            (project.directory / "example.py").write_text(text)
            runpy.run_path("example.py", run_name="__main__")
        case "toml" if block.file.startswith("plan"):
            assert read_plan(parse(text))[1] == []
        case "toml":
            _check_settings(project, block.file)
        case "markdown" if "/agents/" in block.file:
            _check_agent(project, block.file)
        case "markdown":
            _check_skill_or_command(project, block.file)
        case "yaml":
            assert parse_script(text)
        case "json" if block.file != MCP_FILE:
            assert parse_script(text)
        case "json":
            layers = load_settings(project.environment, project.directory)
            found = configured_servers(layers, project.directory)
            assert found.problems == ()
            assert {server.source for server in found.servers} == {MCP_FILE}
        case "text":
            # A picture made of letters; what can be typed is a console.
            assert not re.search(r"^\s*(\$|retinue|script/)", text, re.MULTILINE)
        case "{toctree}":
            # The pages in the order of the list; what is below `reference` is made from the code.
            named = [line for line in text.splitlines() if line and not line.startswith(":")]
            written = [name for name in named if not name.startswith("reference/")]
            pages = {
                page.removeprefix(f"docs/{folder}").removesuffix(".md")
                for page in TEXTS
                for folder in ("", "internals/", "decisions/")
            }
            assert [name for name in written if name not in pages] == []
        case language:
            pytest.fail(f"Nothing here knows what to do with a block of {language!r}.")


def _check_settings(project: Project, file: str) -> None:
    """Every key is known and every name in it means something."""
    settings = read_settings(project.path(file))
    layers = load_settings(project.environment, project.directory)
    assert settings in (layers.user, layers.project), f"{file} is no settings file"
    found = load_roles(layers, project.directory, project.environment)
    assert {*settings.roles, *settings.profiles} <= found.roles.keys()
    assert [*found.problems, *(p for role in found.roles.values() for p in role.problems)] == []
    for name in (*settings.models.values(), *settings.prices, settings.model):
        assert name is None or parse_route(name).provider == "openai"
    if file == PROJECT_FILE:
        # What counts in the user's own file only would do nothing here.
        own = ("models", "pools", "servers", "prices", "endpoints")
        assert not any(getattr(settings, name) for name in own)


def _check_agent(project: Project, file: str) -> None:
    layers = load_settings(project.environment, project.directory)
    found = load_roles(layers, project.directory, project.environment)
    [agent] = [role for role in found.roles.values() if role.source == file]
    assert agent.problems == found.problems == ()


def _check_skill_or_command(project: Project, file: str) -> None:
    found = load_skills_and_commands(project.directory, project.environment, lambda _: True, {})
    items: list[Skill | SlashCommand] = [*found.skills.values(), *found.commands.values()]
    [item] = [item for item in items if file in (item.place, f"{item.place}/{SKILL_FILE}")]
    assert item.problems == found.skill_problems == found.command_problems == ()


@pytest.mark.parametrize("page", TEXTS)
def test_every_fence_is_a_block(page: str) -> None:
    fences = re.findall(r"^\s*(?:```|~~~)", TEXTS[page], re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page))


def test_readme_has_command_lines_only_in_blocks() -> None:
    assert re.findall(r"`retinue [^`]*`", FENCE.sub("", README)) == []


@pytest.mark.parametrize("page", TEXTS)
def test_commands_in_the_text_exist_with_their_options(page: str) -> None:
    text = FENCE.sub("", TEXTS[page])
    assert re.findall(r"`[^`\n]+[;&|] *retinue [^`\n]*`", text) == []  # It would not be seen below.
    for typed in re.findall(r"`retinue ([^`]*)`", text):
        if re.fullmatch(r'"[^"]* [^"]*"', typed):
            continue  # A task without a command.
        typed = re.sub(r"^-p ", "run ", typed)
        name, *words = shlex.split(typed.replace("\n", " ").replace("…", "x")) or ["--help"]
        if name.startswith("-"):
            name, words = "chat", [name, *words]
        assert name in COMMANDS, typed
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        options = {
            word.partition("=")[0] for word in words if word.startswith("-") and len(word) > 1
        }
        assert options <= known | {"-h", "--help"}, typed
    for script in re.findall(r"`(script/\w+)[^`]*`", text):
        assert os.access(ROOT / script, os.X_OK), script


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_to_files(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", TEXTS[page])):
        # The reference is made from the code when the pages are built, which fails on a wrong link.
        built = target.startswith("../reference/")
        assert built or ((ROOT / page).parent / target).is_file(), target


@pytest.mark.parametrize(
    ("server", "endpoint"),
    [
        ("llama.cpp", "http://127.0.0.1:8080/v1"),
        ("Ollama", "http://127.0.0.1:11434/v1"),
        ("LM Studio", "http://127.0.0.1:1234/v1"),
        ("vLLM", "http://127.0.0.1:8000/v1"),
        ("OpenAI", ""),
    ],
)
def test_model_names_in_the_table_are_valid(server: str, endpoint: str) -> None:
    row = re.search(rf"^\| {re.escape(server)} \| `([^`]+)` \|$", MANUAL, re.MULTILINE)
    assert row is not None
    route = parse_route(row[1])
    assert (route.provider, route.endpoint) == ("openai", endpoint)
    assert route.model


def test_roles_are_the_built_in_ones() -> None:
    sentence = re.search(r"The roles are (.*?);", MANUAL, re.DOTALL)
    assert sentence is not None
    assert sorted(re.findall(r"`(\w+)`", sentence[1])) == sorted(builtin_roles())


def test_delegation_tools_are_the_built_in_ones() -> None:
    section = MANUAL.partition("## Delegation")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(named) == sorted(tool.spec.name for tool in delegation_tools({}))


def test_agent_folders_are_those_that_are_read() -> None:
    named = set(re.findall(r"`(\.\w+/agents?)`", MANUAL))
    assert len(named) == 5
    assert named <= {place for place, _ in PROJECT_FOLDERS}


def test_project_cannot_set_user_only_settings() -> None:
    sentence = re.search(r"([^;]*) count in your own file only", MANUAL)
    assert sentence is not None
    names = re.findall(r"`(\w+)`", sentence[1])
    theirs = Settings(
        allow=("run_command",),
        endpoints=("http://192.0.2.1/v1",),
        models={"fast": "openai:other"},
        pools={"smart": PoolSettings(endpoints=("openai:other",))},
        servers={"http://192.0.2.1": EndpointSettings(slots=9)},
        prices={"openai:other": Price(input=0, output=0)},
        report_path="elsewhere.md",
        sampling=Sampling(seed=1),
    )
    merged = SettingsLayers(Settings(), theirs).merged
    assert len(names) == 8
    for name in names:
        assert getattr(merged, name) == getattr(Settings(), name) != getattr(theirs, name)


WRITE = "steps: [{call: write_file, args: {path: a, content: b}}, {say: done}]"


@pytest.mark.parametrize(
    ("code", "arguments", "script"),
    [
        (0, ["run", "task"], "steps: [{say: done}]"),
        (1, ["run", "task"], "steps: [{fail: refused}]"),
        (2, ["spawn", "nobody", "task"], "steps: [{say: done}]"),
        (3, ["run", "--max-turns", "2", "task"], "steps: [{call: list_dir}, {say: so far}]"),
        (4, ["run", "task"], WRITE),
    ],
)
def test_exit_codes_are_those_of_the_table(
    code: int, arguments: list[str], script: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert re.search(rf"^\| {code} \| ", MANUAL, re.MULTILINE)
    (project.directory / "script.yaml").write_text(script)
    monkeypatch.setenv("RETINUE_MODEL", "scripted:script.yaml")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code


def _converse(text: str, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command lines of a console block, and compare what is shown below them.

    What is shown may leave lines out, but has them in order.
    """
    said: list[str] = []
    code = 0
    for line in text.splitlines():
        if not line.startswith("$ "):
            behind = (i for i, actual in enumerate(said, 1) if _looks_like(line, actual))
            place = next(behind, None)
            assert place is not None, f"{line!r} is not in {said}"
            said = said[place:]
            continue
        if line != "$ echo $?":
            assert code == 0, f"what comes before {line!r} failed"
        said = []
        typed = re.sub(r"\bRUN\b", lambda _: project.run_id, line.removeprefix("$ "))
        command, *arguments = shlex.split(typed)
        match command:
            case "retinue":
                # What the embedded model would answer, the server at hand does.
                given = [os.environ["RETINUE_MODEL"] if a == "embedded" else a for a in arguments]
                code, out, err = project.call(given)
                said = out.splitlines()
                assert code == 0 or "echo $?" in text, err
            case "echo" if typed == "echo $?":
                said, code = [str(code)], 0
            case "git":
                done = subprocess.run(
                    ["git", *arguments], capture_output=True, text=True, check=True
                )
                said = done.stdout.splitlines()
            case "export":
                for assignment in arguments:
                    name, _, value = assignment.partition("=")
                    monkeypatch.setenv(name, os.path.expandvars(value))
            case "uv":
                # test_packaging installs the wheel, with these extras.
                assert arguments == ["tool", "install", ".[full]"]
            case _ if command.startswith("script/"):
                # script/test runs this test, and the other scripts have tests of their own.
                assert os.access(ROOT / command, os.X_OK)
            case _ if program := re.search(r"\btraining[./](\w+)", typed):
                # They need a GPU, or hours.
                assert (ROOT / "training" / f"{program[1]}.py").is_file()
            case _:
                pytest.fail(f"Nothing here knows how to run {line!r}.")
    assert code == 0, "the last command failed"


def _looks_like(shown: str, actual: str) -> bool:
    """Is it the same line, but for numbers, the run's id, and what an ellipsis leaves out?"""
    pattern = re.sub(r"\d+", r"\\d+", re.escape(shown))
    pattern = re.sub(r"\bRUN\b", r"\\w+", pattern).replace("…", ".*")
    return re.fullmatch(pattern, actual) is not None


def _answer(request: Received) -> ScriptedReply:
    """Answer as a model would: call one tool, then answer."""
    body = request.json
    tools = {tool["function"]["name"] for tool in body.get("tools", ())}
    if body["messages"][-1]["role"] == "tool" or not tools:
        if body["messages"][1]["content"].startswith("Write a plan"):
            return say(PLAN).using(100, 20)
        if "It must fit this schema" in body["messages"][1]["content"]:
            return say('{"file": "snip/server.py", "problem": "Anybody may redirect."}').using(
                100, 20
            )
        return say("It is a URL shortener.").using(100, 6)
    if "word_count" in tools:
        return call("word_count", text="three short words").using(90, 10)
    return call("list_dir", path=".").using(90, 10)


@contextmanager
def serving() -> Iterator[str]:
    """The base URL of a model server on a loop of its own: commands have theirs."""
    ready: list[str] = []
    up = threading.Event()

    async def serve(stop: asyncio.Event) -> None:
        async with ModelServer(_answer, pages=PAGES) as server:
            ready.append(server.base_url)
            up.set()
            await stop.wait()

    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(stop),))
    thread.start()
    up.wait(10)
    try:
        yield ready[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _one_run(directory: Path) -> None:
    model = retinue.ScriptedModel([call("read_file", path="README.md"), say("It is short.")])
    async with retinue.open(directory, model=model) as runtime:
        assert (await runtime.spawn("researcher", "Is the README long?")).ok
