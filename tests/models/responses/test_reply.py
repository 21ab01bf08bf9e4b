from __future__ import annotations

import random
from functools import cache
from typing import Any

import msgspec
import pytest

from retinue.domain.messages import Finish, Reply, Request, Usage
from retinue.errors import ContextOverflow, ModelError, ProviderError, RateLimited, RequestRefused
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.http.sse import EventParser
from retinue.models.responses.model import ResponsesModel
from retinue.models.responses.reply import ResponseReader
from retinue.models.responses.request import ResponsesEncoder
from retinue.models.scripted.model import call, calls, say, think
from retinue.testing import responses_format
from retinue.testing.server import Answering, ModelServer, Response, events
from tests.models.random_streams import (
    HI,
    STREAMS,
    each_stream,
    interleaved,
    pieces_of,
    read_in_pieces,
    some_text,
)

ME = "responses:m@http://h/v1"


@cache
def openai_events() -> Any:
    """The events of the `openai` package, which takes long to import."""
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    return TypeAdapter[Any](ResponseStreamEvent)


ERRORS = ErrorMapper(Endpoint(base_url="http://h/v1", model="m"))

Fields = dict[str, Any]


def model_of(server: ModelServer) -> ResponsesModel:
    return ResponsesModel(Endpoint(base_url=server.base_url, model="m"))


async def replied(*sent: Fields | bytes) -> Reply:
    answer = Response(body=events(*sent))
    async with ModelServer([answer]) as server, model_of(server) as model:
        return await model.reply(HI)


def delta(text: str, **fields: Any) -> Fields:
    return {"type": "response.output_text.delta", "delta": text, **fields}


def ended(status: str = "completed", **fields: Any) -> Fields:
    return {"type": f"response.{status}", "response": {"status": status, **fields}}


@pytest.mark.parametrize(
    "step",
    [
        say("Hello, there."),
        say("Once upon", finish=Finish.LENGTH).using(9, 3),
        think("Let me see, again.", calls(call("a", x=1), call("b"), text="Both.")).using(9, 3),
    ],
)
def test_the_events_of_the_test_server_are_those_of_the_sdk(step: Any) -> None:
    for data in EventParser().feed(responses_format.streamed(step)):
        sent = msgspec.json.decode(data)
        parsed = openai_events().validate_python(sent)
        assert parsed.type == sent["type"]
        # No field that the type does not know.
        assert sent.keys() <= type(parsed).model_fields.keys(), sent["type"]


async def test_items_that_interleave_keep_their_order() -> None:
    reasoning = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"}
    first = {"type": "function_call", "id": "f1", "call_id": "c1", "name": "a", "arguments": "{}"}
    added = "response.output_item.added"
    reply = await replied(
        {"type": added, "output_index": 2, "item": {**first, "arguments": ""}},
        {"type": added, "output_index": 0, "item": {**reasoning, "encrypted_content": "half"}},
        {"type": added, "output_index": 1, "item": {"type": "message", "id": "m", "content": []}},
        delta("On ", item_id="m", output_index=1),
        {"type": "response.function_call_arguments.delta", "item_id": "f1", "delta": "{}"},
        delta("it.", item_id="m", output_index=1),
        {"type": "response.output_item.done", "output_index": 2, "item": first},
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
        {"type": "response.something.new", "item_id": "m", "delta": "?"},
        ended(),
    )
    message = reply.message
    assert message.content == "On it."
    assert [(one.id, one.name, one.arguments) for one in message.calls] == [("c1", "a", "{}")]
    assert message.thoughts is not None
    assert [msgspec.json.decode(one.block) for one in message.thoughts.blocks] == [reasoning]


async def test_a_refusal_is_the_text_of_the_reply() -> None:
    refused = {"type": "response.refusal.delta", "delta": "I cannot help with that."}
    reply = await replied(refused, ended())
    assert (reply.message.content, reply.finish) == ("I cannot help with that.", Finish.STOP)


async def test_a_refusal_says_nothing_about_the_output_mode() -> None:
    schema = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
    refused = events({"type": "response.refusal.delta", "delta": "No."}, ended())
    asked = Request(messages=HI.messages, schema=schema)
    answers: list[Answering] = [Response(body=refused), say('{"n": 1}')]
    async with ModelServer(answers) as server, model_of(server) as model:
        await model.reply(asked)
        await model.reply(asked)
    assert [sent.json["text"]["format"]["type"] for sent in server.requests] == ["json_schema"] * 2


async def test_counts() -> None:
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 15},
    }
    reply = await replied(delta("Hi."), ended(usage=usage))
    assert reply.usage == Usage(100, 60, 20, tokens_written=30, tokens_reasoning=15)


async def test_an_incomplete_response() -> None:
    reply = await replied(
        delta("Once"), ended("incomplete", incomplete_details={"reason": "max_output_tokens"})
    )
    assert (reply.message.content, reply.finish) == ("Once", Finish.LENGTH)
    with pytest.raises(ProviderError, match="content filter"):
        await replied(ended("incomplete", incomplete_details={"reason": "content_filter"}))


async def test_a_filtered_response_at_its_limit_is_not_continued() -> None:
    filtered = ended(
        "incomplete",
        incomplete_details={"reason": "content_filter"},
        usage={"output_tokens": 16},
    )
    asked = Request(messages=HI.messages, max_output_tokens=16)
    answer = Response(body=events(delta("One two"), filtered))
    async with ModelServer([answer]) as server, model_of(server) as model:
        with pytest.raises(ProviderError, match="content filter"):
            await model.reply(asked)


async def test_a_response_that_hit_its_limit_without_saying_so() -> None:
    """As from llama.cpp."""
    answer = Response(body=events(delta("One two"), ended(usage={"output_tokens": 16})))
    asked = Request(messages=HI.messages, max_output_tokens=16)
    async with ModelServer([answer]) as server, model_of(server) as model:
        assert (await model.reply(asked)).finish is Finish.LENGTH


@pytest.mark.parametrize(
    ("sent", "kind", "told"),
    [
        (ended("failed", error={"code": "server_error", "message": "Oh."}), ProviderError, "Oh."),
        (
            ended("failed", error={"code": "rate_limit_exceeded", "message": "Slow down."}),
            RateLimited,
            "Slow down.",
        ),
        (
            ended("failed", error={"code": "context_length_exceeded", "message": "Too long."}),
            ContextOverflow,
            "Too long.",
        ),
        (
            ended("failed", error={"code": "invalid_prompt", "message": "Not allowed."}),
            RequestRefused,
            "Not allowed.",
        ),
        ({"type": "error", "code": "server_error", "message": "Oh."}, ProviderError, "Oh."),
        (
            {"type": "error", "error": {"type": "invalid_request_error", "message": "No."}},
            RequestRefused,
            "No.",
        ),
        (ended("failed"), ProviderError, "broke off"),
        (delta("Half a"), ProviderError, "broke off"),
    ],
)
async def test_failures(sent: Fields, kind: type[ModelError], told: str) -> None:
    with pytest.raises(kind, match=told):
        await replied(sent)


def test_the_echo_of_a_long_request_does_not_cut_the_reply() -> None:
    reader = ResponseReader(ERRORS)
    reader.limit_output(16)
    echo = {"type": "response.created", "response": {"instructions": "x" * 500_000}}
    for sent in (echo, delta("Hi."), ended()):
        assert reader.feed([msgspec.json.encode(sent)]) is None
    reply = reader.reply(HI, b"", 0.0)
    assert (reply.message.content, reply.finish) == ("Hi.", Finish.STOP)


# Random streams, in any order that the items allow


def items_of(chance: random.Random) -> list[Fields]:
    made: list[Fields] = []
    for number in range(chance.randint(1, 5)):
        match chance.choice(["reasoning", "message", "function_call"]):
            case "reasoning":
                summary = [{"type": "summary_text", "text": some_text(chance)}]
                made.append({"type": "reasoning", "summary": summary, "encrypted_content": "x"})
            case "message":
                kind, field = chance.choice([("output_text", "text"), ("refusal", "refusal")])
                content = [{"type": kind, field: some_text(chance)}]
                made.append({"type": "message", "role": "assistant", "content": content})
                if phase := chance.choice([None, "commentary", "final_answer"]):
                    made[-1]["phase"] = phase
            case _:
                arguments = msgspec.json.encode({"x": some_text(chance)}).decode()
                called = {"call_id": f"call_{number}", "name": "tool", "arguments": arguments}
                made.append({"type": "function_call", **called})
        made[-1]["id"] = f"item_{number}"
    return made


def events_of(index: int, item: Fields, missing: set[str], chance: random.Random) -> list[Fields]:
    """The events of one item, without the optional parts that are `missing`."""
    at: Fields = {} if "output_index" in missing else {"output_index": index}
    place = at if "id" in missing else {**at, "item_id": item["id"]}
    match item["type"]:
        case "reasoning":
            kind, text, empty = "reasoning_summary_text", item["summary"][0]["text"], "summary"
        case "message":
            part = item["content"][0]
            kind = "refusal" if part["type"] == "refusal" else "output_text"
            text, empty = part.get("text") or part.get("refusal"), "content"
        case _:
            kind, text, empty = "function_call_arguments", item["arguments"], "arguments"
    begun = {**item, empty: "" if empty == "arguments" else []}
    sent: list[Fields] = []
    if "added" not in missing or "done" in missing:
        sent.append({"type": "response.output_item.added", **at, "item": begun})
    if "deltas" not in missing or "done" in missing:
        sent += (
            {"type": f"response.{kind}.delta", **place, "delta": piece}
            for piece in pieces_of(text, chance)
        )
    if "done" not in missing or item["type"] == "reasoning":
        sent.append({"type": "response.output_item.done", **at, "item": item})
    return sent


def reference(items: list[Fields]) -> tuple[str, list[tuple[str, str, str]], list[Fields]]:
    """The reply that these items make: its text, its calls, and what is sent back of it."""
    texts = [
        part.get("text") or part.get("refusal")
        for item in items
        if item["type"] == "message"
        for part in item["content"]
    ]
    made = [
        (item["call_id"], item["name"], item["arguments"])
        for item in items
        if item["type"] == "function_call"
    ]
    sent_back: list[Fields] = []
    for item in items:
        match item["type"]:
            case "reasoning":
                sent_back.append(item)
            case "message":
                part = item["content"][0]
                back = {"role": "assistant", "content": part.get("text") or part.get("refusal")}
                phase = {"phase": item["phase"]} if "phase" in item else {}
                sent_back.append({"type": "message", **back, **phase})
            case _:
                sent_back.append({key: value for key, value in item.items() if key != "id"})
    while sent_back and sent_back[-1]["type"] == "reasoning":
        sent_back.pop()
    return "\n\n".join(texts), made, sent_back


OPTIONAL = ["id", "output_index", "added", "deltas", "done", "output"]


@pytest.mark.parametrize("count", STREAMS)
def test_any_stream_makes_the_reply_of_its_items(count: int) -> None:
    each_stream(count, check_stream)


def check_stream(chance: random.Random) -> None:
    missing = {name for name in OPTIONAL if chance.random() < 0.3}
    items = items_of(chance)
    for item in items:
        if "id" in missing:
            del item["id"]
    ending = ended(output=[] if "output" in missing else items)
    streams = [events_of(n, item, missing, chance) for n, item in enumerate(items)]
    if missing & {"output_index", "id"}:
        # Without ids or places, the order of the events tells what belongs together.
        ordered = [each for stream in streams for each in stream]
    else:
        ordered = list(interleaved(streams, chance))
    body = events(*ordered, ending, *([b"[DONE]"] if chance.random() < 0.5 else []))
    message = read_in_pieces(ResponseReader(ERRORS, model_name=ME), body, chance).message
    text, made, sent_back = reference(items)
    assert message.content == text
    assert [(one.id, one.name, one.arguments) for one in message.calls] == made
    again = ResponsesEncoder("m", name=ME).encode(Request(messages=(message,)))
    assert msgspec.json.decode(again)["input"] == sent_back
