"""Two rounds of parallel calls with servers that behave like the providers, and need data back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from retinue.config.model_routes import parse_route
from retinue.domain.messages import (
    AssistantMessage,
    Message,
    Request,
    SystemMessage,
    Thought,
    Thoughts,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from retinue.errors import RequestRefused
from retinue.models.anthropic.model import AnthropicModel
from retinue.models.http.client import HttpModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.openai.model import OpenAIModel
from retinue.models.responses.model import ResponsesModel
from retinue.ports.model import Model
from retinue.testing.model_contract import SPEC
from retinue.testing.server import ModelServer
from tests.models.provider_servers import (
    PROVIDERS,
    THOUGHT,
    DeepSeek,
    Gemini,
    Kimi,
    MiniMax,
    OpenRouter,
    Provider,
)

OPENING: tuple[Message, ...] = (SystemMessage("Be brief."), UserMessage("Read both."))
FOREIGN = AssistantMessage(
    "I look.",
    (ToolCall("x", "read_file", "{}"), ToolCall("y", "read_file", "{}")),
    Thoughts("another", (Thought('{"reasoning_content":"Not mine."}'),)),
)
FOREIGN_ROUND = (FOREIGN, ToolMessage("x", "1"), ToolMessage("y", "2"))


def model_at(server: ModelServer, provider: type[Provider]) -> HttpModel:
    route = parse_route(f"{provider.route}@{server.base_url}")
    endpoint = Endpoint(base_url=server.base_url, model=route.model)
    if route.provider == "anthropic":
        return AnthropicModel(endpoint, thinking=route.thinking)
    if route.provider == "responses":
        return ResponsesModel(endpoint)
    return OpenAIModel(endpoint, split_reasoning=provider is MiniMax)


def journaled(message: AssistantMessage) -> AssistantMessage:
    return msgspec.json.decode(msgspec.json.encode(message), type=AssistantMessage)


async def talk(model: Model, messages: list[Message]) -> str:
    """Answer calls until the model makes none. What it said is added to the messages."""
    while True:
        message = (await model.reply(Request(messages=tuple(messages), tools=(SPEC,)))).message
        messages.append(journaled(message))
        if not message.calls:
            return message.content
        assert len(message.calls) == 2
        messages += (ToolMessage(call.id, "text") for call in message.calls)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_two_rounds_and_another_message(provider: type[Provider]) -> None:
    messages = list(OPENING)
    async with ModelServer(provider()) as server, model_at(server, provider) as model:
        assert await talk(model, messages) == "Done."
        messages.append(UserMessage("And now?"))
        assert await talk(model, messages) == "Again."
    refused = 1 if provider.__name__ == "OpenAI" else 0
    assert len(server.requests) == 4 + refused, "nothing else was refused"
    assert "<think>" not in str(messages)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_another_process_goes_on(provider: type[Provider]) -> None:
    messages = list(OPENING)
    async with ModelServer(provider()) as server:
        first, second = (model_at(server, provider) for _ in range(2))
        message = (await first.reply(Request(messages=tuple(messages), tools=(SPEC,)))).message
        messages += (journaled(message), *(ToolMessage(one.id, "") for one in message.calls))
        await first.aclose()
        assert await talk(second, messages) == "Done."
        await second.aclose()


@pytest.mark.parametrize("provider", [Gemini, Kimi, DeepSeek, OpenRouter])
async def test_history_of_another_model_gets_the_documented_placeholders(
    provider: type[Provider],
) -> None:
    ended = AssistantMessage("Both are empty.")
    earlier = [*OPENING, *FOREIGN_ROUND, ended, UserMessage("Sure?"), *FOREIGN_ROUND]
    if provider is OpenRouter:
        earlier = [*OPENING, *FOREIGN_ROUND, ended, UserMessage("Sure?")]
    async with ModelServer(provider()) as server, model_at(server, provider) as model:
        for _ in range(2):
            assert await talk(model, [*earlier]) == "Again."
    assert "Not mine." not in server.requests[-1].body.decode()
    wanted = {Gemini: 3, Kimi: 3, DeepSeek: 3, OpenRouter: 2}
    assert len(server.requests) == wanted[provider], "learned with the first request"


async def test_reasoning_is_not_stripped_because_some_of_it_is_missing() -> None:
    """Kimi misses the reasoning of another model; its own must stay."""
    messages: list[Message] = [*OPENING, *FOREIGN_ROUND]
    async with ModelServer(Kimi()) as server, model_at(server, Kimi) as model:
        await talk(model, messages)
    sent = server.requests[-1].json["messages"]
    thoughts = [one["reasoning_content"] for one in sent if one.get("tool_calls")]
    assert thoughts == [" ", THOUGHT]


async def test_minimax_is_asked_for_reasoning_apart_from_the_text() -> None:
    async with ModelServer(MiniMax()) as server, model_at(server, MiniMax) as model:
        await talk(model, list(OPENING))
    assert all(sent.json["reasoning_split"] is True for sent in server.requests)


async def test_the_error_of_the_provider_behind_a_gateway_is_told() -> None:
    class Refusing(OpenRouter):
        details: Any = ({}, {})

    bare = AssistantMessage("", (ToolCall("x", "read_file", "{}"),))
    messages = (*OPENING, bare, ToolMessage("x", "1"))
    async with (
        ModelServer(Refusing()) as server,
        OpenAIModel(Endpoint(base_url=server.base_url, model="m")) as model,
    ):
        with pytest.raises(RequestRefused) as caught:
            await model.reply(Request(messages=messages))
    assert (
        "Provider returned error (Anthropic): messages.1.content.0.type: Expected `thinking`, but"
        " found `tool_use`."
    ) in str(caught.value)
