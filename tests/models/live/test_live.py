"""The client against a server that nobody here wrote."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from retinue.domain.messages import (
    Assistant,
    Finish,
    Message,
    Request,
    System,
    ToolAnswer,
    ToolCall,
    ToolSpec,
    User,
)
from retinue.errors import ContextOverflow, ProviderError
from retinue.models.inventory import look, served
from retinue.models.openai import OpenAIModel

if TYPE_CHECKING:
    from tests.models.live.conftest import Live

pytestmark = pytest.mark.live

SPEC = ToolSpec(
    "read_file",
    "Read a file.",
    msgspec.Raw(b'{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}'),
)


def asked(text: str, limit: int = 8) -> Request:
    messages = (System("You are brief."), User(text))
    return Request(messages=messages, max_output_tokens=limit)


async def test_a_reply_streams(model: OpenAIModel) -> None:
    pieces: list[str] = []
    reply = await model.reply(asked("Tell me a story."), pieces.append)
    assert reply.message.content
    assert "".join(pieces) == reply.message.content
    assert reply.usage.tokens_in > 0
    assert reply.usage.tokens_out > 0
    assert reply.timing.first_token_s > 0


async def test_the_limit_of_tokens_holds(model: OpenAIModel, live: Live) -> None:
    reply = await model.reply(asked("Count to one hundred.", limit=4))
    if live.ours:
        assert reply.finish is Finish.LENGTH
        assert reply.usage.tokens_out == 4
        assert not reply.usage.estimated


async def test_a_prompt_seen_before_is_cached(model: OpenAIModel, live: Live) -> None:
    await model.reply(asked("What is a heron?", limit=1))
    again = await model.reply(asked("What is a heron?", limit=1))
    if live.ours:
        assert again.usage.tokens_cached > 0


async def test_a_history_with_tools_is_accepted(model: OpenAIModel) -> None:
    calls = (
        ToolCall("call_0", "read_file", '{"path": "a.txt"}'),
        ToolCall("call_1", "read_file", '{"path": '),
        ToolCall("call_2", "read_file", ""),
    )
    answers = (ToolAnswer(call.id, "hello") for call in calls)
    messages: tuple[Message, ...] = (User("Read a.txt."), Assistant("", calls), *answers)
    reply = await model.reply(Request(messages=messages, tools=(SPEC,), max_output_tokens=8))
    assert reply.message.content or reply.message.calls


async def test_one_reply_right_after_another(model: OpenAIModel) -> None:
    for _ in range(10):
        await model.reply(asked("Hi.", limit=1))


async def test_several_at_once(model: OpenAIModel) -> None:
    replies = await asyncio.gather(*(model.reply(asked(f"Say {n}.", limit=2)) for n in range(4)))
    assert all(reply.usage.tokens_out for reply in replies)


async def test_cancelling_leaves_the_server_usable(model: OpenAIModel) -> None:
    began = asyncio.Event()
    endless = asked("Count to one thousand.", limit=400)
    task = asyncio.create_task(model.reply(endless, lambda _: began.set()))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await model.reply(asked("Hi.", limit=2))).usage.tokens_out


async def test_a_prompt_larger_than_the_window(model: OpenAIModel, live: Live) -> None:
    if not live.ours:
        pytest.skip("the window of this server is not known")
    with pytest.raises(ContextOverflow):
        await model.reply(asked("heron " * 3000))


async def test_the_server_tells_what_it_serves(live: Live) -> None:
    found = await look(live.endpoint)
    assert found.models
    assert found.problem == ""
    if live.ours:
        assert found.server == "llama.cpp"
        one = await served(live.endpoint)
        assert one is not None
        # It was started with 1,024 tokens for two slots.
        assert (one.window, one.max_window, one.slots) == (512, 8192, 2)


async def test_a_wrong_path(live: Live) -> None:
    endpoint = msgspec.structs.replace(live.endpoint, base_url=f"{live.endpoint.base_url}/nowhere")
    async with OpenAIModel(endpoint) as model:
        with pytest.raises(ProviderError) as caught:
            await model.reply(asked("Hi."))
    assert "404" in str(caught.value)
