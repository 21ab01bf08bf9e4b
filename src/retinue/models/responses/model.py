"""Models behind the Responses API: OpenAI, xAI, Azure and some gateways."""

from __future__ import annotations

from functools import partial
from urllib.parse import urlsplit

from retinue.models.http.capabilities import Capabilities, OutputMode
from retinue.models.http.client import Dialect, HttpModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.http.images import PASSING_IMAGE_FEATURES
from retinue.models.http.transport import OnHeaders, Transport
from retinue.models.responses.reply import ResponseReader
from retinue.models.responses.request import OPTIONAL_FEATURES, REASONING_ITEMS, ResponsesEncoder

_OUTPUT_MODES = (OutputMode.SCHEMA, OutputMode.OBJECT, OutputMode.TOOL)
_HOSTS = ("api.openai.com", "api.x.ai")


class ResponsesModel(HttpModel):
    def __init__(
        self,
        endpoint: Endpoint,
        *,
        name: str | None = None,
        effort: str | None = None,
        on_headers: OnHeaders | None = None,
    ) -> None:
        super().__init__(
            name or f"responses:{endpoint.model}@{endpoint.address}",
            responses_dialect(endpoint, effort=effort, on_headers=on_headers),
        )


def responses_dialect(
    endpoint: Endpoint, *, effort: str | None = None, on_headers: OnHeaders | None = None
) -> Dialect:
    errors = ErrorMapper(endpoint)
    # Reasoning belongs to this model and this API. The name that the user chose does not say which
    # API it was: chat completions at the same address may have been used before.
    owner = f"responses:{endpoint.model}@{endpoint.address}"
    return Dialect(
        Transport(endpoint, errors, path="/responses", on_headers=on_headers),
        Capabilities(
            _OUTPUT_MODES,
            schema_with_tools=is_responses_address(endpoint.base_url),
            optional_features=OPTIONAL_FEATURES,
            passing_features=PASSING_IMAGE_FEATURES | {REASONING_ITEMS},
        ),
        ResponsesEncoder(endpoint.model, name=owner, effort=effort),
        partial(ResponseReader, errors, model_name=owner),
    )


def is_responses_address(url: str) -> bool:
    """Whether to prefer the Responses API to chat completions at this address.

    False for local servers, which implement less of it: llama.cpp ignores schemas there.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    own = any(host == one or host.endswith(f".{one}") for one in _HOSTS)
    return own or parts.path.rstrip("/").endswith("/responses")
