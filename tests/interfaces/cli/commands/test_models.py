"""`retinue models`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from retinue.testing.server import failing

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Serve


RECORDED = Path(__file__).parents[3] / "models" / "recorded"


Settings = Callable[[str], Path]


def page(name: str) -> Any:
    return msgspec.json.decode((RECORDED / f"{name}.json").read_bytes())


LLAMA_CPP = {"/v1/models": page("llama_cpp_models"), "/props": page("llama_cpp_props")}
LM_STUDIO = {"/v1/models": page("lm_studio_models"), "/api/v1/models": page("lm_studio_v1")}


HELP = (
    'Name one: -m NAME, or RETINUE_MODEL=NAME, or model = "NAME" in ~/.config/retinue/config.toml,'
    " such as openai:MODEL@http://127.0.0.1:8080/v1.\n"
    "Or set the key of a provider, such as OPENAI_API_KEY, and name a model with -m."
    " `retinue doctor` shows what was tried.\n"
)


def table(text: str) -> list[list[str]]:
    """The rows, with the latency left open: nobody knows how long a server will take."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip()]
    return [["N ms" if re.fullmatch(r"\d+ ms", cell) else cell for cell in row] for row in rows]


def test_models_are_listed_as_a_table(cli: Cli, serve: Serve, settings: Settings) -> None:
    one, two = serve(pages=LLAMA_CPP), serve(pages=LM_STUDIO)
    settings(f'discovery = false\nendpoints = ["{one.url}", "{two.url}"]\n')
    done = cli("models")
    assert (done.code, done.err) == (0, "")
    shown, _, notes = done.out.partition("\nnote: ")
    assert table(shown) == [
        ["SERVER", "WINDOW", "SLOTS", "TOOLS", "IMAGES", "LATENCY", "MODEL"],
        [
            "llama.cpp",
            "512 of 8,192",
            "2",
            "no",
            "no",
            "N ms",
            f"openai:/models/SmolLM2-135M-Instruct.Q4_1.gguf@{one.url}",
        ],
        [
            "LM Studio",
            "4,096 of 131,072",
            "4",
            "yes",
            "yes",
            "N ms",
            f"openai:google/gemma-4-e4b@{two.url}",
        ],
        [
            "LM Studio",
            "not loaded, up to 262,144",
            "-",
            "yes",
            "no",
            "N ms",
            f"openai:qwen3.6-35b-a3b-apex@{two.url}",
        ],
    ]
    assert notes.splitlines()[0].startswith("SmolLM2-135M-Instruct.Q4_1.gguf has a window of 512")
    assert "note: google/gemma-4-e4b has a window of 4,096 tokens at LM Studio" in notes


def test_models_of_a_provider_have_prices_and_abilities(
    cli: Cli, serve: Serve, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [{"id": "gpt-5-mini"}, {"id": "gpt-5.6-sol"}, {"id": "mine"}]
    server = serve(pages={"/openai/v1/models": {"data": cards}})
    settings("discovery = false\n")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url.removesuffix("/v1"))
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-1")
    head = "SERVER WINDOW OUTPUT SLOTS TOOLS THINKS IMAGES PRICE LATENCY MODEL"
    azure = "Azure OpenAI"
    assert table(cli("models").out) == [
        head.split(),
        [azure, "400,000", "128,000", "-", "yes", "yes", "yes", "$0.25/$2", "N ms",
         "azure:gpt-5-mini"],
        [azure, "1,050,000", "128,000", "-", "yes", "yes", "yes", "$4/$20+", "N ms",
         "azure:gpt-5.6-sol"],
        [azure, "-", "-", "-", "-", "-", "-", "-", "N ms", "azure:mine"],
    ]  # fmt: skip
    assert server.visits[0].headers["api-key"] == "azure-1"
    assert [row[-1] for row in table(cli("models", "5.6").out)] == ["MODEL", "azure:gpt-5.6-sol"]
    done = cli("models", "gpt-9")
    assert (done.code, done.err) == (
        1, "retinue: No model has 'gpt-9' in its name; `retinue models` lists all.\n"
    )  # fmt: skip


def test_model_in_use_is_marked(
    cli: Cli, serve: Serve, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(pages=LM_STUDIO)
    settings("discovery = false\n")
    monkeypatch.setenv("RETINUE_MODEL", f"openai:google/gemma-4-e4b@{server.url}")
    head, *rows = cli("models").out.splitlines()[:3]
    assert [(row[0], row[head.index("MODEL") :]) for row in rows] == [
        ("*", f"openai:google/gemma-4-e4b@{server.url}"),
        (" ", f"openai:qwen3.6-35b-a3b-apex@{server.url}"),
    ]


def test_models_as_json(cli: Cli, serve: Serve, settings: Settings) -> None:
    server = serve(pages=LLAMA_CPP)
    settings(f'discovery = false\nendpoints = ["{server.url}"]\n')
    done = cli("models", "--json")
    (row,) = [json.loads(line) for line in done.out.splitlines()]
    latency_s, notes = row.pop("latency_s"), row.pop("notes")
    assert 0 < latency_s < 60
    assert [note.split(", ")[0] for note in notes] == [
        "SmolLM2-135M-Instruct.Q4_1.gguf has a window of 512 tokens at llama.cpp",
        "SmolLM2-135M-Instruct.Q4_1.gguf cannot call tools",
    ]
    model = "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert row == {
        "name": f"openai:{model}@{server.url}",
        "endpoint": server.url,
        "model": model,
        "server": "llama.cpp",
        "window": 512,
        "max_window": 8192,
        "max_output": None,
        "price": None,
        "unpriced": False,
        "slots": 2,
        "tools": False,
        "thinking": None,
        "images": False,
        "loaded": None,
        "remote": False,
    }


def test_failing_servers_are_notes_below_the_table(
    cli: Cli, serve: Serve, settings: Settings
) -> None:
    one, two = serve(pages=LLAMA_CPP), serve(pages={"/v1/models": failing(503, "Loading model")})
    settings(f'discovery = false\nendpoints = ["{one.url}", "{two.url}"]\n')
    done = cli("models")
    assert done.code == 0
    assert done.out.endswith(f"note: {two.url} (endpoints): it answers 503 (Loading model).\n")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_no_model_is_exit_code_1(cli: Cli, settings: Settings, options: tuple[str, ...]) -> None:
    settings("discovery = false\n")
    done = cli("models", *options)
    assert (done.code, done.out) == (1, "")
    assert done.err == ("" if options else f"retinue: No model was found.\n{HELP}")


def test_only_failing_servers(cli: Cli, serve: Serve, settings: Settings) -> None:
    server = serve(pages={"/v1/models": failing(503, "Loading model")})
    settings(f'discovery = false\nendpoints = ["{server.url}"]\n')
    assert cli("models") == (
        1,
        "",
        "retinue: No model was found.\n"
        f"{server.url} (endpoints): it answers 503 (Loading model).\n",
    )


def test_project_server_is_asked_without_the_key(
    cli: Cli, serve: Serve, settings: Settings, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(pages=LLAMA_CPP)
    settings("discovery = false\n")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", serve(pages=LM_STUDIO).url)
    (project / "retinue.toml").write_text(f'model = "openai:m@{server.url}"\n')
    assert server.url in cli("models").out
    assert {visit.headers.get("authorization") for visit in server.visits} == {None}


def test_default_ports_are_tried_without_a_key(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", serve(pages=LLAMA_CPP).url)
    out = cli("doctor", "--json").out
    for port in (8080, 11434, 1234, 8000):
        assert f"http://127.0.0.1:{port}/v1" in out


def test_models_of_a_pool_are_marked(cli: Cli, serve: Serve, settings: Settings) -> None:
    one, two = serve(pages=LLAMA_CPP), serve(pages=LM_STUDIO)
    card = LLAMA_CPP["/v1/models"]["data"][0]["id"]
    first = f"openai:{card}@{one.url}"
    settings(
        'discovery = false\nmodel = "smart"\n[pools.smart]\n'
        f'endpoints = ["{first}", "openai:gone@{two.url}"]\n'
    )
    done = cli("models")
    marked = [row[-1] for row in table(done.out) if row[0] == "*"]
    assert (done.code, marked) == (0, [first])
    assert two.url in done.out
