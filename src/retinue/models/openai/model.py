"""The chat-completions API, as OpenAI and nearly every local server speak it."""

from __future__ import annotations

import re
from functools import partial
from urllib.parse import urlsplit

from retinue.errors import ModelError
from retinue.models.http.capabilities import Capabilities, OutputMode
from retinue.models.http.client import Dialect, HttpModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.http.images import PASSING_IMAGE_FEATURES
from retinue.models.http.transport import OnHeaders, Transport
from retinue.models.openai.reply import ChatReplyReader
from retinue.models.openai.request import OPTIONAL_FEATURES, REQUIRED_FEATURES, ChatEncoder
from retinue.models.responses.model import responses_dialect

_OUTPUT_MODES = (OutputMode.SCHEMA, OutputMode.OBJECT, OutputMode.TOOL)
_OPENAI = "api.openai.com"
_MINIMAX = frozenset({"api.minimax.io", "api.minimaxi.com"})
_VERTEX = "aiplatform.googleapis.com"
_RESPONSES = re.compile(r"\bv1/responses\b")


class OpenAIModel(HttpModel):
    """Changes to the Responses API if the server says that the model needs it."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        name: str | None = None,
        effort: str | None = None,
        split_reasoning: bool = False,
        on_headers: OnHeaders | None = None,
    ) -> None:
        name = name or f"openai:{endpoint.model}@{endpoint.address}"
        errors = ErrorMapper(endpoint)
        transport = Transport(endpoint, errors, path="/chat/completions", on_headers=on_headers)
        host = urlsplit(endpoint.base_url).hostname or ""
        super().__init__(
            name,
            Dialect(
                transport,
                Capabilities(
                    _OUTPUT_MODES,
                    # vLLM, Ollama and llama.cpp take both, and then never let the model call a
                    # tool.
                    schema_with_tools=host == _OPENAI,
                    optional_features=OPTIONAL_FEATURES,
                    required_features=REQUIRED_FEATURES,
                    passing_features=PASSING_IMAGE_FEATURES,
                ),
                ChatEncoder(
                    endpoint.model,
                    name=name,
                    effort=effort,
                    split_reasoning=split_reasoning or host in _MINIMAX,
                    vendor="vertex" if host.endswith(_VERTEX) else "google",
                ),
                partial(ChatReplyReader, errors, model_name=name),
            ),
            other=partial(_needed_dialect, endpoint, effort, on_headers),
        )


def _needed_dialect(
    endpoint: Endpoint, effort: str | None, on_headers: OnHeaders | None, error: ModelError
) -> Dialect | None:
    """The Responses API, if a refusal names it: "use /v1/responses instead"."""
    if error.retryable or not _RESPONSES.search(str(error)):
        return None
    return responses_dialect(endpoint, effort=effort, on_headers=on_headers)
