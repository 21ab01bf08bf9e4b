"""Tests that a running model server must pass so that agents can work with it.

class TestMyServer(ServerContract):
    endpoint = Endpoint(base_url="http://127.0.0.1:8080/v1", model="qwen3")

The model may be tiny: the tests check the server together with our client, and a model that
continues a pattern is enough. Class attributes say what a server does not support.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec
import pytest

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Message,
    Request,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from retinue.errors import ContextOverflow, ModelError, ProviderError
from retinue.models.anthropic.model import AnthropicModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.openai.model import OpenAIModel
from retinue.models.responses.model import ResponsesModel
from retinue.models.server_info.inventory import inspect_server
from retinue.ports.model import Model
from retinue.testing.model_contract import SPEC

BIRD = (
    '{"type":"object","properties":{"name":{"type":"string","maxLength":10},'
    '"age":{"type":"integer","minimum":0,"maximum":99}},"required":["name","age"],'
    '"additionalProperties":false}'
)


def asked(text: str, limit: int = 8) -> Request:
    messages = (SystemMessage("You are brief."), UserMessage(text))
    return Request(messages=messages, max_output_tokens=limit)


def reading(path: str) -> Request:
    """A request to read a file. A model that continues the pattern answers with a tool call."""
    shown: tuple[Message, ...] = (
        UserMessage("Read a.txt."),
        AssistantMessage("", (ToolCall("call_0", "read_file", '{"path": "a.txt"}'),)),
        ToolMessage("call_0", "hello"),
    )
    messages = (SystemMessage("You read files."), *shown, UserMessage(f"Read {path}."))
    return Request(messages=messages, tools=(SPEC,), max_output_tokens=64)


class ServerContract:
    endpoint: Endpoint
    client: ClassVar[type[OpenAIModel] | type[ResponsesModel] | type[AnthropicModel]] = OpenAIModel
    """The client whose API the server speaks."""
    window_tokens: ClassVar[int | None] = None
    """The largest prompt, if it is known. The server must refuse a larger one as an overflow."""
    caches: ClassVar[bool] = True
    """Whether the server reports how many tokens of a prompt were cached."""
    holds_schemas: ClassVar[bool] = True
    """Whether the server enforces an output schema."""
    checks_models: ClassVar[bool] = False
    """Whether the server refuses the name of a model that it does not serve."""

    @asynccontextmanager
    async def opened(self, **changes: str | None) -> AsyncIterator[Model]:
        async with self.client(msgspec.structs.replace(self.endpoint, **changes)) as model:
            yield model

    async def test_a_plain_reply(self) -> None:
        async with self.opened() as model:
            reply = await model.reply(asked("What is a heron?"))
        assert reply.message.content.strip()
        assert not reply.message.calls
        assert not reply.repairs

    async def test_a_reply_streams(self) -> None:
        pieces: list[str] = []
        async with self.opened() as model:
            reply = await model.reply(asked("Tell me a story.", 16), pieces.append)
        assert "".join(pieces) == reply.message.content
        assert len([piece for piece in pieces if piece]) > 2
        assert reply.timing.first_token_s > 0
        assert reply.timing.generating_s > 0

    async def test_the_limit_of_tokens_holds(self) -> None:
        async with self.opened() as model:
            reply = await model.reply(asked("Count to one hundred.", 4))
        assert reply.finish is Finish.LENGTH
        assert reply.usage.tokens_out == 4

    async def test_tokens_are_counted(self) -> None:
        async with self.opened() as model:
            short = (await model.reply(asked("Hi.", 1))).usage
            long = (await model.reply(asked("Hi. " * 40, 1))).usage
        assert not short.estimated
        assert 0 < short.tokens_in < long.tokens_in
        assert short.tokens_out == 1

    async def test_a_prompt_seen_before_is_cached(self) -> None:
        if not self.caches:
            pytest.skip("the server does not report cached tokens")
        question = "What is a bittern, and where does it live in winter?"
        async with self.opened() as model:
            await model.reply(asked(question, 1))
            again = (await model.reply(asked(question, 1))).usage
        assert again.tokens_in / 2 < again.tokens_cached <= again.tokens_in

    async def test_a_tool_is_called_and_answered(self) -> None:
        heard: list[str] = []
        request = reading("z.txt")
        async with self.opened() as model:
            reply = await model.reply(request, heard.append)
            assert reply.finish is Finish.TOOLS
            (made,) = reply.message.calls
            assert made.id
            assert made.name == "read_file"
            assert msgspec.json.decode(made.arguments) == {"path": "z.txt"}
            assert "".join(heard) == reply.message.content
            assert reply.usage.tokens_out > 0
            messages = (*request.messages, reply.message, ToolMessage(made.id, "good morning"))
            more = await model.reply(msgspec.structs.replace(request, messages=messages))
        assert more.message.content or more.message.calls

    async def test_a_last_word_without_tools_after_calls(self) -> None:
        call = ToolCall("call_0", "read_file", '{"path": "a.txt"}')
        answer = ToolMessage("call_0", "no such file", failed=True)
        talk = (
            UserMessage("Read a.txt."),
            AssistantMessage("", (call,)),
            answer,
            UserMessage("Answer now."),
        )
        async with self.opened() as model:
            reply = await model.reply(Request(messages=talk, max_output_tokens=8))
        assert reply.message.content
        assert not reply.message.calls

    async def test_an_answer_is_held_to_a_schema(self) -> None:
        question = UserMessage(
            "Which bird is it, and how old? Answer with one JSON object, nothing else."
        )
        request = Request(messages=(question,), max_output_tokens=64, schema=BIRD)
        heard: list[str] = []
        async with self.opened() as model:
            reply = await model.reply(request, heard.append)
        assert reply.message.content
        assert "".join(heard) == reply.message.content
        if self.holds_schemas:
            assert reply.finish is Finish.STOP
            bird = msgspec.json.decode(reply.message.content, type=dict[str, str | int])
            assert bird.keys() == {"name", "age"}

    async def test_a_history_with_broken_calls_is_accepted(self) -> None:
        calls = (
            ToolCall("call_0", "read_file", '{"path": "a.txt"}'),
            ToolCall("call_1", "read_file", '{"path": '),
            ToolCall("call_2", "read_file", ""),
        )
        answers = (ToolMessage(call.id, "hello") for call in calls)
        messages: tuple[Message, ...] = (
            UserMessage("Read a.txt."),
            AssistantMessage("", calls),
            *answers,
        )
        async with self.opened() as model:
            reply = await model.reply(
                Request(messages=messages, tools=(SPEC,), max_output_tokens=8)
            )
        assert reply.usage.tokens_out

    async def test_any_script_goes_there_and_back(self) -> None:
        async with self.opened() as model:
            reply = await model.reply(asked('日本語 · Ελληνικά · 🦆\u0000\u2028 \\ " </s>', 4))
        assert reply.usage.tokens_out

    async def test_one_reply_right_after_another(self) -> None:
        async with self.opened() as model:
            for _ in range(10):
                await model.reply(asked("Hi.", 1))

    async def test_several_at_once(self) -> None:
        async with self.opened() as model:
            replies = await asyncio.gather(*(model.reply(asked(f"Say {n}.", 2)) for n in range(4)))
        assert all(reply.usage.tokens_out for reply in replies)

    async def test_cancelling_leaves_the_server_usable(self) -> None:
        began = asyncio.Event()
        endless = asked("Count to one thousand, in words.", 400)
        async with self.opened() as model:
            task = asyncio.create_task(model.reply(endless, lambda _: began.set()))
            waiting = asyncio.create_task(began.wait())
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            assert not task.done()
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
            assert (await model.reply(asked("Hi.", 2))).usage.tokens_out

    async def test_a_prompt_larger_than_the_window(self) -> None:
        if self.window_tokens is None:
            pytest.skip("window_tokens is not set")
        error = await self.refused(asked("heron " * self.window_tokens))
        assert isinstance(error, ContextOverflow), error

    async def test_it_tells_what_it_serves(self) -> None:
        found = await inspect_server(self.endpoint)
        assert found.problem == ""
        assert found.find(self.endpoint.model) is not None

    async def test_a_wrong_path(self) -> None:
        error = await self.refused(asked("Hi."), base_url=f"{self.endpoint.base_url}/nowhere")
        assert isinstance(error, ProviderError)
        assert not error.retryable
        assert "404" in str(error)

    async def test_a_model_that_is_not_served(self) -> None:
        if not self.checks_models:
            pytest.skip("the server accepts any model name")
        error = await self.refused(asked("Hi."), model="no-such-model")
        assert isinstance(error, ProviderError)
        assert not error.retryable
        assert "no-such-model" in str(error)

    async def refused(self, request: Request, **changes: str | None) -> ModelError:
        """The error that a request is answered with."""
        async with self.opened(**changes) as model:
            try:
                reply = await model.reply(request)
            except ModelError as error:
                return error
        raise AssertionError(f"not refused: {reply}")
