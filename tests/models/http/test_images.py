"""Servers that refuse images: what is believed of them, and for how long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from retinue.domain.messages import Request, UserMessage
from retinue.errors import ProviderError, RequestRefused
from retinue.models.anthropic.model import AnthropicModel
from retinue.models.http.client import HttpModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.images import IMAGES
from retinue.models.openai.model import OpenAIModel
from retinue.models.responses.model import ResponsesModel
from retinue.models.scripted.model import say
from retinue.testing.model_contract import IMAGE
from retinue.testing.server import Answering, ModelServer, Response, chunk, events, failing

SEEN = Request(messages=(UserMessage("What is this?", (IMAGE,)),))
TOLD = "[image shot.png (1×1 pixels) is left out: you cannot see images]"
API = pytest.mark.parametrize("api", [OpenAIModel, AnthropicModel, ResponsesModel])


def model_of(api: Any, server: ModelServer) -> HttpModel:
    url = server.base_url.removesuffix("/v1") if api is AnthropicModel else server.base_url
    model: HttpModel = api(Endpoint(base_url=url, model="m"))
    return model


def refusing(message: str) -> Response:
    return failing(400, message, kind="invalid_request_error")


@API
@pytest.mark.parametrize(
    "refusal",
    [
        "image input is not supported - hint: you may need to provide the mmproj",
        "Invalid content type. image_url is only supported by certain models.",
        "Failed to deserialize: messages[1]: unknown variant `image_url`, expected `text`",
        "At most 0 image(s) may be provided in one prompt.",
        "m is not a multimodal model",
        "This model does not support image input",
        "messages[1].content must be a string",
    ],
)
async def test_a_model_that_cannot_see_is_told_so_from_then_on(api: Any, refusal: str) -> None:
    steps: list[Answering] = [refusing(refusal), say("I cannot see it."), say("Still not.")]
    async with ModelServer(steps) as server, model_of(api, server) as model:
        assert (await model.reply(SEEN)).message.content == "I cannot see it."
        assert (await model.reply(SEEN)).message.content == "Still not."
        first, second, third = (msgspec.json.encode(r.json).decode() for r in server.requests)
    assert IMAGE.data in first
    assert IMAGE.data not in second + third
    assert TOLD in second
    assert TOLD in third


@API
async def test_a_server_that_fails_because_of_an_image_gets_none_from_then_on(api: Any) -> None:
    refusal = "image input is not supported - hint: you may need to provide the mmproj"
    steps: list[Answering] = [failing(500, refusal), say("I cannot see it."), say("Still not.")]
    async with ModelServer(steps) as server, model_of(api, server) as model:
        await model.reply(SEEN)
        await model.reply(SEEN)
        sent = [IMAGE.data in msgspec.json.encode(r.json).decode() for r in server.requests]
    assert sent == [True, False, False]


@API
async def test_a_failing_server_is_not_asked_again_without_the_image(api: Any) -> None:
    async with (
        ModelServer([failing(500, "the image cache is full")]) as server,
        model_of(api, server) as model,
    ):
        with pytest.raises(ProviderError):
            await model.reply(SEEN)
        assert len(server.requests) == 1


@API
async def test_a_complaint_about_one_image_holds_for_one_request(api: Any) -> None:
    steps: list[Answering] = [
        refusing("Could not process image"),
        say("None."),
        say("A red pixel."),
    ]
    async with ModelServer(steps) as server, model_of(api, server) as model:
        await model.reply(SEEN)
        await model.reply(SEEN)
        sent = [IMAGE.data in msgspec.json.encode(r.json).decode() for r in server.requests]
    assert sent == [True, False, True]


@API
async def test_a_known_blind_model_is_never_sent_an_image(api: Any) -> None:
    async with ModelServer([say("No.")]) as server, model_of(api, server) as model:
        model.leave_out(IMAGES)
        await model.reply(SEEN)
        (request,) = server.requests
    assert TOLD in msgspec.json.encode(request.json).decode()


@API
async def test_a_word_about_images_does_not_repeat_a_request_without_any(api: Any) -> None:
    plain = Request(messages=(UserMessage("Hi."),))
    async with ModelServer([refusing("The image of the server is broken")] * 2) as server:
        async with model_of(api, server) as model:
            with pytest.raises(RequestRefused):
                await model.reply(plain)
        assert len(server.requests) == 1


async def test_an_image_counts_by_its_pixels_and_not_by_its_bytes() -> None:
    large = msgspec.structs.replace(IMAGE, data="A" * 400_000, width=784, height=784)
    asked = Request(messages=(UserMessage("?", (large,)),))
    body = events(chunk({"content": "Red."}), chunk({}, finish_reason="stop"))
    answer = Response(headers={"Content-Type": "text/event-stream"}, body=body)
    async with ModelServer([answer]) as server, model_of(OpenAIModel, server) as model:
        reply = await model.reply(asked)
    assert reply.usage.estimated
    assert large.tokens <= reply.usage.tokens_in < large.tokens + 200
