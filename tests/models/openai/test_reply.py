from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Reply,
    Request,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.openai.reply import ChatReplyReader
from retinue.testing.server import chunk, events
from tests.models.random_streams import (
    STREAMS,
    each_stream,
    interleaved,
    pieces_of,
    read_in_pieces,
    some_text,
)

Fields = dict[str, Any]

REQUEST = Request(messages=(UserMessage("Hi."),))


def new_reader() -> ChatReplyReader:
    return ChatReplyReader(ErrorMapper(Endpoint(base_url="http://127.0.0.1/v1", model="m")))


def read(*chunks: dict[str, Any], request: Request = REQUEST, body: bytes = b"") -> Reply:
    reader = new_reader()
    assert reader.feed([msgspec.json.encode(value) for value in chunks]) is None
    return reader.reply(request, body, 0.0)


def tools(*deltas: dict[str, Any]) -> tuple[ToolCall, ...]:
    """The calls that come of these deltas, each in a chunk of its own."""
    return read(*(chunk({"tool_calls": [delta]}) for delta in deltas)).message.calls


def delta(index: int | None = None, call_id: str | None = None, **function: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"function": function}
    if index is not None:
        made["index"] = index
    if call_id is not None:
        made["id"] = call_id
    return made


A = ToolCall("a", "read_file", '{"path":"a"}')
B = ToolCall("b", "read_file", '{"path":"b"}')


def test_as_openai_streams() -> None:
    assert tools(
        delta(0, "a", name="read_file", arguments=""),
        delta(0, arguments='{"path"'),
        delta(0, arguments=':"a"}'),
        delta(1, "b", name="read_file", arguments=""),
        delta(1, arguments='{"path":"b"}'),
    ) == (A, B)


def test_interleaved() -> None:
    assert tools(
        delta(0, "a", name="read_file"),
        delta(1, "b", name="read_file"),
        delta(1, arguments='{"path":'),
        delta(0, arguments='{"path":'),
        delta(0, arguments='"a"}'),
        delta(1, arguments='"b"}'),
    ) == (A, B)


@given(st.lists(st.integers(1, 3), max_size=12), st.lists(st.integers(1, 4), max_size=12))
def test_name_and_arguments_in_any_pieces(names: list[int], arguments: list[int]) -> None:
    deltas = [delta(0, "a")]
    for field, text, sizes in (("name", A.name, names), ("arguments", A.arguments, arguments)):
        for size in [*sizes, len(text)]:
            piece, text = text[:size], text[size:]
            deltas.append(delta(0, **{field: piece}))
    assert tools(*deltas) == (A,)


def test_id_and_name_repeated_in_every_chunk() -> None:
    assert tools(
        delta(0, "a", name="read_file", arguments='{"path"'),
        delta(0, "a", name="read_file", arguments=':"a"}'),
    ) == (A,)


def test_a_new_id_in_every_chunk_without_a_name_is_the_same_call() -> None:
    assert tools(
        delta(0, "a", name="read_file", arguments='{"path"'),
        delta(0, "x1", arguments=':"a"}'),
    ) == (A,)


def test_whole_calls_without_an_index() -> None:
    assert tools(
        delta(None, "a", name="read_file", arguments='{"path":"a"}'),
        delta(None, "b", name="read_file", arguments='{"path":"b"}'),
    ) == (A, B)


def test_pieces_without_an_index() -> None:
    assert tools(
        delta(None, "a", name="read_file", arguments='{"path"'),
        delta(None, arguments=':"a"}'),
        delta(None, "b", name="read_file"),
        delta(None, "b", arguments='{"path":"b"}'),
    ) == (A, B)


def test_every_call_has_index_0_and_an_id() -> None:
    assert tools(
        delta(0, "a", name="read_file", arguments='{"path":'),
        delta(0, arguments='"a"}'),
        delta(0, "b", name="read_file", arguments='{"path":'),
        delta(0, arguments='"b"}'),
    ) == (A, B)


@pytest.mark.parametrize("call_id", [None, ""])
def test_every_call_has_index_0_and_no_id(call_id: str | None) -> None:
    assert tools(
        delta(0, call_id, name="read_file", arguments='{"path":"a"}'),
        delta(0, call_id, name="read_file", arguments='{"path":"b"}'),
    ) == (
        ToolCall("call_0", "read_file", '{"path":"a"}'),
        ToolCall("call_1", "read_file", '{"path":"b"}'),
    )


def test_arguments_as_an_object() -> None:
    assert tools(delta(0, "a", name="read_file", arguments={"path": "a"})) == (A,)


def test_no_arguments_at_all() -> None:
    assert tools(delta(0, "a", name="now")) == (ToolCall("a", "now", ""),)
    assert tools(delta(0, "a", name="now", arguments=None)) == (ToolCall("a", "now", ""),)


def test_an_empty_call_is_dropped() -> None:
    assert tools({"index": 0}, {"index": 1, "function": None}) == ()


def test_the_same_id_twice_in_one_reply_is_made_unique() -> None:
    first, second = tools(
        delta(0, "a", name="read_file", arguments="{}"),
        delta(1, "a", name="list_dir", arguments="{}"),
    )
    assert (first.id, second.id) == ("a", "call_0")


def test_generated_ids_are_stable_and_unique_in_the_conversation() -> None:
    earlier = AssistantMessage("", (ToolCall("call_0", "x", "{}"), ToolCall("call_2", "x", "{}")))
    request = Request(
        messages=(UserMessage("Hi."), earlier, ToolMessage("call_0", ""), ToolMessage("call_2", ""))
    )
    value = chunk({"tool_calls": [delta(name="y"), delta(name="z")]})
    for _ in range(2):
        made = read(value, request=request).message.calls
        assert [call.id for call in made] == ["call_3", "call_4"]


@pytest.mark.parametrize(
    ("reason", "with_call", "finish"),
    [
        ("stop", False, Finish.STOP),
        ("length", False, Finish.LENGTH),
        ("length", True, Finish.LENGTH),
        ("tool_calls", True, Finish.TOOLS),
        ("stop", True, Finish.TOOLS),
        ("tool_calls", False, Finish.STOP),
        ("eos_token", False, Finish.STOP),
        (None, False, Finish.STOP),
        (None, True, Finish.TOOLS),
    ],
)
def test_finish_by_reason(reason: str | None, with_call: bool, finish: Finish) -> None:
    part = {"tool_calls": [delta(0, "a", name="x")]} if with_call else {"content": "x"}
    assert read(chunk(part), chunk({}, finish_reason=reason)).finish is finish


@pytest.mark.parametrize(
    ("extra", "usage"),
    [
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 4}}, Usage(9, 0, 4)),
        (
            {
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": 4,
                    "prompt_tokens_details": {"cached_tokens": 5},
                }
            },
            Usage(9, 5, 4),
        ),
        (
            {
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": 4,
                    "prompt_tokens_details": None,
                },
                "timings": {"prompt_n": 2, "cache_n": 7, "predicted_n": 4},
            },
            Usage(9, 7, 4),
        ),
        (
            {
                "usage": {
                    "prompt_tokens": 9.0,
                    "completion_tokens": 4.0,
                    "prompt_cache_hit_tokens": 6,
                }
            },
            Usage(9, 6, 4),
        ),
        ({"timings": {"prompt_n": 2, "cache_n": 7, "predicted_n": 4}}, Usage(9, 7, 4)),
        ({"timings": {"prompt_n": 2, "predicted_n": 4}}, Usage(2, 0, 4)),
        ({"usage": None}, Usage(10, 0, 2, estimated=True)),
        ({"usage": {"prompt_tokens": 2**63, "completion_tokens": 4}}, Usage(0, 0, 4)),
        (
            {"usage": {"prompt_tokens": 10**30, "completion_tokens": -4}},
            Usage(10, 0, 2, estimated=True),
        ),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, Usage(10, 0, 2, estimated=True)),
        (
            {
                "usage": {
                    "prompt_tokens": 3,
                    "completion_tokens": 1,
                    "prompt_tokens_details": {"cached_tokens": 99},
                }
            },
            Usage(3, 3, 1),
        ),
        (
            {
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": 4,
                    "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 3},
                    "cost": 0.00125,
                }
            },
            Usage(9, 5, 4, cost_microusd=1250, tokens_written=3),
        ),
        # Other servers have another thing of that name.
        (
            {
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": 4,
                    "cost": {"total_cost": 0.1},
                }
            },
            Usage(9, 0, 4),
        ),
    ],
)
def test_usage(extra: dict[str, Any], usage: Usage) -> None:
    reply = read(chunk({"content": "12345"}), {"choices": [], **extra}, body=b"x" * 40)
    assert reply.usage == usage


def test_usage_that_grows_with_every_chunk_counts_once() -> None:
    parts = [
        {**chunk({"content": "x"}), "usage": {"prompt_tokens": 9, "completion_tokens": n}}
        for n in range(1, 4)
    ]
    assert read(*parts).usage == Usage(9, 0, 3)


def test_thinking_is_a_first_token_and_no_content() -> None:
    def first_token(delta: dict[str, Any]) -> bool:
        reader = new_reader()
        assert reader.feed([msgspec.json.encode(chunk(delta))]) is None
        assert reader.empty
        return reader.first_token_at is not None

    assert not first_token({"role": "assistant", "content": ""})
    assert first_token({"reasoning_content": "hm"})
    assert first_token({"reasoning": "hm"})


def test_refusal_is_text() -> None:
    assert read(chunk({"refusal": "No."})).message.content == "No."


def test_a_cumulative_message_beside_the_delta_is_ignored() -> None:
    def both(text: str, so_far: str) -> dict[str, Any]:
        return {"choices": [{"delta": {"content": text}, "message": {"content": so_far}}]}

    assert read(both("a", "a"), both("b", "ab")).message.content == "ab"


# Random streams


def call_deltas(number: int, made: ToolCall, missing: set[str], chance: Random) -> list[Fields]:
    """The pieces of one call. Without an index, each has the id, or follows the first of them."""
    place: Fields = {} if "index" in missing else {"index": number}
    name: Fields = {} if "id" in missing else {"id": made.id, "type": "function"}
    pieces = list(pieces_of(made.arguments, chance))
    if "deltas" in missing:
        return [{**place, **name, "function": {"name": made.name, "arguments": made.arguments}}]
    sent: list[Fields] = [{**place, **name, "function": {"name": made.name, "arguments": ""}}]
    for piece in pieces:
        function: Fields = {"arguments": piece}
        if "repeated" in missing:
            sent.append({**place, "function": function})
        else:
            # A server that repeats the id repeats the name too.
            function |= {} if "id" in missing else {"name": made.name}
            sent.append({**place, **name, "function": function})
    return sent


def in_chunks(deltas: list[Fields], chance: Random) -> Iterator[Fields]:
    """Chunks with one delta each, or with several that have nothing in common but calls."""
    waiting: Fields = {}
    for each in deltas:
        if waiting and (chance.random() < 0.5 or (waiting.keys() & each.keys()) - {"tool_calls"}):
            yield chunk(waiting)
            waiting = {}
        called = [*waiting.get("tool_calls", ()), *each.get("tool_calls", ())]
        waiting |= {**each, "tool_calls": called} if called else each
    yield chunk(waiting)


OPTIONAL = ["id", "index", "repeated", "deltas", "role", "finish", "usage", "done"]


def check_stream(chance: Random) -> None:
    missing = {name for name in OPTIONAL if chance.random() < 0.3}
    thinking, text = (some_text(chance) if chance.random() < 0.6 else "" for _ in range(2))
    made = [
        ToolCall(f"call_{n}", "tool", msgspec.json.encode({"x": some_text(chance)}).decode())
        for n in range(chance.randint(0 if text else 1, 4))
    ]
    field = chance.choice(["reasoning_content", "reasoning"])
    spoken = [{"content": piece} for piece in pieces_of(text, chance)]
    thought = [{field: piece} for piece in pieces_of(thinking, chance)]
    called = [call_deltas(n, each, missing, chance) for n, each in enumerate(made)]
    apart = "index" not in missing or ("id" not in missing and "repeated" not in missing)
    first = [each[0] for each in called]
    rest = [each[1:] for each in called]
    if apart:
        calls_in_order = [*first, *interleaved(rest, chance)]
    else:
        # Without index and id, the order of the deltas tells what belongs together.
        calls_in_order = [each for stream in called for each in stream]
    deltas = list(
        interleaved([spoken, thought, [{"tool_calls": [d]} for d in calls_in_order]], chance)
    )
    if "role" not in missing:
        deltas.insert(0, {"role": "assistant", "content": ""})
    sent = list(in_chunks(deltas, chance))
    if "finish" not in missing:
        sent.append(chunk({}, finish_reason="tool_calls" if made else "stop"))
    if "usage" not in missing:
        sent.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}})
    body = events(*sent, *([] if "done" in missing else [b"[DONE]"]))
    reply = read_in_pieces(new_reader(), body, chance)
    message = reply.message
    assert message.content == text
    assert [(one.name, one.arguments) for one in message.calls] == [
        (one.name, one.arguments) for one in made
    ]
    if "id" not in missing:
        assert [one.id for one in message.calls] == [one.id for one in made]
    assert reply.finish is (Finish.TOOLS if made else Finish.STOP)
    kept = () if message.thoughts is None else message.thoughts.blocks
    assert [msgspec.json.decode(one.block) for one in kept] == [{field: thinking}] * bool(thinking)
    if "usage" not in missing:
        assert reply.usage == Usage(9, 0, 5)


@pytest.mark.parametrize("count", STREAMS)
def test_any_stream_makes_the_reply_of_its_parts(count: int) -> None:
    each_stream(count, check_stream)
