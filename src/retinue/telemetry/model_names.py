"""Names of models as spans have them: provider, model and server apart."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

# Where the GenAI conventions have another name than retinue.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
_NAME = re.compile(
    r"(?:(?P<provider>[a-z0-9_-]+):)?(?P<model>.+?)(?:\+(?:thinking|effort)\b.*?)?"
    r"(?:@(?P<endpoint>https?://.+))?"
)


class ModelName(NamedTuple):
    provider: str
    model: str
    address: str = ""
    """Host of the server; "" for the provider's own."""
    port: int = 0


@lru_cache(maxsize=256)
def read_model_name(name: str) -> ModelName:
    """The parts of `openai:qwen3@http://HOST:PORT/v1`. A name without a provider is both."""
    found = _NAME.fullmatch(name)
    if found is None:
        return ModelName(name, name)
    model, endpoint = found["model"], found["endpoint"]
    provider = found["provider"] or model
    provider = _PROVIDERS.get(provider, provider)
    if not endpoint:
        return ModelName(provider, model)
    try:
        parts = urlsplit(endpoint)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return ModelName(provider, model)
    return ModelName(provider, model, parts.hostname or "", port)
