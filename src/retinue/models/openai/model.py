"""The chat-completions API, as OpenAI and nearly every local server speak it."""

from __future__ import annotations

from functools import partial
from urllib.parse import urlsplit

from retinue.models.http.capabilities import Capabilities, OutputMode
from retinue.models.http.client import HttpModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.http.transport import OnHeaders, Transport
from retinue.models.openai.reply import ChatReplyReader
from retinue.models.openai.request import OPTIONAL_FEATURES, ChatEncoder

_OUTPUT_MODES = (OutputMode.SCHEMA, OutputMode.OBJECT, OutputMode.TOOL)
_OPENAI = "api.openai.com"


class OpenAIModel(HttpModel):
    def __init__(
        self, endpoint: Endpoint, *, name: str | None = None, on_headers: OnHeaders | None = None
    ) -> None:
        name = name or f"openai:{endpoint.model}@{endpoint.address}"
        errors = ErrorMapper(endpoint)
        transport = Transport(endpoint, errors, path="/chat/completions", on_headers=on_headers)
        super().__init__(
            name,
            transport,
            Capabilities(
                _OUTPUT_MODES,
                # vLLM, Ollama and llama.cpp take both, and then never let the model call a tool.
                schema_with_tools=urlsplit(endpoint.base_url).hostname == _OPENAI,
                optional_features=OPTIONAL_FEATURES,
            ),
            ChatEncoder(endpoint.model, name=name),
            partial(ChatReplyReader, errors, model_name=name),
        )
