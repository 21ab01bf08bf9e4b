"""Replies that are longer than the request allows, and replies that break off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from retinue.domain.messages import Finish, Request, UserMessage
from retinue.errors import ModelError
from retinue.models.anthropic.model import AnthropicModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.openai.model import OpenAIModel
from retinue.models.scripted.model import say
from retinue.testing.server import (
    Answering,
    ModelServer,
    Response,
    ResponseEnding,
    chunk,
    events,
    failing,
    whole,
)

LIMIT = 1_000
ASK = Request(messages=(UserMessage("Hi."),), max_output_tokens=LIMIT)


def text(piece: str) -> bytes:
    return events(chunk({"content": piece}))


def thinking(piece: str) -> bytes:
    return events(chunk({"reasoning_content": piece}))


def arguments(piece: str) -> bytes:
    function = {"name": None, "arguments": piece}
    return events(chunk({"tool_calls": [{"index": 0, "function": function}]}))


def new_call(piece: str) -> bytes:
    function = {"name": "write_file", "arguments": "{}"}
    return events(chunk({"tool_calls": [{"id": f"c{id(object())}{piece}", "function": function}]}))


def block_text(piece: str) -> bytes:
    delta = {"type": "text_delta", "text": piece}
    return events({"type": "content_block_delta", "index": 0, "delta": delta})


def signature(piece: str) -> bytes:
    delta = {"type": "signature_delta", "signature": piece}
    return events({"type": "content_block_delta", "index": 0, "delta": delta})


STARTED_THINKING = events(
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}}
)


@asynccontextmanager
async def answering(answer: Answering) -> AsyncIterator[OpenAIModel]:
    async with ModelServer([answer]) as server:
        endpoint = Endpoint(base_url=server.base_url, model="m")
        async with OpenAIModel(endpoint) as model:
            yield model


@asynccontextmanager
async def endless(first: bytes, event: bytes) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that repeats `event` until the client hangs up. Yields its URL and what it sent."""
    sent: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + first)
        sent.append(0)
        number = len(sent) - 1
        try:
            while True:
                writer.write(event)
                sent[number] += 1
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1", sent


@pytest.mark.parametrize(
    ("client", "first", "event"),
    [
        (OpenAIModel, b"", text("word ")),
        (OpenAIModel, b"", text("x" * 1_000)),
        (OpenAIModel, b"", text("")),
        (OpenAIModel, b"", thinking("hm, ")),
        (OpenAIModel, b"", arguments("x" * 1_000)),
        (OpenAIModel, b"", new_call("")),
        (AnthropicModel, b"", block_text("word ")),
        (AnthropicModel, STARTED_THINKING, signature("x" * 1_000)),
    ],
    ids=["text", "long text", "nothing", "thinking", "arguments", "calls", "blocks", "signature"],
)
async def test_endless_stream_is_cut_at_the_output_limit(
    client: Callable[..., Any], first: bytes, event: bytes
) -> None:
    async with (
        endless(first, event) as (url, sent),
        client(Endpoint(base_url=url, model="m")) as model,
    ):
        replies = await asyncio.gather(*(model.reply(ASK) for _ in range(4)))
    for reply in replies:
        assert reply.finish is Finish.LENGTH
        written = reply.message.content + "".join(c.arguments for c in reply.message.calls)
        assert len(written) < 10 * LIMIT
    # Sockets buffer some MiB, which the server has sent and no client has read.
    assert max(sent) * len(event) < 16 * 1024 * 1024


async def test_reply_of_one_token_per_event_is_cut_at_the_limit() -> None:
    body = text("word ") * (2 * LIMIT)
    answer = Response(body=body, ending=ResponseEnding.HANG)
    async with answering(answer) as model:
        reply = await model.reply(ASK)
    assert LIMIT < reply.message.content.count("word") < LIMIT * 5 // 4
    assert (reply.finish, reply.usage.estimated) == (Finish.LENGTH, True)


@pytest.mark.parametrize("piece", ["x", "word ", "longer-words "])
async def test_reply_within_the_limit_is_whole(piece: str) -> None:
    body = text(piece) * (LIMIT // 2) + events(chunk({}, finish_reason="stop"), b"[DONE]")
    async with answering(Response(body=body)) as model:
        reply = await model.reply(ASK)
    assert reply.message.content == piece * (LIMIT // 2)
    assert reply.finish is Finish.STOP


async def test_whole_document_beyond_the_limit_is_cut() -> None:
    async with answering(whole(say("x" * 100 * LIMIT))) as model:
        reply = await model.reply(ASK)
    assert len(reply.message.content) == 8 * LIMIT
    assert reply.finish is Finish.LENGTH


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (text("word " * 80), 100),
        (text("字" * 100), 75),
        (thinking("hm, " * 80), 80),
        (arguments("x" * 400), 116),
    ],
)
async def test_reply_that_breaks_off_says_how_much_came(body: bytes, tokens: int) -> None:
    answer = Response(body=body, ending=ResponseEnding.DROP)
    async with answering(answer) as model:
        with pytest.raises(ModelError) as caught:
            await model.reply(ASK)
    assert caught.value.received_tokens == tokens


async def test_refused_request_has_received_nothing() -> None:
    async with answering(failing(503, "Busy.")) as model:
        with pytest.raises(ModelError) as caught:
            await model.reply(ASK)
    assert caught.value.received_tokens is None
