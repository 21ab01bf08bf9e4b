"""Model names: `provider:model@endpoint`. A model may have options: `model+effort=high`.

The embedded model is named `embedded`.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

from retinue.config.model_providers import PROVIDER_APIS
from retinue.domain.thinking import ThinkingOptions, parse_thinking
from retinue.errors import ConfigError

# Providers whose model is a file, and the message if the file is not named.
_FILE_PROVIDERS = {
    "replay": "Name the recording: replay:FILE.jsonl.",
    "scripted": "Name the script: scripted:FILE.yaml.",
}
PROVIDERS = (*PROVIDER_APIS, *_FILE_PROVIDERS)
# Names of Ollama have a colon too, as in mistral:7b. Its tags begin like this.
_OLLAMA_TAG = re.compile(r"v?\d|(latest|instruct|text|chat)\b")
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
    tagged = _OLLAMA_TAG.match(rest) is not None
    if provider not in PROVIDERS or not colon or (provider == "mistral" and tagged):
        is_typo = colon and not tagged
        if close := get_close_matches(provider, PROVIDERS, cutoff=0.75) if is_typo else []:
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
    model, options = _split_options(model, anthropic=PROVIDER_APIS[provider].dialect == "anthropic")
    written = f"{provider}:MODEL@http://HOST:PORT/v1"
    if not model:
        raise ConfigError(f"No model in {name!r}. Write {written}.")
    if endpoint:
        # Checked first, so that no other message shows a key.
        if "@" in endpoint:
            variable = PROVIDER_APIS[provider].key_variable or "a variable"
            raise ConfigError(f"Put the key into {variable}, not into the model's address.")
        if not is_web_address(endpoint):
            raise ConfigError(
                f"{endpoint!r} in model {name!r} is not a web address; write {written}."
            )
    thinking = parse_thinking(options)
    if thinking.on is not None and PROVIDER_APIS[provider].dialect != "anthropic":
        raise ConfigError(
            f"Only Anthropic's API has the option thinking, in model {name!r}; write +effort=high,"
            " or +effort=none for no thinking."
        )
    return ModelRoute(
        provider=provider, model=model, endpoint=endpoint.rstrip("/"), thinking=thinking
    )


def _split_options(model: str, *, anthropic: bool) -> tuple[str, str]:
    """Split the model from its options. Other names than Anthropic's may have a +: command-r+."""
    found = re.search(r"\+" if anthropic else r"\+(?=(thinking|effort)\b)", model)
    return (model, "") if found is None else (model[: found.start()], model[found.end() :])


def is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # Reading the port checks it.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
