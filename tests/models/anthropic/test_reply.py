"""Streams of the Messages API, in all the forms that servers send."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    ToolCall,
    Usage,
)
from retinue.errors import ModelError, ProviderError
from retinue.models.anthropic.reply import MessageReplyReader
from retinue.models.scripted.model import call, calls, say, think
from retinue.testing.anthropic_format import event, streamed, whole
from retinue.testing.server import Framing, ModelServer, Response, ResponseEnding, as_json, events
from tests.models.anthropic.client import ERRORS, HI, model_of, replied
from tests.models.random_streams import (
    STREAMS,
    each_stream,
    interleaved,
    pieces_of,
    read_in_pieces,
    some_text,
)

Fields = dict[str, Any]


def test_every_event_is_a_sign_of_life() -> None:
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
    assert reported == ["", "", "x", "", "", ""]


# The stream


TEXT = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Grüße 🪶"})
START = event("message_start", message={"content": []}) + event(
    "content_block_start", index=0, content_block={"type": "text", "text": ""}
)
STOP = event("message_delta", delta={"stop_reason": "end_turn"})
END = event("message_stop")
EXPECTED = "Grüße 🪶"


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
async def test_stream_variants(body: bytes, framing: Framing) -> None:
    cuts = tuple(range(0, len(body), 7))
    for response in (
        Response(body=body, framing=framing),
        Response(body=body, framing=framing, cuts=cuts),
    ):
        assert (await replied(response)).message.content == EXPECTED


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


async def test_lone_surrogate_in_an_event_is_replaced() -> None:
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


async def test_nan_in_a_message_that_is_not_streamed() -> None:
    body = b'{"type":"message","content":[{"type":"text","text":"Hi."}],"score":NaN}'
    assert (await replied(Response(body=body))).message == AssistantMessage("Hi.")


async def test_arguments_in_the_start_of_a_block() -> None:
    block = {"type": "tool_use", "id": "a", "name": "read_file", "input": {"path": "x"}}
    start = event("content_block_start", index=0, content_block=block)
    reply = await replied(Response(body=start + STOP + END))
    assert reply.message.calls == (ToolCall("a", "read_file", '{"path":"x"}'),)


async def test_missing_and_duplicate_call_ids_are_replaced() -> None:
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
async def test_finish_by_stop_reason(stop_reason: str, finish: Finish) -> None:
    stop = event("message_delta", delta={"stop_reason": stop_reason})
    assert (await replied(Response(body=START + TEXT + stop + END))).finish is finish


async def test_last_token_counts_are_the_totals() -> None:
    first = {"input_tokens": 10, "cache_read_input_tokens": 80, "output_tokens": 1}
    start = event("message_start", message={"usage": first})
    last = {"output_tokens": 7, "cache_creation_input_tokens": 5, "input_tokens": None}
    stop = event("message_delta", delta={"stop_reason": "end_turn"}, usage=last)
    reply = await replied(Response(body=start + TEXT + stop + END))
    assert reply.usage == Usage(95, 80, 7, tokens_written=5)


async def test_a_server_that_never_ends_the_body() -> None:
    response = Response(body=START + TEXT + STOP + END, ending=ResponseEnding.HANG)
    assert (await replied(response)).message.content == EXPECTED


async def test_a_connection_cut_after_the_stop_is_a_whole_reply() -> None:
    response = Response(body=START + TEXT + STOP, ending=ResponseEnding.DROP)
    assert (await replied(response)).message.content == EXPECTED


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


async def test_closed_model_raises() -> None:
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
def test_any_stream_gives_a_reply_or_a_model_error(
    payloads: list[bytes], data: st.DataObject
) -> None:
    body = b"".join(b"data: %b\n\n" % payload for payload in payloads)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=5))

    async def run() -> None:
        with suppress(ModelError):
            await replied(Response(body=body, cuts=tuple(cuts), framing=Framing.CLOSE))

    asyncio.run(run())


# Random streams


def random_block(number: int, chance: Random) -> Fields:
    kind = chance.choice(["thinking", "redacted_thinking", "text", "tool_use", "server_tool_use"])
    match kind:
        case "thinking":
            return {"type": kind, "thinking": some_text(chance), "signature": some_text(chance)}
        case "redacted_thinking":
            return {"type": kind, "data": some_text(chance)}
        case "text":
            return {"type": kind, "text": some_text(chance)}
        case _:
            called = {"id": f"call_{number}", "name": "tool", "input": {"x": some_text(chance)}}
            return {"type": kind, **called}


def events_of(index: int, block: Fields, missing: set[str], chance: Random) -> list[Fields]:
    """The events of one block, without the parts that are `missing`."""
    place: Fields = {} if "index" in missing else {"index": index}
    deltas: list[Fields] = []
    begun = dict(block)
    if "deltas" not in missing:
        for field, kind in STREAMED.items():
            if field in block and block["type"] != "redacted_thinking":
                text = block[field]
                text = text if isinstance(text, str) else msgspec.json.encode(text).decode()
                begun[field] = {} if field == "input" else ""
                name = "partial_json" if field == "input" else field
                deltas += ({"type": kind, name: piece} for piece in pieces_of(text, chance))
    sent: list[Fields] = [{"type": "content_block_start", **place, "content_block": begun}]
    sent += ({"type": "content_block_delta", **place, "delta": each} for each in deltas)
    if "stop" not in missing:
        sent.append({"type": "content_block_stop", **place})
    return sent


STREAMED = {
    "thinking": "thinking_delta",
    "signature": "signature_delta",
    "text": "text_delta",
    "input": "input_json_delta",
}
OPTIONAL = ["index", "deltas", "stop", "message_start", "usage", "message_stop", "pings"]


def check_stream(chance: Random) -> None:
    missing = {name for name in OPTIONAL if chance.random() < 0.3}
    blocks = [random_block(number, chance) for number in range(chance.randint(1, 5))]
    if not any(block["type"] in ("text", "tool_use") for block in blocks):
        blocks.append({"type": "text", "text": some_text(chance)})
    streams = [events_of(n, block, missing, chance) for n, block in enumerate(blocks)]
    if "index" not in missing:
        # Text is shown while it arrives, so its blocks come one after the other.
        is_text = [block["type"] == "text" for block in blocks]
        texts = [e for s, text in zip(streams, is_text, strict=True) if text for e in s]
        others = [s for s, text in zip(streams, is_text, strict=True) if not text]
        ordered = list(interleaved([texts, *others], chance))
    else:
        ordered = [each for stream in streams for each in stream]
    starts = [each for each in ordered if each["type"] == "content_block_start"]
    sources = [blocks[each["index"]] for each in starts] if "index" not in missing else blocks
    if "pings" not in missing:
        ordered.insert(chance.randrange(len(ordered)), {"type": "ping"})
    usage = {"usage": {"input_tokens": 9, "output_tokens": 1}}
    if "message_start" not in missing:
        ordered.insert(0, {"type": "message_start", "message": {"content": [], **usage}})
    ending: Fields = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    ordered.append(ending if "usage" in missing else {**ending, "usage": {"output_tokens": 5}})
    if "message_stop" not in missing:
        ordered.append({"type": "message_stop"})
    reply = read_in_pieces(MessageReplyReader(ERRORS, model_name="m"), events(*ordered), chance)
    message = reply.message
    text, separator = "", ""
    for block in sources:
        if block["type"] == "text":
            text, separator = text + (separator and text and "\n\n") + block["text"], ""
        else:
            separator = "\n\n"
    assert message.content == text
    assert [(one.id, one.name, msgspec.json.decode(one.arguments)) for one in message.calls] == [
        (block["id"], block["name"], block["input"])
        for block in sources
        if block["type"] == "tool_use"
    ]
    kept = () if message.thoughts is None else message.thoughts.blocks
    assert [msgspec.json.decode(one.block) for one in kept] == [
        block for block in sources if block["type"] in ("thinking", "redacted_thinking")
    ]
    if not missing & {"message_start", "usage"}:
        assert reply.usage == Usage(9, 0, 5)


@pytest.mark.parametrize("count", STREAMS)
def test_any_stream_makes_the_reply_of_its_blocks(count: int) -> None:
    each_stream(count, check_stream)
