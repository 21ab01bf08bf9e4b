from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from retinue.domain.messages import Message, Request, ToolMessage, UserMessage
from retinue.errors import ProviderError, RequestRefused
from retinue.models.http.endpoint import Endpoint
from retinue.models.openai.model import OpenAIModel
from retinue.models.responses.model import ResponsesModel, is_responses_address
from retinue.models.scripted.model import ScriptedReply, call, calls, say, think
from retinue.ports.model import Model
from retinue.testing.model_contract import OPENING, SPEC, ModelContract
from retinue.testing.responses_format import whole
from retinue.testing.server import (
    Answering,
    ModelServer,
    Received,
    Response,
    as_json,
    failing,
)

HI = Request(messages=(UserMessage("Hi."),))
USE_RESPONSES = (
    "Function tools with reasoning_effort are not supported for gpt-5.5 in /v1/chat/completions."
    " Please use /v1/responses instead."
)


def model_of(server: ModelServer) -> ResponsesModel:
    return ResponsesModel(Endpoint(base_url=server.base_url, model="m"))


def chat_model_of(server: ModelServer) -> OpenAIModel:
    return OpenAIModel(Endpoint(base_url=server.base_url, model="m"))


class TestResponsesModel(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Model]:
        async with ModelServer(steps) as server, model_of(server) as model:
            yield model


class TestResponsesModelWithoutStreaming(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Model]:
        async with (
            ModelServer(as_json(whole(step)) for step in steps) as server,
            model_of(server) as model,
        ):
            yield model


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("https://api.x.ai/v1", True),
        ("https://gateway.test/v1/responses", True),
        ("https://notapi.openai.com.test/v1", False),
        ("http://127.0.0.1:8080/v1", False),
    ],
)
def test_addresses_where_it_is_the_default(url: str, expected: bool) -> None:
    assert is_responses_address(url) is expected


async def test_request_headers_and_path() -> None:
    async with ModelServer([say("x")]) as server:
        endpoint = Endpoint(base_url=server.base_url, model="m", api_key="sk-1")
        async with ResponsesModel(endpoint) as model:
            await model.reply(HI)
    (sent,) = server.requests
    assert (sent.method, sent.target) == ("POST", "/v1/responses")
    assert sent.headers["authorization"] == "Bearer sk-1"
    assert model.name == f"responses:m@{server.base_url}"


class OpenAIServer:
    """Refuses tools on chat completions, and answers by the Responses API."""

    def __init__(self, *steps: ScriptedReply, refusal: Response) -> None:
        self._steps = list(steps)
        self._refusal = refusal

    def __call__(self, request: Received) -> Answering:
        if request.target.endswith("/chat/completions"):
            return self._refusal
        return self._steps.pop(0)


@pytest.mark.parametrize(
    "refusal",
    [
        failing(400, USE_RESPONSES, kind="invalid_request_error"),
        failing(
            404, "This model is only supported in v1/responses and not in v1/chat/completions."
        ),
    ],
)
async def test_a_refusal_that_names_it_switches_once_and_is_remembered(refusal: Response) -> None:
    asked = think("Both.", calls(call("read_file", path="a"), call("read_file", path="b")))
    async with ModelServer(OpenAIServer(asked, say("Done."), refusal=refusal)) as server:
        endpoint = Endpoint(base_url=server.base_url, model="m")
        async with OpenAIModel(endpoint, effort="high") as model:
            first = await model.reply(Request(messages=OPENING, tools=(SPEC,)))
            answers = [ToolMessage(made.id, "text") for made in first.message.calls]
            messages: tuple[Message, ...] = (*OPENING, first.message, *answers)
            second = await model.reply(Request(messages=messages, tools=(SPEC,)))
    assert second.message.content == "Done."
    assert [sent.target.removeprefix("/v1/") for sent in server.requests] == [
        "chat/completions",
        "responses",
        "responses",
    ]
    assert server.requests[1].json["reasoning"]["effort"] == "high"


async def test_a_server_without_the_api_it_names_is_asked_by_each_once() -> None:
    async with (
        ModelServer(lambda _: failing(400, USE_RESPONSES)) as server,
        chat_model_of(server) as model,
    ):
        with pytest.raises(RequestRefused, match="use /v1/responses instead"):
            await model.reply(HI)
    assert [sent.target for sent in server.requests] == ["/v1/chat/completions", "/v1/responses"]


async def test_another_error_does_not_switch() -> None:
    async with (
        ModelServer([failing(404, "No such model.")]) as server,
        chat_model_of(server) as model,
    ):
        with pytest.raises(ProviderError):
            await model.reply(HI)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("refusal", "left_out"),
    [
        (
            "Unsupported parameter: 'reasoning.summary' is not supported with this model.",
            "reasoning",
        ),
        ("Your organization must be verified to generate reasoning summaries.", "reasoning"),
        ("Encrypted content is not supported with this model.", "include"),
        ("Unknown parameter: 'prompt_cache_key'.", "prompt_cache_key"),
        ("The instructions parameter is not supported.", "instructions"),
    ],
)
async def test_what_a_server_refuses_is_left_out(refusal: str, left_out: str) -> None:
    async with (
        ModelServer([failing(400, refusal), say("Hi."), say("Hi.")]) as server,
        model_of(server) as model,
    ):
        for _ in range(2):
            assert (await model.reply(Request(messages=OPENING))).message.content == "Hi."
    first, *later = (sent.json for sent in server.requests)
    for sent in later:
        assert first.keys() - sent.keys() == {left_out}
