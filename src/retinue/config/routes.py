"""Model names: `provider:model@endpoint`."""

from __future__ import annotations

import re
from difflib import get_close_matches
from urllib.parse import urlsplit

import msgspec

from retinue.errors import ConfigError

PROVIDERS = ("openai", "scripted")
OPENAI_URL = "https://api.openai.com/v1"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A model name, taken apart. `endpoint` is empty where the provider's own is meant."""

    provider: str
    model: str
    endpoint: str = ""

    def __str__(self) -> str:
        at = f"@{self.endpoint}" if self.endpoint else ""
        return f"{self.provider}:{self.model}{at}"


def parse_route(name: str) -> Route:
    """Take a model name apart. A name without a provider is an OpenAI-compatible one."""
    text = name.strip()
    provider, colon, rest = text.partition(":")
    if not colon or provider not in PROVIDERS:
        # A colon alone does not make a provider: Ollama's names have one, as in qwen3:8b.
        if close := get_close_matches(provider, PROVIDERS, cutoff=0.75) if colon else []:
            raise ConfigError(
                f"Unknown provider {provider!r} in model {name!r}; write {close[0]}:…"
            )
        provider, rest = "openai", text
    if provider == "scripted":
        if not rest:
            raise ConfigError("Name the script: scripted:FILE.yaml.")
        return Route(provider=provider, model=rest)
    # LM Studio has an @ in some names, as in gemma-3@q8_0.
    model, _, endpoint = rest.partition("@")
    if found := re.search(r"@(?=https?://)", rest):
        model, endpoint = rest[: found.start()], rest[found.end() :]
    if not model:
        raise ConfigError(f"No model in {name!r}. Write openai:MODEL@http://HOST:PORT/v1.")
    if endpoint:
        # First, so that no other message shows a key.
        if "@" in endpoint:
            raise ConfigError("Put the key into OPENAI_API_KEY, not into the model's address.")
        if not is_web_address(endpoint):
            raise ConfigError(
                f"{endpoint!r} in model {name!r} is not a web address;"
                " write openai:MODEL@http://HOST:PORT/v1."
            )
    return Route(provider=provider, model=model, endpoint=endpoint.rstrip("/"))


def is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # Reading the port checks it.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
