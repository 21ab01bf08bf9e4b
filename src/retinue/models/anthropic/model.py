"""Anthropic's Messages API, which some local servers speak as well."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from urllib.parse import urlsplit

from retinue.domain.thinking import ThinkingOptions
from retinue.models.anthropic.reply import MessageReplyReader
from retinue.models.anthropic.request import OPTIONAL_FEATURES, MessagesEncoder
from retinue.models.http.capabilities import Capabilities, OutputMode
from retinue.models.http.client import Dialect, HttpModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.http.transport import OnHeaders, Transport, bearer_header

_OUTPUT_MODES = (OutputMode.SCHEMA, OutputMode.TOOL)
_ANTHROPIC = "api.anthropic.com"
_VERSION = {"anthropic-version": "2023-06-01"}
# Thinking between tool calls. A model that decides by itself when to think does so anyway.
_INTERLEAVED = {"anthropic-beta": "interleaved-thinking-2025-05-14"}


class AnthropicModel(HttpModel):
    def __init__(
        self,
        endpoint: Endpoint,
        *,
        name: str | None = None,
        thinking: ThinkingOptions | None = None,
        on_headers: OnHeaders | None = None,
    ) -> None:
        thinking = thinking or ThinkingOptions()
        name = name or f"anthropic:{endpoint.model}{thinking}@{endpoint.address}"
        errors = ErrorMapper(endpoint, usual_suffix="")
        transport = Transport(
            endpoint,
            errors,
            path="/v1/messages",
            headers=_VERSION | (_INTERLEAVED if thinking.budget_tokens else {}),
            credentials=partial(_credentials, endpoint.base_url),
            on_headers=on_headers,
        )
        super().__init__(
            name,
            Dialect(
                transport,
                # No schema beside tools: models that think have then answered instead of calling.
                Capabilities(_OUTPUT_MODES, optional_features=OPTIONAL_FEATURES),
                MessagesEncoder(endpoint.model, name=name, thinking=thinking),
                partial(MessageReplyReader, errors, model_name=name),
            ),
        )


def _credentials(base_url: str, key: str) -> Mapping[str, str]:
    """Anthropic documents `x-api-key`; some servers with its API want a bearer token."""
    if urlsplit(base_url).hostname == _ANTHROPIC:
        return {"x-api-key": key}
    return {"x-api-key": key, **bearer_header(key)}
