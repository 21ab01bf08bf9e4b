from __future__ import annotations

from typing import Any

import msgspec
import pytest

from retinue.domain.images import Image
from retinue.domain.messages import (
    AssistantMessage,
    Message,
    Request,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from retinue.domain.sampling import Sampling
from retinue.models.http.images import IMAGES
from retinue.models.openai.request import CONSECUTIVE_ROLES, ChatEncoder


def encoded(*messages: Message, **fields: Any) -> dict[str, Any]:
    body = ChatEncoder("m").encode(Request(messages=messages, **fields))
    value: dict[str, Any] = msgspec.json.decode(body)
    return value


def test_the_whole_body() -> None:
    schema = msgspec.Raw(b'{"type": "object"}')
    assert encoded(
        SystemMessage("Be brief."),
        UserMessage("Hi."),
        AssistantMessage("", (ToolCall("c1", "read_file", '{"path": "a"}'),)),
        ToolMessage("c1", "text"),
        AssistantMessage("Done."),
        tools=(ToolSpec("read_file", "Read.", schema),),
        max_output_tokens=50,
    ) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "read_file", "arguments": '{"path": "a"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "text"},
            {"role": "assistant", "content": "Done."},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "read_file",
                    "description": "Read.",
                    "parameters": {"type": "object"},
                },
            }
        ],
        "max_tokens": 50,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_unset_fields_are_not_sent() -> None:
    assert encoded(UserMessage("Hi.")).keys() == {"model", "messages", "stream", "stream_options"}


def test_empty_assistant_message_has_content() -> None:
    assert encoded(AssistantMessage(""))["messages"] == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ("", "{}"),
        (" ", "{}"),
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": ', '{"invalid_json":"{\\"a\\": "}'),
        ("[1]", '{"invalid_json":"[1]"}'),
    ],
)
def test_broken_arguments_are_sent_as_an_object(arguments: str, sent: str) -> None:
    (message,) = encoded(AssistantMessage("", (ToolCall("c", "x", arguments),)))["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == sent


def test_lone_surrogate_is_replaced() -> None:
    call = ToolCall("c", "x", '{"a": "\udc80"}')
    messages = encoded(
        UserMessage("a\ud800b"), AssistantMessage("", (call,)), ToolMessage("c", "\udcff")
    )
    assert messages["messages"][0]["content"] == "a?b"
    assert messages["messages"][2]["content"] == "?"


def test_tools_are_the_same_bytes_in_every_request() -> None:
    encoder = ChatEncoder("m")
    many = [
        (ToolSpec(f"tool_{n}", "Does.", msgspec.Raw(b'{"type":"object"}')),) for n in range(200)
    ]
    first = [encoder.encode(Request(messages=(), tools=tools)) for tools in many]
    again = [encoder.encode(Request(messages=(), tools=tools)) for tools in many]
    assert first == again
    assert len(set(first)) == len(many)


def test_sampling_settings() -> None:
    sampling = Sampling(temperature=0.0, top_p=0.9, seed=7, extra_body={"min_p": 0.1})
    plain = encoded(UserMessage("Hi."))
    assert encoded(UserMessage("Hi."), sampling=sampling) == {
        **plain, "temperature": 0.0, "top_p": 0.9, "seed": 7, "min_p": 0.1
    }  # fmt: skip


def test_sampling_settings_that_the_server_refuses_are_left_out() -> None:
    request = Request(messages=(UserMessage("Hi."),), sampling=Sampling(temperature=0.5, seed=7))
    body = ChatEncoder("m").encode(request, unsupported={"temperature"})
    found = msgspec.json.decode(body)
    assert ("temperature" in found, found["seed"]) == (False, 7)


def test_extra_body_replaces_other_fields() -> None:
    extra = Sampling(extra_body={"response_format": {"type": "text"}})
    assert encoded(UserMessage("\ud800"), sampling=extra)["response_format"] == {"type": "text"}


IMAGE = Image("image/png", "QUJD", 10, 20, "shot.png")
SEEN = (
    UserMessage("What is this?", (IMAGE,)),
    AssistantMessage("", (ToolCall("c1", "read_file", "{}"), ToolCall("c2", "read_file", "{}"))),
    ToolMessage("c1", "one", False, (IMAGE,)),
    ToolMessage("c2", "two"),
)
URL = "data:image/png;base64,QUJD"


def test_images_of_results_come_after_all_results() -> None:
    picture = {"type": "image_url", "image_url": {"url": URL}}
    asked, _, one, two, shown, said = encoded(*SEEN, AssistantMessage("A heron."))["messages"]
    assert asked["content"] == [{"type": "text", "text": "What is this?"}, picture]
    assert (one["content"], two["content"]) == ("one", "two")
    assert shown == {
        "role": "user",
        "content": [
            {"type": "text", "text": "Images of the results above, in their order:"},
            picture,
        ],
    }
    assert said["role"] == "assistant"
    assert encoded(*SEEN)["messages"][-1] == shown


def test_images_stay_where_user_messages_are_joined() -> None:
    body = ChatEncoder("m").encode(
        Request(messages=(*SEEN, UserMessage("Go on."))), unsupported={CONSECUTIVE_ROLES}
    )
    last = msgspec.json.decode(body)["messages"][-1]
    assert last["content"][0]["text"].endswith("\n\nGo on.")
    assert last["content"][1]["image_url"]["url"] == URL


def test_a_model_that_cannot_see_is_told_what_is_missing() -> None:
    body = ChatEncoder("m").encode(Request(messages=SEEN), unsupported={IMAGES})
    asked, _, one, two = msgspec.json.decode(body)["messages"]
    told = "[image shot.png (10×20 pixels) is left out: you cannot see images]"
    assert asked["content"] == f"What is this?\n{told}"
    assert (one["content"], two["content"]) == (f"one\n{told}", "two")
