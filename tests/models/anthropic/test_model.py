from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from retinue.domain.messages import (
    Request,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from retinue.domain.thinking import ThinkingOptions
from retinue.errors import ConfigError
from retinue.models.anthropic.model import AnthropicModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.ports.model import Model
from retinue.testing.anthropic_format import event, streamed, whole
from retinue.testing.model_contract import ModelContract
from retinue.testing.server import ModelServer, Response, as_json
from tests.models.anthropic.client import HI, TOOL, model_of, replied


class TestAnthropicModel(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Model]:
        async with ModelServer(steps) as server, model_of(server) as model:
            yield model


class TestAnthropicModelWithoutStreaming(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Model]:
        answers = [as_json(whole(step)) for step in steps]
        async with ModelServer(answers) as server, model_of(server) as model:
            yield model


class TestAnthropicModelThatThinks(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Model]:
        thinking = ThinkingOptions(on=True, budget_tokens=2000)
        async with ModelServer(steps) as server, model_of(server, thinking) as model:
            yield model


# What is sent


async def test_request_headers_and_body() -> None:
    async with ModelServer([say("x")]) as server, model_of(server, api_key=" sk-1 \n") as model:
        await model.reply(Request(messages=(SystemMessage("Be brief."), UserMessage("Hi."))))
    (sent,) = server.requests
    assert (sent.method, sent.target) == ("POST", "/v1/messages")
    assert sent.headers["x-api-key"] == "sk-1"
    assert sent.headers["authorization"] == "Bearer sk-1"
    assert sent.headers["anthropic-version"] == "2023-06-01"
    assert "anthropic-beta" not in sent.headers
    assert sent.json == {
        "model": "m",
        "max_tokens": 32_000,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}],
        "stream": True,
    }


async def test_thinking_budget_enables_interleaved_thinking() -> None:
    thinking = ThinkingOptions(on=True, budget_tokens=4000)
    async with ModelServer([say("x")]) as server, model_of(server, thinking) as model:
        await model.reply(HI)
    (sent,) = server.requests
    assert sent.headers["anthropic-beta"] == "interleaved-thinking-2025-05-14"
    assert sent.json["thinking"] == {"type": "enabled", "budget_tokens": 4000}


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/v1/messages", "/v1/messages/"])
async def test_forms_of_the_base_url(suffix: str) -> None:
    async with ModelServer([say("x")]) as server:
        base_url = server.base_url.removesuffix("/v1") + "/anthropic" + suffix
        async with AnthropicModel(Endpoint(base_url=base_url, model="m")) as model:
            await model.reply(HI)
    assert server.requests[0].target == "/anthropic/v1/messages"
    assert not {"authorization", "x-api-key"} & server.requests[0].headers.keys()


async def test_a_user_in_the_base_url_is_sent_and_not_shown() -> None:
    async with ModelServer([say("x")]) as server:
        base_url = server.base_url.replace("//", "//ann:letmein@")
        async with AnthropicModel(Endpoint(base_url=base_url, model="m")) as model:
            await model.reply(HI)
    assert server.requests[0].headers["authorization"] == "Basic YW5uOmxldG1laW4="
    assert "letmein" not in model.name


def test_default_name() -> None:
    endpoint = Endpoint(base_url="http://h/v1", model="m", api_key="sk-secret")
    assert AnthropicModel(endpoint).name == "anthropic:m@http://h/v1"
    assert AnthropicModel(endpoint, name="local").name == "local"
    thinking = AnthropicModel(endpoint, thinking=ThinkingOptions(on=True, effort="low"))
    assert repr(thinking) == "AnthropicModel('anthropic:m+thinking+effort=low@http://h/v1')"


def test_invalid_base_url() -> None:
    with pytest.raises(ConfigError, match=r"write it like http://127\.0\.0\.1:8080/v1"):
        AnthropicModel(Endpoint(base_url="nowhere", model="m", api_key="sk-secret"))


# Thoughts, over a whole conversation


async def test_thoughts_are_sent_back_unchanged_in_position() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "One: ä.", "signature": "abc+/=", "new": [1, {"a": None}]},
        {"type": "text", "text": "First."},
        {"type": "redacted_thinking", "data": "EmwKAhgBEgy+/=="},
        {"type": "text", "text": "Second."},
        {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a"}},
        {"type": "thinking", "thinking": "", "signature": "only a signature"},
        {"type": "tool_use", "id": "toolu_2", "name": "read_file", "input": {"path": "b"}},
    ]
    reply = as_json({"type": "message", "content": blocks, "stop_reason": "tool_use"})
    done = Response(body=streamed(say("Done.")))
    async with ModelServer([reply, done]) as server, model_of(server) as model:
        first = (await model.reply(Request(messages=HI.messages, tools=(TOOL,)))).message
        answers = [ToolMessage(made.id, "text") for made in first.calls]
        await model.reply(Request(messages=(*HI.messages, first, *answers), tools=(TOOL,)))
    assert first.content == "First.\n\nSecond."
    blocks[3]["text"] = "\n\nSecond."
    assert server.requests[1].json["messages"][1]["content"] == blocks


async def test_streamed_thought_is_reassembled() -> None:
    opening = {"type": "thinking", "thinking": "", "signature": "", "kept": True}
    body = b"".join(
        (
            event("content_block_start", index=0, content_block=opening),
            event("content_block_delta", index=0, delta={"thinking": "Let me "}),
            event("content_block_delta", index=0, delta={"thinking": "see."}),
            event("content_block_delta", index=0, delta={"signature": "ab"}),
            event("content_block_delta", index=0, delta={"signature": "cd"}),
            event("content_block_stop", index=0),
            streamed(call("read_file", path="a")).replace(b'"index":0', b'"index":1'),
        )
    )
    message = (await replied(Response(body=body))).message
    assert message.thoughts is not None
    (thought,) = message.thoughts.blocks
    assert msgspec.json.decode(thought.block) == {
        "type": "thinking",
        "thinking": "Let me see.",
        "signature": "abcd",
        "kept": True,
    }
