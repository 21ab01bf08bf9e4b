from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest

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
    UserMessage,
)
from retinue.domain.sampling import Sampling
from retinue.models.http.capabilities import OutputMode
from retinue.models.responses.request import OPTIONAL_FEATURES, ResponsesEncoder
from retinue.testing.model_contract import SCHEMA, SPEC

ME = "responses:m@http://h/v1"


@cache
def openai_parameters() -> tuple[Any, frozenset[str]]:
    """The parameters of the `openai` package, which takes long to import, and their names."""
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
    from pydantic import TypeAdapter

    names = frozenset(ResponseCreateParamsStreaming.__annotations__)
    return TypeAdapter[Any](ResponseCreateParamsStreaming), names


REASONING = '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x+/="}'
CALLS = (ToolCall("call_1", "read_file", '{"path":"a"}'), ToolCall("call_2", "read_file", "{}"))
ANSWERS = (ToolMessage("call_1", "one"), ToolMessage("call_2", "[ERROR] two", failed=True))
OPENING: tuple[Message, ...] = (SystemMessage("Be brief."), UserMessage("Read both."))


def encoded(*messages: Message, effort: str | None = None, **fields: Any) -> Any:
    mode = fields.pop("mode", OutputMode.PROMPT)
    unsupported = fields.pop("unsupported", frozenset())
    encoder = ResponsesEncoder("m", name=ME, effort=effort)
    body = encoder.encode(Request(messages=messages, **fields), mode, unsupported)
    sent = msgspec.json.decode(body)
    check_against_the_sdk(sent)
    return sent


def check_against_the_sdk(sent: Any) -> None:
    """Check a request against the parameter types of the `openai` package."""
    parameters, names = openai_parameters()
    checked = parameters.validate_python(sent)
    for name in ("input", "tools"):
        list(checked.get(name, ()))  # Iterables are checked when they are read.
    assert sent.keys() <= names


def thinking(*blocks: Thought) -> Thoughts:
    return Thoughts(ME, blocks)


def test_the_whole_request() -> None:
    sent = encoded(*OPENING, tools=(SPEC,), max_output_tokens=9)
    key = sent.pop("prompt_cache_key")
    assert 0 < len(key) <= 64
    assert sent == {
        "model": "m",
        "instructions": "Be brief.",
        "input": [{"type": "message", "role": "user", "content": "Read both."}],
        "tools": [
            {
                "type": "function",
                "name": "read_file",
                "description": "Read a file.",
                "parameters": msgspec.json.decode(SPEC.parameters),
                "strict": False,
            }
        ],
        "max_output_tokens": 9,
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "stream": True,
    }


def test_agents_with_the_same_instructions_share_a_cache_key() -> None:
    one, same = encoded(*OPENING), encoded(OPENING[0], UserMessage("Another task."))
    other = encoded(SystemMessage("Be verbose."), OPENING[1])
    assert one["prompt_cache_key"] == same["prompt_cache_key"] != other["prompt_cache_key"]


def test_reasoning_and_phases_go_back_as_they_came() -> None:
    text = "I read.\n\nHalf done."
    start, more = '{"type":"message","phase":"commentary"}', '{"type":"message","phase":null}'
    thoughts = thinking(
        Thought(REASONING), Thought(start), Thought(REASONING, 7, 1), Thought(more, 9, 1)
    )
    sent = encoded(*OPENING, AssistantMessage(text, CALLS, thoughts), *ANSWERS)
    assert sent["input"][1:] == [
        msgspec.json.decode(REASONING),
        {"type": "message", "role": "assistant", "content": "I read.", "phase": "commentary"},
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "read_file",
            "arguments": '{"path":"a"}',
        },
        msgspec.json.decode(REASONING),
        {"type": "message", "role": "assistant", "content": "Half done."},
        {"type": "function_call", "call_id": "call_2", "name": "read_file", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "one"},
        {"type": "function_call_output", "call_id": "call_2", "output": "[ERROR] two"},
    ]


def test_reasoning_without_a_following_item_is_left_out() -> None:
    made = AssistantMessage("", (), thinking(Thought(REASONING)))
    assert len(encoded(*OPENING, made)["input"]) == 1


def test_reasoning_of_another_model_is_left_out() -> None:
    theirs = Thoughts("openai:m@http://h/v1", (Thought('{"reasoning_content":"hm"}'),))
    sent = encoded(*OPENING, AssistantMessage("Yes.", CALLS, theirs), *ANSWERS)
    kinds = [item["type"] for item in sent["input"]]
    assert kinds == ["message", "message", *["function_call"] * 2, *["function_call_output"] * 2]


def test_broken_arguments_of_an_earlier_call() -> None:
    made = AssistantMessage("", (ToolCall("c", "read_file", '{"path": '),))
    sent = encoded(*OPENING, made, ToolMessage("c", ""))
    assert sent["input"][1]["arguments"] == '{"invalid_json":"{\\"path\\": "}'


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_effort(effort: str) -> None:
    assert encoded(*OPENING, effort=effort)["reasoning"] == {"effort": effort, "summary": "auto"}


def test_sampling() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, seed=7, extra_body={"user": "me"})
    sent = encoded(*OPENING, sampling=sampling)
    assert (sent["temperature"], sent["top_p"], sent["user"]) == (0.5, 0.9, "me")
    assert "seed" not in sent
    reasoning = encoded(*OPENING, sampling=sampling, effort="high")
    assert not {"temperature", "top_p"} & reasoning.keys()


def test_output_modes() -> None:
    held = encoded(*OPENING, schema=SCHEMA, mode=OutputMode.SCHEMA)["text"]["format"]
    assert (held["type"], held["name"], held["strict"]) == ("json_schema", "answer", True)
    assert held["schema"]["additionalProperties"] is False
    sent = encoded(*OPENING, schema=SCHEMA, mode=OutputMode.OBJECT)
    assert sent["text"] == {"format": {"type": "json_object"}}
    sent = encoded(*OPENING, schema=SCHEMA, mode=OutputMode.TOOL)
    assert sent["tool_choice"] == {"type": "function", "name": "answer"}
    assert [tool["name"] for tool in sent["tools"]] == ["answer"]


def test_everything_that_a_server_may_refuse_can_be_left_out() -> None:
    made = AssistantMessage("", CALLS, thinking(Thought(REASONING)))
    sent = encoded(
        *OPENING, made, *ANSWERS, max_output_tokens=3, unsupported=OPTIONAL_FEATURES.keys()
    )
    assert sent.keys() == {"model", "input", "max_output_tokens", "store", "stream"}
    assert sent["max_output_tokens"] == 16
    assert sent["input"][0] == {"type": "message", "role": "system", "content": "Be brief."}
    assert "reasoning" not in [item["type"] for item in sent["input"]]


def test_images_in_messages_and_results() -> None:
    image = Image("image/png", "QUJD", 10, 20, "shot.png")
    sent = encoded(
        UserMessage("What is this?", (image,)),
        AssistantMessage("", CALLS),
        ToolMessage("call_1", "one", False, (image,)),
        ANSWERS[1],
    )
    url = "data:image/png;base64,QUJD"
    picture = {"type": "input_image", "detail": "auto", "image_url": url}
    asked, _, _, one, two = sent["input"]
    assert asked["content"] == [{"type": "input_text", "text": "What is this?"}, picture]
    assert one["output"] == [{"type": "input_text", "text": "one"}, picture]
    assert two["output"] == "[ERROR] two"
