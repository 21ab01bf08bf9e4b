from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Reply,
    Request,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from retinue.domain.thinking import ThinkingOptions
from retinue.errors import ConfigError, ModelError, ProviderError
from retinue.models.anthropic.model import AnthropicModel
from retinue.models.anthropic.reply import MessageReplyReader
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.scripted.model import ScriptedReply, call, calls, say, think
from retinue.ports.model import Model
from retinue.testing.anthropic_format import event, streamed, whole
from retinue.testing.model_contract import ModelContract
from retinue.testing.server import Framing, ModelServer, Response, ResponseEnding, as_json

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


async def test_what_is_sent() -> None:
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


async def test_thinking_between_calls_is_asked_for_where_there_is_a_budget() -> None:
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


def test_its_name() -> None:
    endpoint = Endpoint(base_url="http://h/v1", model="m", api_key="sk-secret")
    assert AnthropicModel(endpoint).name == "anthropic:m@http://h/v1"
    assert AnthropicModel(endpoint, name="local").name == "local"
    thinking = AnthropicModel(endpoint, thinking=ThinkingOptions(on=True, effort="low"))
    assert repr(thinking) == "AnthropicModel('anthropic:m+thinking+effort=low@http://h/v1')"


def test_a_base_url_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"write it like http://127\.0\.0\.1:8080/v1"):
        AnthropicModel(Endpoint(base_url="nowhere", model="m", api_key="sk-secret"))


# Thoughts, over a whole conversation


async def test_thoughts_go_back_as_they_came_and_where_they_stood() -> None:
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


async def test_a_streamed_thought_is_put_together_again() -> None:
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


def test_thinking_and_calls_are_signs_of_life() -> None:
    reported: list[str] = []
    reader = MessageReplyReader(ERRORS, reported.append, model_name="m")
    call_block = {"type": "tool_use", "id": "a", "name": "read_file", "input": {}}
    for fields in (
        {"type": "content_block_start", "content_block": {"type": "thinking"}},
        {"type": "content_block_delta", "delta": {"thinking": "A long thought."}},
        {"type": "content_block_delta", "index": 1, "delta": {"text": "x"}},
        {"type": "content_block_start", "index": 2, "content_block": call_block},
        {"type": "content_block_delta", "index": 2, "delta": {"partial_json": "{}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    ):
        assert reader.feed([msgspec.json.encode(fields)]) is None
    assert reported == ["", "", "x", "", ""]


# The stream


TEXT = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Grüße 🪶"})
START = event("message_start", message={"content": []}) + event(
    "content_block_start", index=0, content_block={"type": "text", "text": ""}
)
STOP = event("message_delta", delta={"stop_reason": "end_turn"})
END = event("message_stop")
EXPECTED = AssistantMessage("Grüße 🪶")


@pytest.mark.parametrize(
    "body",
    [
        START + TEXT + STOP + END,
        (START + TEXT + STOP + END).replace(b"\n", b"\r\n"),
        (START + TEXT + STOP + END).replace(b"data: ", b"data:"),
        START + TEXT + STOP,
        START + TEXT + END,
        TEXT + STOP,
        (START + TEXT + STOP).rstrip(b"\n"),
        b"\xef\xbb\xbf" + START + TEXT + STOP,
        b"\n\n" + START + TEXT + STOP,
        b": ping\n\n" + START + event("ping") + TEXT + STOP + END,
        START + event("ping") + event("something_new", index=0, delta={"text": 5}) + TEXT + STOP,
        START + TEXT + STOP + END + b"data: rubbish\n\n",
        START + TEXT + STOP + b"data: [DONE]\n\n",
        START + b"event: x\ndata: [1, 2]\n\ndata: null\n\ndata: 7\n\n" + TEXT + STOP,
        START + TEXT + event("content_block_delta", index=0, delta=None) + STOP,
        START.replace(b'"index":0', b'"index":0.0') + TEXT + STOP,
        START + TEXT.replace(b'"index":0', b'"index":"0"') + STOP,
        b"".join(
            (
                event("content_block_start", index=0, content_block={"type": "brand_new", "x": 1}),
                event("content_block_delta", index=0, delta={"type": "brand_new", "text": "no"}),
                event("content_block_stop", index=0),
                (START + TEXT).replace(b'"index":0', b'"index":1'),
                STOP,
            )
        ),
        b"".join(
            (
                event("content_block_start", index=0, content_block={"type": "thinking"}),
                event("content_block_delta", index=0, delta={"type": "thinking_delta"}),
                event("content_block_delta", index=7, delta={"partial_json": "{"}),
                (START + TEXT).replace(b'"index":0', b'"index":1'),
                STOP,
            )
        ),
    ],
)
@pytest.mark.parametrize("framing", Framing)
async def test_streams_in_all_their_dialects(body: bytes, framing: Framing) -> None:
    cuts = tuple(range(0, len(body), 7))
    for response in (
        Response(body=body, framing=framing),
        Response(body=body, framing=framing, cuts=cuts),
    ):
        assert (await replied(response)).message == EXPECTED


async def test_cut_at_every_byte() -> None:
    step = think("Hm: ü.", calls(call("read_file", path="ä"), call("read_file"), text="Grüße."))
    body = streamed(step)
    reply = await replied(Response(body=body, cuts=tuple(range(len(body)))))
    assert reply.message.content == "Grüße."
    assert reply.message.calls == (
        ToolCall("toolu_0", "read_file", '{"path":"ä"}'),
        ToolCall("toolu_1", "read_file", "{}"),
    )
    assert reply.message.thoughts is not None


async def test_half_an_emoji_in_an_event_does_not_cost_the_reply() -> None:
    block = {"type": "tool_use", "id": "a", "name": "write_file", "input": {}}
    body = START + TEXT.replace("🪶".encode(), rb"\ud83e")
    body += event("content_block_start", index=1, content_block=block)
    for piece in (rb"{\"text\":\"\ud83e", rb"\udeb6\"}"):
        delta = event("content_block_delta", index=1, delta={"partial_json": "PIECE"})
        body += delta.replace(b"PIECE", piece)
    reply = await replied(Response(body=body + STOP + END))
    assert reply.message.content == "Grüße ?"
    (made,) = reply.message.calls
    assert msgspec.json.decode(made.arguments) == {"text": "🪶"}


async def test_a_message_that_is_not_streamed_with_a_number_that_is_none() -> None:
    body = b'{"type":"message","content":[{"type":"text","text":"Hi."}],"score":NaN}'
    assert (await replied(Response(body=body))).message == AssistantMessage("Hi.")


async def test_arguments_that_come_with_the_beginning_of_their_block() -> None:
    block = {"type": "tool_use", "id": "a", "name": "read_file", "input": {"path": "x"}}
    start = event("content_block_start", index=0, content_block=block)
    reply = await replied(Response(body=start + STOP + END))
    assert reply.message.calls == (ToolCall("a", "read_file", '{"path":"x"}'),)


async def test_calls_without_ids_and_with_the_same_get_different_ones() -> None:
    ids = (None, "a", "a")
    blocks: list[Any] = [{"type": "tool_use", "id": i, "name": "x", "input": {}} for i in ids]
    body = {"type": "message", "content": blocks, "stop_reason": "tool_use"}
    reply = await replied(as_json(body))
    assert [made.id for made in reply.message.calls] == ["call_0", "a", "call_1"]


@pytest.mark.parametrize(
    ("stop_reason", "finish"),
    [
        ("end_turn", Finish.STOP),
        ("stop_sequence", Finish.STOP),
        ("pause_turn", Finish.STOP),
        ("something_new", Finish.STOP),
        ("max_tokens", Finish.LENGTH),
        ("model_context_window_exceeded", Finish.LENGTH),
    ],
)
async def test_why_it_stopped(stop_reason: str, finish: Finish) -> None:
    stop = event("message_delta", delta={"stop_reason": stop_reason})
    assert (await replied(Response(body=START + TEXT + stop + END))).finish is finish


async def test_counts_are_of_the_whole_and_the_last_ones_hold() -> None:
    first = {"input_tokens": 10, "cache_read_input_tokens": 80, "output_tokens": 1}
    start = event("message_start", message={"usage": first})
    last = {"output_tokens": 7, "cache_creation_input_tokens": 5, "input_tokens": None}
    stop = event("message_delta", delta={"stop_reason": "end_turn"}, usage=last)
    reply = await replied(Response(body=start + TEXT + stop + END))
    assert reply.usage == Usage(95, 80, 7, tokens_written=5)


async def test_a_server_that_never_ends_the_body() -> None:
    response = Response(body=START + TEXT + STOP + END, ending=ResponseEnding.HANG)
    assert (await replied(response)).message == EXPECTED


async def test_a_connection_cut_after_the_stop_is_a_whole_reply() -> None:
    response = Response(body=START + TEXT + STOP, ending=ResponseEnding.DROP)
    assert (await replied(response)).message == EXPECTED


async def test_one_connection_serves_one_reply_after_another() -> None:
    async with ModelServer([say("a"), as_json(whole(say("b"))), say("c")]) as server:
        async with model_of(server) as model:
            for _ in range(3):
                await model.reply(HI)
        assert server.connections == 1


async def test_cancelling_closes_the_connection() -> None:
    told = asyncio.Event()
    response = Response(body=START + TEXT, ending=ResponseEnding.HANG)
    async with ModelServer([response, say("still here")]) as server, model_of(server) as model:
        task = asyncio.create_task(model.reply(HI, lambda _: told.set()))
        await told.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.hung_up()
        assert (await model.reply(HI)).message.content == "still here"


async def test_a_closed_model_says_so() -> None:
    async with ModelServer([say("x")]) as server:
        model = model_of(server)
        await model.aclose()
        with pytest.raises(ProviderError, match="was closed before this call"):
            await model.reply(HI)


# Whatever comes, it is a reply or an error of ours.

ATOMS = st.none() | st.booleans() | st.integers(-5, 5) | st.just(2.5) | st.text(max_size=9)
LISTS = st.lists(ATOMS, max_size=2) | st.dictionaries(st.text(max_size=3), ATOMS, max_size=2)
VALUES = ATOMS | LISTS
KINDS = ["message_start", "content_block_start", "content_block_delta", "content_block_stop"]
KINDS += ["message_delta", "message_stop", "message", "ping", "error", "new"]
FIELDS = ["index", "delta", "content_block", "message", "usage", "error", "content", "stop_reason"]
BLOCK_KINDS = ["text", "tool_use", "thinking", "redacted_thinking", "new", 5]
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(BLOCK_KINDS)},
    optional=dict.fromkeys(
        ("text", "id", "name", "input", "thinking", "signature", "data"), VALUES
    ),
)
DELTAS = st.dictionaries(
    st.sampled_from(["type", "text", "partial_json", "thinking", "signature", "stop_reason"]),
    VALUES,
    max_size=4,
)
PAYLOADS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={name: VALUES | BLOCKS | DELTAS | st.lists(BLOCKS, max_size=3) for name in FIELDS},
)


EVENTS = PAYLOADS.map(msgspec.json.encode) | VALUES.map(msgspec.json.encode)


@given(st.lists(EVENTS, max_size=8))
def test_any_events_make_a_reply(payloads: list[bytes]) -> None:
    reader = MessageReplyReader(ERRORS, lambda _: None, model_name="m")
    for payload in payloads:
        reader.feed([payload])
    message = reader.reply(HI, b"", 0.0).message
    assert msgspec.json.decode(msgspec.json.encode(message), type=AssistantMessage) == message


@given(st.lists(EVENTS | st.binary(max_size=20), max_size=8), st.data())
@settings(max_examples=20, deadline=None)
def test_any_stream_is_a_reply_or_an_error(payloads: list[bytes], data: st.DataObject) -> None:
    body = b"".join(b"data: %b\n\n" % payload for payload in payloads)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=5))

    async def run() -> None:
        with suppress(ModelError):
            await replied(Response(body=body, cuts=tuple(cuts), framing=Framing.CLOSE))

    asyncio.run(run())
