"""Model names: `provider:model@endpoint`. Names for Anthropic may have options: `model+thinking`.

The embedded model is named `embedded`.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

from retinue.domain.thinking import ThinkingOptions, parse_thinking
from retinue.errors import ConfigError


class ProviderApi(msgspec.Struct, frozen=True, kw_only=True):
    """API of a provider: its address, and the variables for another address and for the key."""

    title: str
    url: str
    url_variable: str
    key_variable: str
    example: str


PROVIDER_APIS = {
    "openai": ProviderApi(
        title="OpenAI",
        url="https://api.openai.com/v1",
        url_variable="OPENAI_BASE_URL",
        key_variable="OPENAI_API_KEY",
        example="openai:gpt-5-mini",
    ),
    "anthropic": ProviderApi(
        title="Anthropic",
        url="https://api.anthropic.com",
        url_variable="ANTHROPIC_BASE_URL",
        key_variable="ANTHROPIC_API_KEY",
        example="anthropic:claude-sonnet-4-5",
    ),
}
# The Responses API by choice; `openai:` chooses between it and chat completions by the address.
RESPONSES = "responses"
PROVIDER_APIS[RESPONSES] = PROVIDER_APIS["openai"]
# Providers whose model is a file, and the message if the file is not named.
_FILE_PROVIDERS = {
    "replay": "Name the recording: replay:FILE.jsonl.",
    "scripted": "Name the script: scripted:FILE.yaml.",
}
PROVIDERS = (*PROVIDER_APIS, *_FILE_PROVIDERS)
EMBEDDED = "embedded"


class ModelRoute(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a model name. An empty `endpoint` means the provider's own address.

    `model` is empty for the embedded model.
    """

    provider: str
    model: str
    endpoint: str = ""
    thinking: ThinkingOptions = ThinkingOptions()

    def __str__(self) -> str:
        if self.provider == EMBEDDED:
            return EMBEDDED
        at = f"@{self.endpoint}" if self.endpoint else ""
        return f"{self.provider}:{self.model}{self.thinking}{at}"


@lru_cache(maxsize=256)
def parse_route(name: str, *, default_provider: str = "openai") -> ModelRoute:
    """Parse a model name. A name without a provider belongs to `default_provider`."""
    text = name.strip()
    if text == EMBEDDED:
        return ModelRoute(provider=EMBEDDED, model="")
    provider, colon, rest = text.partition(":")
    if not colon or provider not in PROVIDERS:
        # A colon alone does not make a provider: names of Ollama have one, as in qwen3:8b.
        if close := get_close_matches(provider, PROVIDERS, cutoff=0.75) if colon else []:
            raise ConfigError(
                f"Unknown provider {provider!r} in model {name!r}; write {close[0]}:…"
            )
        provider, rest = default_provider, text
    if provider in _FILE_PROVIDERS:
        if not rest:
            raise ConfigError(_FILE_PROVIDERS[provider])
        return ModelRoute(provider=provider, model=rest)
    # LM Studio has an @ in some names, as in gemma-3@q8_0.
    model, _, endpoint = rest.partition("@")
    if found := re.search(r"@(?=https?://)", rest):
        model, endpoint = rest[: found.start()], rest[found.end() :]
    options = ""
    if provider == "anthropic":
        model, _, options = model.partition("+")
    written = f"{provider}:MODEL@http://HOST:PORT/v1"
    if not model:
        raise ConfigError(f"No model in {name!r}. Write {written}.")
    if endpoint:
        # Checked first, so that no other message shows a key.
        if "@" in endpoint:
            variable = PROVIDER_APIS[provider].key_variable
            raise ConfigError(f"Put the key into {variable}, not into the model's address.")
        if not is_web_address(endpoint):
            raise ConfigError(
                f"{endpoint!r} in model {name!r} is not a web address; write {written}."
            )
    return ModelRoute(
        provider=provider,
        model=model,
        endpoint=endpoint.rstrip("/"),
        thinking=parse_thinking(options),
    )


def is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # Reading the port checks it.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
