"""Model discovery: no model is named."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue.domain.server_info import DEFAULT_PORTS
from retinue.models.scripted.model import say
from retinue.testing.server import failing, streamed

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Serve


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
    def test_only_model_is_used_with_a_note(
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

    def test_discovered_model_is_in_the_journal(
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

    def test_openai_base_url_is_sent_the_key(
        self, cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = serve(streamed(say("Here.")), pages=pages("qwen3"))
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        done = cli("run", "x")
        assert (done.code, done.out) == (0, "Here.\n")
        assert "using openai:qwen3  (vLLM" in done.err
        assert {visit.headers["authorization"] for visit in server.visits} == {"Bearer sk-secret"}

    def test_ollama_is_sent_no_foreign_key(
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

    def test_several_models_are_listed_with_the_ways_to_choose(
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

    def test_unreachable_server_is_an_error(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
            "Or set the key of a provider, such as OPENAI_API_KEY, and name a model with -m."
            " `retinue doctor` shows what was tried.\n",
        )

    def test_server_that_wants_a_key(
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
    def test_invalid_address_is_an_error(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(name, "localhost:8080")
        assert cli("run", "x") == (
            2,
            "",
            f"retinue: {name} has 'localhost:8080', which is not a web address; write it like"
            " http://127.0.0.1:8080/v1.\n",
        )

    def test_key_alone_chooses_no_model(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        assert cli("run", "x") == (
            2,
            "",
            f"retinue: OPENAI_API_KEY is set, but no model was named. Choose one: {CHOOSE}.\n"
            "  openai:gpt-5-mini, or another of OpenAI's; `retinue models` lists them\n",
        )

    def test_named_model_needs_no_discovery(
        self, cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        elsewhere, here = serve(pages=pages("a")), serve(streamed(say("Here.")))
        monkeypatch.setenv("OLLAMA_HOST", elsewhere.url)
        assert cli("run", "-q", "-m", f"openai:m@{here.url}", "x").out == "Here.\n"
        assert elsewhere.visits == []

    @pytest.mark.parametrize(
        "command", [("runs",), ("agents",), ("audit", "k3f9"), ("show", "k3f9"), ("run", "--help")]
    )
    def test_commands_without_a_model_ask_no_server(
        self, cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
    ) -> None:
        server = serve(pages=pages("a"))
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        cli(*command)
        assert server.visits == []


def test_user_endpoints_are_asked_with_the_key(
    cli: Cli, serve: Serve, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(streamed(say("Here.")), pages=pages("qwen3"))
    settings(f'discovery = false\nendpoints = ["{server.url}"]\n')
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    assert cli("run", "-q", "x").out == "Here.\n"
    assert {visit.headers["authorization"] for visit in server.visits} == {"Bearer sk-secret"}


def test_no_server_is_an_error(cli: Cli) -> None:
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
        "Or set the key of a provider, such as OPENAI_API_KEY, and name a model with -m."
        " `retinue doctor` shows what was tried.\n",
    )
