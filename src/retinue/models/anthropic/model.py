"""Anthropic's Messages API, which some local servers speak as well."""

from __future__ import annotations

import re
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
from retinue.models.http.images import PASSING_IMAGE_FEATURES
from retinue.models.http.transport import OnHeaders, Transport, bearer_header

_OUTPUT_MODES = (OutputMode.SCHEMA, OutputMode.TOOL)
_ANTHROPIC = "api.anthropic.com"
_VERSION = {"anthropic-version": "2023-06-01"}
# Thinking between tool calls. A model that decides by itself when to think does so anyway.
_INTERLEAVED = "interleaved-thinking-2025-05-14"
_TASK_BUDGETS = "task-budgets-2026-03-13"
_WITH_TASK_BUDGETS = re.compile(r"claude-(fable|mythos|opus-(4[-.][78]|[5-9]))")


class AnthropicModel(HttpModel):
    api = "anthropic"

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        name: str | None = None,
        thinking: ThinkingOptions | None = None,
        adaptive: bool = False,
        one_hour_cache: bool = False,
        on_headers: OnHeaders | None = None,
    ) -> None:
        """`adaptive` says that the model decides how much to think, and has no budgets for it."""
        thinking = thinking or ThinkingOptions()
        task_budgets = _WITH_TASK_BUDGETS.search(endpoint.model) is not None
        betas = [_INTERLEAVED] if thinking.budget_tokens and not adaptive else []
        betas += [_TASK_BUDGETS] if task_budgets else []
        name = name or f"anthropic:{endpoint.model}{thinking}@{endpoint.address}"
        errors = ErrorMapper(endpoint, usual_suffix="")
        transport = Transport(
            endpoint,
            errors,
            path="/v1/messages",
            headers=_VERSION | ({"anthropic-beta": ",".join(betas)} if betas else {}),
            credentials=partial(_credentials, endpoint.base_url),
            on_headers=on_headers,
        )
        super().__init__(
            name,
            Dialect(
                transport,
                # No schema beside tools: models that think have then answered instead of calling.
                Capabilities(
                    _OUTPUT_MODES,
                    optional_features=OPTIONAL_FEATURES,
                    passing_features=PASSING_IMAGE_FEATURES,
                ),
                MessagesEncoder(
                    endpoint.model,
                    name=name,
                    thinking=thinking,
                    adaptive=adaptive,
                    task_budgets=task_budgets,
                    one_hour_cache=one_hour_cache,
                ),
                partial(MessageReplyReader, errors, model_name=name),
            ),
        )


def _credentials(base_url: str, key: str) -> Mapping[str, str]:
    """Anthropic documents `x-api-key`; some servers with its API want a bearer token."""
    if urlsplit(base_url).hostname == _ANTHROPIC:
        return {"x-api-key": key}
    return {"x-api-key": key, **bearer_header(key)}
