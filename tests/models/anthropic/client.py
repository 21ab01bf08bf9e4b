"""A client of the Messages API before a scripted server."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.domain.messages import (
    Reply,
    Request,
    ToolSpec,
    UserMessage,
)
from retinue.domain.thinking import ThinkingOptions
from retinue.models.anthropic.model import AnthropicModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.scripted.model import ScriptedReply
from retinue.testing.server import ModelServer, Response

HI = Request(messages=(UserMessage("Hi."),))
ERRORS = ErrorMapper(Endpoint(base_url="http://127.0.0.1", model="m"))
TOOL = ToolSpec("read_file", "Read.", msgspec.Raw(b'{"type":"object"}'))


def model_of(
    server: ModelServer, thinking: ThinkingOptions | None = None, **fields: Any
) -> AnthropicModel:
    endpoint = Endpoint(base_url=server.base_url, model="m", **fields)
    return AnthropicModel(endpoint, thinking=thinking)


async def replied(*answers: Response | ScriptedReply, **fields: Any) -> Reply:
    """The reply to the first of these answers."""
    async with ModelServer(answers) as server, model_of(server, **fields) as model:
        return await model.reply(HI)
