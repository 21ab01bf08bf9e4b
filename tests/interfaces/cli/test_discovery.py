"""What happens when nobody names a model."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from retinue.domain.server_info import DEFAULT_PORTS
from retinue.models.scripted.model import say
from retinue.testing.server import Received, failing, streamed


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Serving(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def visits(self) -> list[Received]: ...

    @property
    def requests(self) -> list[Received]: ...


Cli = Callable[..., Done]
Serve = Callable[..., Serving]
Settings = Callable[[str], Path]

CHOOSE = '-m NAME, or RETINUE_MODEL=NAME, or model = "NAME" in ~/.config/retinue/config.toml'


def pages(*names: str, window: int = 65_536) -> dict[str, Any]:
    cards = [{"id": n, "owned_by": "vllm", "max_model_len": window} for n in names]
    return {"/v1/models": {"object": "list", "data": cards}}


@pytest.fixture
def alone(settings: Settings) -> None:
    """Whatever else runs on this machine is not looked at."""
    settings("discovery = false\n")


@pytest.mark.usefixtures("alone")
class TestNamedByTheEnvironment:
    def test_the_only_model_is_used_and_it_is_said(
        self, cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = serve(streamed(say("Here.")), pages=pages("qwen3"))
        monkeypatch.setenv("OLLAMA_HOST", server.url.removesuffix("/v1"))
        done = cli("run", "x")
        assert (done.code, done.out) == (0, "Here.\n")
        assert (
            f"root: note: no model was named: using openai:qwen3@{server.url}"
            "  (vLLM, 65,536 tokens)\n" in done.err
        )

    def test_the_journal_says_so_too(
        self, cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = serve(streamed(say("Here.")), pages=pages("qwen3", window=4096))
        monkeypatch.setenv("OLLAMA_HOST", server.url.removesuffix("/v1"))
        events = [json.loads(line) for line in cli("run", "--json", "x").out.splitlines()]
        assert events[0]["payload"]["model"] == f"openai:qwen3@{server.url}"
        (created,) = [e["payload"] for e in events if e["type"] == "agent.subagent_created"]
        found, small = created["notes"]
        assert found.startswith("no model was named: using openai:qwen3@")
        assert small.startswith("qwen3 has a window of 4,096 tokens at vLLM, and an agent needs")

    def test_the_base_url_of_openai_gets_its_key_and_needs_no_address(
        self, cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = serve(streamed(say("Here.")), pages=pages("qwen3"))
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        done = cli("run", "x")
        assert (done.code, done.out) == (0, "Here.\n")
        assert "using openai:qwen3  (vLLM" in done.err
        assert {visit.headers["authorization"] for visit in server.visits} == {"Bearer sk-secret"}

    def test_ollama_gets_nobody_elses_key(
        self, cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = serve(pages=pages("qwen3"))
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        done = cli("run", "x")
        # The key would do as well, so nothing is used before somebody chooses.
        assert done == (
            2,
            "",
            f"retinue: No model was named, and there are several. Choose one: {CHOOSE}.\n"
            f"  openai:qwen3@{server.url}  (vLLM, 65,536 tokens)\n"
            "  openai:gpt-5-mini, or another of OpenAI's; `retinue models` lists them\n",
        )
        assert [visit.headers.get("authorization") for visit in server.visits] == [None]

    def test_several_are_named_with_the_ways_to_choose(
        self, cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = serve(pages=pages("a", "b"))
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        assert cli("spawn", "researcher", "x") == (
            2,
            "",
            f"retinue: No model was named, and there are several. Choose one: {CHOOSE}.\n"
            f"  openai:a@{server.url}  (vLLM, 65,536 tokens)\n"
            f"  openai:b@{server.url}  (vLLM, 65,536 tokens)\n",
        )

    def test_a_server_that_is_not_there(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        with closing(socket.socket()) as unused:
            unused.bind(("127.0.0.1", 0))
            host = f"127.0.0.1:{unused.getsockname()[1]}"
            monkeypatch.setenv("OLLAMA_HOST", host)
            done = cli("run", "x")
        assert done == (
            2,
            "",
            "retinue: No model was named, and none was found.\n"
            f"http://{host}/v1 (OLLAMA_HOST): nothing listens there.\n"
            "Or set OPENAI_API_KEY or ANTHROPIC_API_KEY and name a model with -m."
            " `retinue doctor` shows what was tried.\n",
        )

    def test_a_server_that_wants_a_key(
        self, cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = serve(pages={"/v1/models": failing(401, "No key.")})
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        done = cli("run", "x")
        assert done.code == 2
        assert (
            f"{server.url} (OPENAI_BASE_URL): it wants a key (401); set OPENAI_API_KEY."
            in done.err.splitlines()
        )

    @pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"])
    def test_an_address_that_is_none(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(name, "localhost:8080")
        assert cli("run", "x") == (
            2,
            "",
            f"retinue: {name} has 'localhost:8080', which is not a web address; write it like"
            " http://127.0.0.1:8080/v1.\n",
        )

    def test_a_key_alone(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        assert cli("run", "x") == (
            2,
            "",
            f"retinue: OPENAI_API_KEY is set, but no model was named. Choose one: {CHOOSE}.\n"
            "  openai:gpt-5-mini, or another of OpenAI's; `retinue models` lists them\n",
        )

    def test_a_model_that_is_named_is_not_looked_for(
        self, cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        elsewhere, here = serve(pages=pages("a")), serve(streamed(say("Here.")))
        monkeypatch.setenv("OLLAMA_HOST", elsewhere.url)
        assert cli("run", "-q", "-m", f"openai:m@{here.url}", "x").out == "Here.\n"
        assert elsewhere.visits == []

    @pytest.mark.parametrize(
        "command", [("runs",), ("agents",), ("audit", "k3f9"), ("show", "k3f9"), ("run", "--help")]
    )
    def test_commands_that_need_no_model_look_at_nothing(
        self, cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
    ) -> None:
        server = serve(pages=pages("a"))
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        cli(*command)
        assert server.visits == []


def test_the_users_endpoints_are_looked_at_with_the_key(
    cli: Cli, serve: Serve, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(streamed(say("Here.")), pages=pages("qwen3"))
    settings(f'discovery = false\nendpoints = ["{server.url}"]\n')
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    assert cli("run", "-q", "x").out == "Here.\n"
    assert {visit.headers["authorization"] for visit in server.visits} == {"Bearer sk-secret"}


def test_nothing_at_all(cli: Cli) -> None:
    for port in DEFAULT_PORTS.values():
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"something listens on port {port} of this machine")
    assert cli("run", "x") == (
        2,
        "",
        "retinue: No model was named, and no model server was found on this machine.\n"
        "Start one: llama-server -m MODEL.gguf, or ollama serve, or LM Studio's server,"
        " or vllm serve MODEL.\n"
        "Or set OPENAI_API_KEY or ANTHROPIC_API_KEY and name a model with -m."
        " `retinue doctor` shows what was tried.\n",
    )


# At a terminal


class Terminal:
    """`retinue` with a person before it. What it prints for the person is read until it waits."""

    def __init__(self, *argv: str) -> None:
        self._ours, theirs = pty.openpty()
        run = "from retinue.interfaces.cli.main import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", run, *argv],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read_until(self, text: str) -> str:
        seen = ""
        while text not in seen:
            seen += os.read(self._ours, 10_000).decode()
        return seen.replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> tuple[int, str]:
        out, _ = self._process.communicate()
        os.close(self._ours)
        return self._process.returncode, out.decode()


PROMPT = "]: "


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("typed", "model"),
    [("2\n", "b"), ("\n", "a"), ("9\n1\n", "a"), ("b\n", "b"), ("NAME\n", "c")],
    ids=["a number", "nothing", "a wrong number", "a listed name", "another name"],
)
def test_a_person_chooses(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, typed: str, model: str
) -> None:
    server = serve(streamed(say("Here.")), pages=pages("a", "b"))
    monkeypatch.setenv("OLLAMA_HOST", server.url)
    terminal = Terminal("run", "-q", "x")
    assert terminal.read_until(PROMPT) == (
        "No model was named. There are:\n"
        f"  1  openai:a@{server.url}  (vLLM, 65,536 tokens)\n"
        f"  2  openai:b@{server.url}  (vLLM, 65,536 tokens)\n"
        f"To set a default: {CHOOSE}.\n"
        f"Number or name [1: openai:a@{server.url}]: "
    )
    for line in typed.replace("NAME", f"openai:c@{server.url}").splitlines(keepends=True):
        terminal.type(line)
        if line == "9\n":
            assert "There is no number 9.\n" in terminal.read_until(PROMPT)
    assert terminal.end() == (0, "Here.\n")
    (request,) = server.requests
    assert request.json["model"] == model
