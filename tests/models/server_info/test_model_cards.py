"""What the pages of each server say, as recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain.price import Price
from retinue.domain.server_info import ServedModel
from retinue.models.server_info import model_cards as cards

RECORDED = Path(__file__).parents[1] / "recorded"


def page(name: str) -> Any:
    return msgspec.json.decode((RECORDED / f"{name}.json").read_bytes())


def entries(name: str) -> list[cards.Card]:
    found = cards.parse_model_list(page(name))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("llama_cpp_models", "llama.cpp"),
        ("llama_cpp_router", "llama.cpp"),
        ("ollama_models", "Ollama"),
        ("lm_studio_models", "LM Studio"),
        ("vllm_models", "vLLM"),
        ("openai_models", ""),
        ("anthropic_models", ""),
    ],
)
def test_list_of_models_shows_the_kind_of_server(name: str, server: str) -> None:
    assert cards.detect_server(entries(name)) == server


def test_openrouter_says_prices_limits_and_abilities() -> None:
    card = {
        "id": "openai/gpt-oss-120b",
        "context_length": 131072,
        "top_provider": {"context_length": 131072, "max_completion_tokens": 32768},
        "pricing": {"prompt": "2.5e-7", "completion": "0.000001", "input_cache_read": "1.25e-7"},
        "supported_parameters": ["max_tokens", "tools"],
        "architecture": {"output_modalities": ["text"]},
    }
    (found,) = cards.chat_models([card], "")
    assert (found.window, found.max_output, found.tools) == (131072, 32768, True)
    assert found.price == Price(input=0.25, output=1.0, cached=0.125)
    # A router decides about the price with each request.
    (unpriced,) = cards.chat_models([{"id": "auto", "pricing": {"prompt": "-1"}}], "")
    assert unpriced.price is None


def test_prefix_of_gemini_is_left_out() -> None:
    cards_of = [{"id": "models/gemini-3.6-flash"}]
    assert [one.model for one in cards.chat_models(cards_of, "")] == ["gemini-3.6-flash"]
    (local,) = cards.chat_models([{"id": "models/q.gguf"}], "llama.cpp")
    assert local.model == "models/q.gguf"


def test_llama_cpp() -> None:
    (plain,) = cards.chat_models(entries("llama_cpp_models"), "llama.cpp")
    assert plain == ServedModel(
        model="/models/SmolLM2-135M-Instruct.Q4_1.gguf",
        server="llama.cpp",
        window=512,
        max_window=8192,
        images=False,
    )
    found = cards.add_llama_cpp_props(plain, page("llama_cpp_props"))
    # It was started with 1,024 tokens for two slots: half of it is what a call may have.
    assert (found.window, found.slots, found.tools, found.images) == (512, 2, False, False)


def test_llama_cpp_with_a_projector_sees_images() -> None:
    plain = ServedModel(model="m", server="llama.cpp")
    found = cards.add_llama_cpp_props(plain, {"modalities": {"vision": True, "audio": False}})
    assert found.images


def test_llama_cpp_with_many_models() -> None:
    found = cards.chat_models(entries("llama_cpp_router"), "llama.cpp")
    assert [(one.model, one.loaded) for one in found] == [
        ("ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", True),
        ("Qwen3-8B-Q4_K_M", False),
    ]


def test_ollama() -> None:
    listed = cards.chat_models(entries("ollama_models"), "Ollama")
    shown = page("ollama_show")
    found = [
        cards.add_ollama_details(m, shown[m.model])
        for m in cards.add_ollama_running(listed, page("ollama_ps"))
    ]
    assert found == [
        ServedModel(
            model="qwen2.5:7b",
            server="Ollama",
            max_window=32_768,
            tools=True,
            images=False,
            loaded=False,
        ),
        # It was loaded with 4,096, whatever its Modelfile says.
        ServedModel(
            model="gemma3:latest",
            server="Ollama",
            window=4096,
            max_window=131_072,
            tools=False,
            images=True,
            loaded=True,
        ),
        ServedModel(
            model="deepseek-v3.1:671b-cloud",
            server="Ollama",
            window=163_840,
            max_window=163_840,
            tools=True,
            images=False,
            remote=True,
        ),
    ]


def test_ollama_will_load_a_model_as_its_modelfile_says() -> None:
    unloaded = ServedModel(model="gemma3:latest", server="Ollama", loaded=False)
    found = cards.add_ollama_details(unloaded, page("ollama_show")["gemma3:latest"])
    assert found is not None
    assert (found.window, found.loaded) == (2048, False)


def test_ollama_knows_models_that_only_embed() -> None:
    embedding = ServedModel(model="x", server="Ollama", loaded=False)
    assert (
        cards.add_ollama_details(embedding, page("ollama_show")["nomic-embed-text:latest"]) is None
    )


def test_lm_studio() -> None:
    assert cards.parse_lm_studio(page("lm_studio_v1")) == [
        ServedModel(
            model="google/gemma-4-e4b",
            server="LM Studio",
            window=4096,
            max_window=131_072,
            slots=4,
            tools=True,
            images=True,
            loaded=True,
        ),
        ServedModel(
            model="qwen3.6-35b-a3b-apex",
            server="LM Studio",
            max_window=262_144,
            tools=True,
            images=False,
            loaded=False,
        ),
    ]


def test_an_older_lm_studio() -> None:
    assert cards.parse_lm_studio(page("lm_studio_v0")) == [
        ServedModel(
            model="google/gemma-4-e4b",
            server="LM Studio",
            window=16_384,
            max_window=131_072,
            tools=True,
            images=True,
            loaded=True,
        ),
        ServedModel(
            model="qwen3.6-35b-a3b-apex",
            server="LM Studio",
            max_window=262_144,
            images=False,
            loaded=False,
        ),
    ]


def test_vllm() -> None:
    assert cards.chat_models(entries("vllm_models"), "vLLM") == [
        ServedModel(
            model="meta-llama/Meta-Llama-3.1-8B-Instruct",
            server="vLLM",
            window=8096,
        )
    ]


def test_only_chat_models_are_listed() -> None:
    assert [one.model for one in cards.chat_models(entries("openai_models"), "")] == ["gpt-5-mini"]
    (claude,) = cards.chat_models(entries("anthropic_models"), "")
    assert (claude.model, claude.window) == ("claude-sonnet-4-6", 200_000)


@pytest.mark.parametrize("key", ["context_length", "context_window", "max_context_length"])
def test_other_names_for_a_window(key: str) -> None:
    (found,) = cards.chat_models([{"id": "m", key: 32_000}], "")
    assert found.window == 32_000


@pytest.mark.parametrize(
    "value",
    [None, [], "models", 1, {}, {"models": []}, {"data": "none"}, {"data": {"id": "m"}}],
)
def test_other_pages_are_no_list_of_models(value: Any) -> None:
    assert cards.parse_model_list(value) is None


def test_an_empty_list_is_one() -> None:
    assert cards.parse_model_list({"object": "list", "data": None}) == []


def test_a_model_that_is_listed_twice_is_one() -> None:
    first, second = {"id": "m", "max_model_len": 8}, {"id": "m", "max_model_len": 9}
    assert cards.parse_model_list({"data": [first, {"id": "n"}, second]}) == [first, {"id": "n"}]


def test_implausible_numbers_are_ignored() -> None:
    (served,) = cards.chat_models([{"id": "m", "max_model_len": 10**30}], "")
    assert served.window is None
    props = {"total_slots": 10**30, "default_generation_settings": {"n_ctx": 2**63}}
    assert cards.add_llama_cpp_props(served, props) == served
    shown = cards.add_ollama_details(served, {"parameters": f"num_ctx {'9' * 5000}"})
    assert shown is not None
    assert shown.window is None


def test_names_with_control_characters_are_left_out() -> None:
    bad = ["\x1b[2Jm", "two\nlines", "", "m" * 513, None, 3]
    assert cards.parse_model_list({"data": [{"id": name} for name in bad] + [{"id": "m"}]}) == [
        {"id": "m"}
    ]


KEYS = """
    data models id key type owned_by meta status architecture loaded_instances config capabilities
    context_length parameters model_info details default_generation_settings n_ctx total_slots
    chat_template_caps state value output_modalities
"""
keys = st.sampled_from(KEYS.split()) | st.text(max_size=3)
pages = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=20,
)


@given(pages, pages)
@settings(max_examples=40)
def test_pages_of_any_shape_are_accepted(first: Any, second: Any) -> None:
    served = ServedModel(model="m", server="Ollama", loaded=False)
    for found in (cards.parse_model_list(first) or [], [{"id": "m", **_as_dict(first)}]):
        cards.detect_server(found)
        cards.chat_models(found, "")
    cards.add_llama_cpp_props(served, first)
    cards.add_ollama_running([served], second)
    cards.add_ollama_details(served, first)
    cards.parse_lm_studio(second)


def _as_dict(value: Any) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != "id"} if isinstance(value, dict) else {}
