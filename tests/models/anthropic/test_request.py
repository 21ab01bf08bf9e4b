from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.images import Image
from retinue.domain.messages import (
    AssistantMessage,
    Message,
    Request,
    SystemMessage,
    Thought,
    Thoughts,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from retinue.domain.sampling import Sampling
from retinue.domain.thinking import ThinkingOptions, parse_thinking
from retinue.models.anthropic.request import (
    ADAPTIVE,
    BUDGETS,
    CACHE_CONTROL,
    CACHE_TTL,
    DISABLING,
    MessagesEncoder,
)
from retinue.models.http.capabilities import OutputMode

ME = "anthropic:m"
TOOLS = (
    ToolSpec("list_dir", "List.", msgspec.Raw(b'{"type": "object"}')),
    ToolSpec("read_file", "Read.", msgspec.Raw(b'{"type": "object"}')),
)
MARK = {"type": "ephemeral"}
SCHEMA = '{"type":"object","properties":{"a":{"type":"integer","minimum":3}},"required":["a"]}'


def encoded(
    *messages: Message,
    thinking: ThinkingOptions | None = None,
    mode: OutputMode = OutputMode.PROMPT,
    unsupported: frozenset[str] = frozenset(),
    options: dict[str, bool] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    encoder = MessagesEncoder("m", name=ME, thinking=thinking, **(options or {}))
    body = encoder.encode(Request(messages=messages, **fields), mode, unsupported)
    value: dict[str, Any] = msgspec.json.decode(body)
    return value


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def thought(words: str, after_text: int = 0, after_calls: int = 0) -> Thought:
    return Thought(f'{{"type":"thinking","thinking":"{words}"}}', after_text, after_calls)


def test_the_whole_body() -> None:
    assert encoded(
        SystemMessage("Be brief."),
        UserMessage("Hi."),
        AssistantMessage("I look.", (ToolCall("c1", "read_file", '{"path": "a"}'),)),
        ToolMessage("c1", "text"),
        AssistantMessage("", (ToolCall("c2", "list_dir", ""), ToolCall("c3", "read_file", "{"))),
        ToolMessage("c2", ""),
        ToolMessage("c3", "[ERROR] not JSON", failed=True),
        UserMessage("Be quick."),
        tools=TOOLS,
        max_output_tokens=50,
    ) == {
        "model": "m",
        "max_tokens": 50,
        "system": [text("Be brief.", cache_control=MARK)],
        "tools": [
            {"name": "list_dir", "description": "List.", "input_schema": {"type": "object"}},
            {
                "name": "read_file",
                "description": "Read.",
                "input_schema": {"type": "object"},
                "cache_control": MARK,
            },
        ],
        "messages": [
            {"role": "user", "content": [text("Hi.")]},
            {
                "role": "assistant",
                "content": [
                    text("I look."),
                    {"type": "tool_use", "id": "c1", "name": "read_file", "input": {"path": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": "text",
                        "cache_control": MARK,
                    }
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "c2", "name": "list_dir", "input": {}},
                    {
                        "type": "tool_use",
                        "id": "c3",
                        "name": "read_file",
                        "input": {"invalid_json": "{"},
                    },
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c2", "content": ""},
                    {
                        "type": "tool_result",
                        "tool_use_id": "c3",
                        "content": "[ERROR] not JSON",
                        "is_error": True,
                    },
                    text("Be quick.", cache_control=MARK),
                ],
            },
        ],
        "stream": True,
    }


# Prefixes and the marks in them


def marks(value: Any) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(map(marks, value.values()))
    return sum(map(marks, value)) if isinstance(value, list) else 0


def test_request_without_tools_has_no_breakpoint_at_its_end() -> None:
    assert marks(encoded(SystemMessage("Be brief."), UserMessage("Hi."))) == 1


def test_refused_cache_control_is_left_out() -> None:
    sent = encoded(
        SystemMessage("x"), UserMessage("y"), tools=TOOLS, unsupported=frozenset({CACHE_CONTROL})
    )
    assert marks(sent) == 0


def without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_marks(v) for k, v in value.items() if k != "cache_control"}
    return [without_marks(item) for item in value] if isinstance(value, list) else value


TURN = st.tuples(st.text(max_size=20), st.integers(0, 3), st.booleans())


@given(st.lists(TURN, max_size=6))
def test_requests_extend_each_other_with_at_most_four_breakpoints(
    turns: list[tuple[str, int, bool]],
) -> None:
    encoder = MessagesEncoder("m", name=ME)
    messages: list[Message] = [SystemMessage("Be brief."), UserMessage("Hi.")]
    before: list[Any] = []
    for number, (said, count, told) in enumerate(turns):
        sent = msgspec.json.decode(encoder.encode(Request(messages=tuple(messages), tools=TOOLS)))
        assert marks(sent) <= 4
        assert marks(sent["messages"][-1]) <= 1
        now = without_marks(sent["messages"])
        assert now[: len(before)] == before
        before = now
        calls = tuple(ToolCall(f"c{number}.{n}", "read_file", "{}") for n in range(count))
        messages += [AssistantMessage(said, calls), *(ToolMessage(call.id, said) for call in calls)]
        if told or not calls:
            messages.append(UserMessage("Go on."))
        if not calls and not said.strip():
            # What nobody said is left out, and the words of the user around it become one message.
            before[-1:] = []


def test_last_breakpoint_of_the_previous_request_is_kept() -> None:
    call = ToolCall("c", "read_file", "{}")
    opening = (SystemMessage("x"), UserMessage("Hi."))
    first = encoded(*opening, tools=TOOLS)["messages"]
    second = encoded(*opening, AssistantMessage("", (call,)), ToolMessage("c", "y"), tools=TOOLS)
    assert second["messages"][0] == first[-1]
    assert marks(second["messages"]) == 2


def test_empty_result_has_no_breakpoint() -> None:
    calls = (ToolCall("a", "read_file", "{}"), ToolCall("b", "read_file", "{}"))
    answers = (ToolMessage("a", "x"), ToolMessage("b", ""))
    sent = encoded(UserMessage("Hi."), AssistantMessage("", calls), *answers, tools=TOOLS)[
        "messages"
    ]
    assert [marks(block) for block in sent[-1]["content"]] == [1, 0]
    last = encoded(
        UserMessage("Hi."), AssistantMessage("", calls[:1]), ToolMessage("a", ""), tools=TOOLS
    )
    assert [marks(turn) for turn in last["messages"]] == [1, 0, 0]


def test_tools_are_the_same_bytes_in_every_request() -> None:
    encoder = MessagesEncoder("m")
    request = Request(messages=(UserMessage("x"),), tools=TOOLS)
    other = Request(messages=(UserMessage("x"),), tools=tuple(TOOLS))
    assert encoder.encode(request) == encoder.encode(request) == encoder.encode(other)


# What the API insists on


def test_open_calls_get_a_result() -> None:
    calls = (ToolCall("a", "read_file", "{}"), ToolCall("b", "read_file", "{}"))
    sent = encoded(
        UserMessage("Hi."),
        AssistantMessage("", calls),
        ToolMessage("a", "x"),
        UserMessage("Stop."),
        tools=TOOLS,
    )
    content = sent["messages"][2]["content"]
    assert [block["type"] for block in content] == ["tool_result", "tool_result", "text"]
    assert content[1]["tool_use_id"] == "b"
    assert content[1]["is_error"] is True
    assert content[1]["content"] == "It was not run."
    last = encoded(UserMessage("Hi."), AssistantMessage("", calls[:1]))["messages"][-1]
    assert last["content"][0]["tool_use_id"] == "a"
    silent = encoded(
        UserMessage("Hi."),
        AssistantMessage("", calls[:1]),
        AssistantMessage(""),
        AssistantMessage("Done."),
    )
    answered = [block for turn in silent["messages"] for block in turn["content"]]
    assert [block["type"] for block in answered] == ["text", "tool_use", "tool_result", "text"]


def test_tools_of_earlier_calls_are_declared() -> None:
    call = ToolCall("a", "read_file", "{}")
    sent = encoded(UserMessage("Hi."), AssistantMessage("", (call,)), ToolMessage("a", "x"))
    assert sent["tools"] == [
        {"name": "read_file", "description": "", "input_schema": {"type": "object"}}
    ]
    assert sent["tool_choice"] == {"type": "none"}
    assert "tools" not in encoded(UserMessage("Hi."))


def test_foreign_ids_and_names_are_made_valid() -> None:
    call = ToolCall("functions.read:0", "über file", "{}")
    sent = encoded(
        UserMessage("x"), AssistantMessage("", (call,)), ToolMessage(call.id, "y"), tools=TOOLS
    )
    made, answered = sent["messages"][1]["content"][0], sent["messages"][2]["content"][0]
    assert made["id"] == answered["tool_use_id"] == "functions_read_0"
    assert made["name"] == "_ber_file"


def test_empty_messages_are_left_out() -> None:
    sent = encoded(
        SystemMessage(" "),
        UserMessage("Hi."),
        AssistantMessage(" \n"),
        UserMessage(""),
        UserMessage("Still there?"),
    )
    assert "system" not in sent
    assert sent["messages"] == [{"role": "user", "content": [text("Hi."), text("Still there?")]}]


def test_lone_surrogate_is_replaced() -> None:
    sent = encoded(UserMessage("a\ud800b"))
    assert sent["messages"][0]["content"] == [text("a?b")]


# Thoughts


def test_thoughts_keep_their_position() -> None:
    calls = (ToolCall("a", "read_file", "{}"), ToolCall("b", "read_file", "{}"))
    thoughts = Thoughts(ME, (thought("1"), thought("2", 3, 0), thought("3", 6, 1)))
    sent = encoded(UserMessage("x"), AssistantMessage("OneTwo", calls, thoughts), tools=TOOLS)
    content = sent["messages"][1]["content"]
    shown = [b.get("thinking") or b.get("text") or b.get("id") for b in content]
    assert shown == ["1", "One", "2", "Two", "a", "3", "b"]


PLACES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=4)


@given(st.text(max_size=6), st.integers(0, 2), PLACES)
def test_any_thought_position_loses_and_repeats_nothing(
    said: str, count: int, places: list[tuple[int, int]]
) -> None:
    calls = tuple(ToolCall(f"c{n}", "read_file", "{}") for n in range(count))
    thoughts = Thoughts(ME, tuple(thought(str(n), *place) for n, place in enumerate(places)))
    message = AssistantMessage(said, calls, thoughts)
    sent = encoded(
        UserMessage("x"), message, *(ToolMessage(call.id, "") for call in calls), tools=TOOLS
    )
    turns = [turn for turn in sent["messages"] if turn["role"] == "assistant"]
    blocks = [block for turn in turns for block in turn["content"]]
    kept = "".join(b["text"] for b in blocks if b["type"] == "text")
    # Texts that are only white space are refused by the API.
    assert "".join(kept.split()) == "".join(said.split())
    assert [b["id"] for b in blocks if b["type"] == "tool_use"] == [call.id for call in calls]
    assert [b["thinking"] for b in blocks if b["type"] == "thinking"] == [
        str(n) for n in range(len(places))
    ]


def test_thoughts_of_other_models_are_not_sent() -> None:
    call = ToolCall("a", "read_file", "{}")
    made = AssistantMessage("", (call,), Thoughts("another", (thought("x"),)))
    sent = encoded(UserMessage("x"), made, ToolMessage("a", "y"), tools=TOOLS)
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["tool_use"]


# Thinking


def with_calls(thoughts: Thoughts | None) -> tuple[Message, ...]:
    call = ToolCall("a", "read_file", "{}")
    return (UserMessage("x"), AssistantMessage("Hm.", (call,), thoughts), ToolMessage("a", "y"))


MINE = Thoughts(ME, (thought("x"),))
BUDGET = ThinkingOptions(on=True, budget_tokens=4000)


@pytest.mark.parametrize(
    ("thinking", "limit", "sent"),
    [
        (ThinkingOptions(), None, None),
        (ThinkingOptions(on=True), None, {"type": "adaptive"}),
        (ThinkingOptions(on=True), 256, {"type": "adaptive"}),
        (ThinkingOptions(on=False), None, {"type": "disabled"}),
        (BUDGET, None, {"type": "enabled", "budget_tokens": 4000}),
        (BUDGET, 8192, {"type": "enabled", "budget_tokens": 4000}),
        # Thoughts count as output, and there must be room for the answer.
        (BUDGET, 3000, {"type": "enabled", "budget_tokens": 1976}),
        (BUDGET, 2000, None),
    ],
)
def test_thinking_field(
    thinking: ThinkingOptions, limit: int | None, sent: dict[str, Any] | None
) -> None:
    body = encoded(UserMessage("x"), thinking=thinking, max_output_tokens=limit)
    assert body.get("thinking") == sent
    assert body["max_tokens"] == (limit or 32_000)


def test_a_large_budget_leaves_room_for_the_answer() -> None:
    body = encoded(UserMessage("x"), thinking=ThinkingOptions(on=True, budget_tokens=40_000))
    assert body["thinking"]["budget_tokens"] == 40_000
    assert body["max_tokens"] == 56_000


def test_without_adaptive_thinking_half_of_the_limit_is_the_budget() -> None:
    sent = encoded(
        UserMessage("x"),
        thinking=ThinkingOptions(on=True),
        max_output_tokens=8000,
        unsupported=frozenset({ADAPTIVE}),
    )
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 4000}


@pytest.mark.parametrize(
    ("thoughts", "thinks"),
    [
        (MINE, True),
        (None, False),
        (Thoughts("another", MINE.blocks), False),
        (Thoughts(ME, (thought("x", after_text=3),)), False),
    ],
)
def test_budget_needs_earlier_thoughts_of_the_model(
    thoughts: Thoughts | None, thinks: bool
) -> None:
    sent = encoded(*with_calls(thoughts), thinking=BUDGET, tools=TOOLS)
    assert ("thinking" in sent) is thinks
    # Thoughts beside a request not to think are refused.
    kinds = [block["type"] for block in sent["messages"][1]["content"]]
    assert ("thinking" in kinds) is thinks


def test_forced_tool_call_turns_thinking_off() -> None:
    sent = encoded(
        *with_calls(MINE), thinking=ThinkingOptions(on=True), mode=OutputMode.TOOL, schema=SCHEMA
    )
    assert sent["thinking"] == {"type": "disabled"}
    assert sent["messages"][1]["content"][0]["type"] == "text"


ADAPTIVE_MODEL = {"adaptive": True}


def test_forced_tool_call_of_a_model_that_thinks_by_default() -> None:
    mode, schema = OutputMode.TOOL, SCHEMA
    sent = encoded(*with_calls(MINE), mode=mode, schema=schema, options=ADAPTIVE_MODEL)
    assert sent["thinking"] == {"type": "disabled"}
    # Of another model nothing is known, until its server complains.
    assert "thinking" not in encoded(*with_calls(MINE), mode=mode, schema=schema)
    # Some models always think, and want their thoughts back.
    unsupported = frozenset({DISABLING})
    sent = encoded(
        *with_calls(MINE), mode=mode, schema=schema, options=ADAPTIVE_MODEL, unsupported=unsupported
    )
    assert "thinking" not in sent
    assert sent["messages"][1]["content"][0]["type"] == "thinking"


@pytest.mark.parametrize(
    ("thinking", "field", "effort"),
    [
        ("+thinking", {"type": "adaptive"}, None),
        ("+thinking=2000", {"type": "adaptive"}, "low"),
        ("+thinking=8000", {"type": "adaptive"}, "medium"),
        ("+thinking=32000", {"type": "adaptive"}, "high"),
        ("+thinking=32000+effort=xhigh", {"type": "adaptive"}, "xhigh"),
        ("+effort=minimal", None, "low"),
        ("+effort=none", {"type": "disabled"}, None),
        ("+thinking=off", {"type": "disabled"}, None),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_budget_becomes_an_effort(
    thinking: str, field: dict[str, str] | None, effort: str | None, known: bool
) -> None:
    sent = encoded(
        UserMessage("x"),
        thinking=parse_thinking(thinking.removeprefix("+")),
        options={"adaptive": known},
        unsupported=frozenset() if known else frozenset({BUDGETS}),
    )
    assert sent.get("thinking") == field
    assert sent.get("output_config") == (None if effort is None else {"effort": effort})


def test_effort() -> None:
    low = ThinkingOptions(effort="low")
    assert encoded(UserMessage("x"), thinking=low)["output_config"] == {"effort": "low"}
    # That of the agent comes before that of the model's name.
    sampling = Sampling(effort="max")
    sent = encoded(UserMessage("x"), thinking=low, sampling=sampling)
    assert sent["output_config"] == {"effort": "max"}


@pytest.mark.parametrize(("tokens", "sent"), [(None, False), (19_999, False), (65_536, True)])
def test_task_budget(tokens: int | None, sent: bool) -> None:
    options = {"task_budgets": True}
    body = encoded(UserMessage("x"), options=options, task_tokens=tokens)
    expected = {"task_budget": {"type": "tokens", "total": tokens}} if sent else None
    assert body.get("output_config") == expected
    assert "output_config" not in encoded(UserMessage("x"), task_tokens=tokens)


def test_one_hour_cache() -> None:
    talk = (SystemMessage("Be brief."), UserMessage("x"))
    hour = {"type": "ephemeral", "ttl": "1h"}
    sent = encoded(*talk, tools=TOOLS, options={"one_hour_cache": True})
    assert sent["system"][0]["cache_control"] == hour
    assert sent["tools"][-1]["cache_control"] == hour
    assert sent["messages"][0]["content"][0]["cache_control"] == hour
    unsupported = frozenset({CACHE_TTL})
    sent = encoded(*talk, tools=TOOLS, options={"one_hour_cache": True}, unsupported=unsupported)
    assert sent["tools"][-1]["cache_control"] == MARK


# Answers that must fit a schema


def test_schema_is_narrowed_for_the_api() -> None:
    sent = encoded(
        UserMessage("x"),
        thinking=ThinkingOptions(effort="max"),
        mode=OutputMode.SCHEMA,
        schema=SCHEMA,
    )
    assert sent["output_config"] == {
        "effort": "max",
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }


def test_schema_as_a_forced_tool_call() -> None:
    sent = encoded(UserMessage("x"), mode=OutputMode.TOOL, schema=SCHEMA)
    (tool,) = sent["tools"]
    assert tool["name"] == "answer"
    assert tool["input_schema"] == msgspec.json.decode(SCHEMA)
    assert sent["tool_choice"] == {"type": "tool", "name": "answer"}


def test_sampling_settings() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, seed=7, extra_body={"service_tier": "auto"})
    plain = encoded(UserMessage("Hi."))
    assert encoded(UserMessage("Hi."), sampling=sampling) == {
        **plain, "temperature": 0.5, "top_p": 0.9, "service_tier": "auto"
    }  # fmt: skip


@pytest.mark.parametrize(("on", "sent"), [(None, True), (False, True), (True, False)])
def test_temperature_is_left_out_while_the_model_thinks(on: bool | None, sent: bool) -> None:
    thinking = ThinkingOptions(on=on)
    found = encoded(UserMessage("Hi."), thinking=thinking, sampling=Sampling(temperature=0.5))
    assert ("temperature" in found) is sent


def test_images_in_messages_and_results() -> None:
    image = Image("image/png", "QUJD", 10, 20, "shot.png")
    calls = (ToolCall("c1", "read_file", "{}"), ToolCall("c2", "read_file", "{}"))
    sent = encoded(
        UserMessage("What is this?", (image,)),
        AssistantMessage("", calls),
        ToolMessage("c1", "one", False, (image,)),
        ToolMessage("c2", "two", True, (image,)),
        tools=TOOLS,
    )
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    picture = {"type": "image", "source": source}
    asked, _, answered = sent["messages"]
    assert without_marks(asked["content"]) == [text("What is this?"), picture]
    one, two = without_marks(answered["content"])
    assert one["content"] == [text("one"), picture]
    # The API takes only text in the result of a call that failed.
    told = "two\n[image shot.png (10×20 pixels) is left out: it cannot be sent here]"
    assert two["content"] == [text(told)]
