from __future__ import annotations

import pytest

from retinue.domain.server_info import ServedModel, ServerInventory


def served(**fields: object) -> ServedModel:
    return ServedModel(**{"model": "qwen3:8b", "server": "Ollama", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [None, 8192, 131_072])
def test_no_note_for_a_large_or_unknown_window(window: int | None) -> None:
    assert served(window=window).notes == ()


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        (
            {},
            "qwen3:8b has a window of 4,096 tokens at Ollama, and an agent needs 8,192: start"
            " Ollama with OLLAMA_CONTEXT_LENGTH=32768 (in its app: Settings, Context length)",
        ),
        (
            {"server": "llama.cpp", "model": "/home/me/models/qwen3.gguf"},
            "qwen3.gguf has a window of 4,096 tokens at llama.cpp, and an agent needs 8,192: start"
            " llama-server with a larger -c, which its slots may have to share",
        ),
        (
            {"server": "LM Studio"},
            "qwen3:8b has a window of 4,096 tokens at LM Studio, and an agent needs 8,192: load it"
            " with a larger context: lms load MODEL --context-length 32768",
        ),
        (
            {"server": "vLLM"},
            "qwen3:8b has a window of 4,096 tokens at vLLM, and an agent needs 8,192: start vLLM"
            " with a larger --max-model-len",
        ),
        (
            {"server": ""},
            "qwen3:8b has a window of 4,096 tokens, and an agent needs 8,192: serve it with a"
            " larger one",
        ),
        (
            {"max_window": 4096},
            "qwen3:8b has a window of 4,096 tokens at Ollama, and an agent needs 8,192: choose a"
            " model with a larger window",
        ),
    ],
)
def test_note_for_a_small_window_with_advice(fields: dict[str, object], note: str) -> None:
    assert served(window=4096, **fields).notes == (note,)


def test_a_model_that_cannot_call_tools() -> None:
    assert served(tools=False).notes == (
        "qwen3:8b cannot call tools, says Ollama: choose another with -m",
    )
    assert served(tools=False, server="llama.cpp").notes == (
        "qwen3:8b cannot call tools, says llama.cpp (its chat template has none): choose another"
        " with -m, or attach files with -f",
    )
    # It has a form of its own for them.
    assert served(tools=False, server="LM Studio").notes == ()


def test_facts_about_the_model_come_before_the_tools_note() -> None:
    assert served(tools=False, about="it is small").notes == ("it is small",)


@pytest.mark.parametrize(
    ("server", "models", "asked", "found"),
    [
        ("Ollama", ["a:latest", "b:7b"], "a", "a:latest"),
        ("Ollama", ["a:latest", "b:7b"], "b", None),
        ("Ollama", ["a:latest", "a"], "a:latest", "a:latest"),
        ("vLLM", ["a"], "a", "a"),
        ("vLLM", ["a"], "b", None),
        ("llama.cpp", ["/models/a.gguf"], "whatever", "/models/a.gguf"),
        ("llama.cpp", ["a", "b"], "whatever", None),
        ("llama.cpp", [], "whatever", None),
    ],
)
def test_find(server: str, models: list[str], asked: str, found: str | None) -> None:
    inventory = ServerInventory(
        address="http://127.0.0.1:1/v1",
        server=server,
        models=tuple(ServedModel(model=name, server=server) for name in models),
    )
    one = inventory.find(asked)
    assert (None if one is None else one.model) == found
