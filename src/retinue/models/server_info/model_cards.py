"""Parses what servers say about their models, in each server's own form.

A field that is missing or of an unexpected type is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from retinue.domain.price import Price
from retinue.domain.server_info import LLAMA_CPP, LM_STUDIO, OLLAMA, VLLM, ServedModel

Card = Mapping[str, Any]

MAX_NAME_CHARS = 512
# No window is larger, and no server has more slots.
_MOST = 10**9

# `owned_by` in the list of models, where it shows the kind of server.
_OWNERS = {
    "llamacpp": LLAMA_CPP,
    "vllm": VLLM,
    "library": OLLAMA,
    "organization_owner": LM_STUDIO,
    "sglang": "SGLang",
    "koboldcpp": "KoboldCpp",
}
# Names of models that are not for chat, where nothing else tells.
_NO_CHAT = re.compile(
    r"embed|rerank|whisper|\btts\b|dall-e|moderation|transcribe|realtime|-audio|-image|image-"
    r"|\bsora\b|davinci|babbage|turbo-instruct",
    re.IGNORECASE,
)
# A window goes by many names: vLLM and SGLang, OpenRouter and Together, Groq, Mistral, Anthropic.
_WINDOWS = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "max_input_tokens",
)
# The longest output: Groq and OpenRouter, others, and Anthropic.
_OUTPUTS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


def parse_model_list(page: Any) -> list[Card] | None:
    """The entries of `/v1/models`, one for each name; None if the page is no list of models."""
    if not isinstance(page, dict) or "data" not in page:
        return None
    entries = page["data"] or []  # Ollama has null for none.
    if not isinstance(entries, list):
        return None
    found: dict[str, Card] = {}
    for entry in entries:
        if isinstance(entry, dict) and _is_name(entry.get("id")):
            found.setdefault(entry["id"], entry)
    return list(found.values())


def _is_name(text: Any) -> bool:
    # Names are shown in a terminal, which would execute some control characters.
    return isinstance(text, str) and 0 < len(text) <= MAX_NAME_CHARS and text.isprintable()


def detect_server(cards: Iterable[Card]) -> str:
    """The kind of server with these entries; empty if they do not show it."""
    for card in cards:
        owner = card.get("owned_by")
        if isinstance(owner, str) and owner in _OWNERS:
            return _OWNERS[owner]
    return ""


def chat_models(cards: Iterable[Card], server: str) -> list[ServedModel]:
    """The chat models in the list, with all that the list says about them."""
    return [_plain(card, server) for card in cards if _is_chat_model(card)]


def _plain(card: Card, server: str) -> ServedModel:
    meta = _as_dict(card.get("meta"))
    window = next((n for key in _WINDOWS if (n := _count(card.get(key)))), None)
    state = _as_dict(card.get("status")).get("value")
    limits = {**_as_dict(card.get("top_provider")), **card}
    return ServedModel(
        # Gemini's names have a prefix that requests do not need; elsewhere it is a folder.
        model=card["id"] if server else card["id"].removeprefix("models/"),
        server=server,
        window=_count(meta.get("n_ctx")) or window,
        max_window=_count(meta.get("n_ctx_train")),
        max_output=next((n for key in _OUTPUTS if (n := _count(limits.get(key)))), None),
        tools=_tools(card),
        images=_images(card),
        price=_price(_as_dict(card.get("pricing"))),
        loaded=state in ("loaded", "sleeping") if isinstance(state, str) else None,
    )


def _tools(card: Card) -> bool | None:
    """Whether the model can call tools, as OpenRouter and Mistral say it."""
    parameters = card.get("supported_parameters")
    if isinstance(parameters, list):
        return "tools" in parameters
    calls = _as_dict(card.get("capabilities")).get("function_calling")
    return _bool(calls)


def _images(card: Card) -> bool | None:
    """Whether the model can see, as OpenRouter, Mistral and llama.cpp's router say it."""
    inputs = _as_dict(card.get("architecture")).get("input_modalities")
    if isinstance(inputs, list):
        return "image" in inputs
    return _bool(_as_dict(card.get("capabilities")).get("vision"))


def _price(pricing: Card) -> Price | None:
    """OpenRouter's prices: texts with US dollars for each token."""
    names = ("prompt", "completion", "input_cache_read", "input_cache_write")
    found: list[float | None] = []
    for name in names:
        try:
            dollars = float(pricing[name])
        except (KeyError, TypeError, ValueError):
            dollars = -1.0
        found.append(dollars * 1e6 if 0 <= dollars < 1 else None)
    if found[0] is None or found[1] is None:
        return None
    return Price(input=found[0], output=found[1], cached=found[2], cache_write=found[3])


def _is_chat_model(card: Card) -> bool:
    outputs = _as_dict(card.get("architecture")).get("output_modalities")
    if isinstance(outputs, list):
        return "text" in outputs
    return not _NO_CHAT.search(card["id"])


# llama.cpp


def add_llama_cpp_props(served: ServedModel, props: Any) -> ServedModel:
    """Add what `/props` of llama.cpp says. The window there is that of one slot."""
    settings = _as_dict(_as_dict(props).get("default_generation_settings"))
    tools = _as_dict(_as_dict(props).get("chat_template_caps")).get("supports_tools")
    sees = _bool(_as_dict(_as_dict(props).get("modalities")).get("vision"))
    return msgspec.structs.replace(
        served,
        window=_count(settings.get("n_ctx")) or served.window,
        slots=_count(_as_dict(props).get("total_slots")) or served.slots,
        tools=_bool(tools),
        images=served.images if sees is None else sees,
    )


# Ollama


def add_ollama_running(served: Iterable[ServedModel], running: Any) -> list[ServedModel]:
    """Add what `/api/ps` says: which models are loaded, and with which window."""
    loaded = {
        str(card.get("model") or card.get("name")): _count(card.get("context_length"))
        for card in _dicts_under(running, "models")
    }
    return [
        msgspec.structs.replace(one, window=loaded.get(one.model), loaded=one.model in loaded)
        for one in served
    ]


def add_ollama_details(served: ServedModel, page: Any) -> ServedModel | None:
    """Add what `/api/show` of Ollama says; None if it is no chat model."""
    card = _as_dict(page)
    abilities = card.get("capabilities")
    if isinstance(abilities, list) and "completion" not in abilities:
        return None
    details = _as_dict(card.get("model_info"))
    sizes = (_count(n) for key, n in details.items() if key.endswith(".context_length"))
    largest = next(sizes, None)
    # The model will be loaded with the window that its Modelfile sets.
    chosen = re.search(r"^num_ctx\s+(\d{1,20})", str(card.get("parameters")), re.MULTILINE)
    window = served.window or (_count(int(chosen[1])) if chosen else None)
    remote = bool(card.get("remote_host"))
    return msgspec.structs.replace(
        served,
        window=largest if remote else window,
        max_window=largest,
        tools="tools" in abilities if isinstance(abilities, list) else None,
        images="vision" in abilities if isinstance(abilities, list) else None,
        loaded=None if remote else served.loaded,
        remote=remote,
    )


# LM Studio


def parse_lm_studio(page: Any) -> list[ServedModel] | None:
    """The models of `/api/v1/models`, or of `/api/v0/models`, which older versions have."""
    for key, parse in (("models", _lm_studio_v1), ("data", _lm_studio_v0)):
        if _as_dict(page).get(key) is not None:
            cards = _dicts_under(page, key)
            return [parse(card) for card in cards if card.get("type") in ("llm", "vlm")]
    return None


def _lm_studio_v1(card: Card) -> ServedModel:
    instances = _dicts_under(card, "loaded_instances")
    # Several instances differ by a number after the name; the plain name means the first.
    config = _as_dict(instances[0].get("config")) if instances else {}
    abilities = _as_dict(card.get("capabilities"))
    return ServedModel(
        model=str(card.get("key", "")),
        server=LM_STUDIO,
        window=_count(config.get("context_length")),
        max_window=_count(card.get("max_context_length")),
        slots=_count(config.get("parallel")),
        tools=_bool(abilities.get("trained_for_tool_use")),
        images=_bool(abilities.get("vision")),
        loaded=bool(instances),
    )


def _lm_studio_v0(card: Card) -> ServedModel:
    abilities = card.get("capabilities")
    return ServedModel(
        model=str(card.get("id", "")),
        server=LM_STUDIO,
        window=_count(card.get("loaded_context_length")),
        max_window=_count(card.get("max_context_length")),
        tools="tool_use" in abilities if isinstance(abilities, list) else None,
        images=card.get("type") == "vlm",
        loaded=card.get("state") == "loaded",
    )


# Anything


def _as_dict(value: Any) -> Card:
    return value if isinstance(value, dict) else {}


def _dicts_under(page: Any, key: str) -> list[Card]:
    rows = _as_dict(page).get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MOST:
        return None
    return value
