"""What a server can do: found out by asking, at no loss, and not asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Request,
    Thought,
    Thoughts,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from retinue.domain.sampling import Sampling
from retinue.domain.thinking import ThinkingOptions
from retinue.errors import ProviderError, RequestRefused
from retinue.models.anthropic.model import AnthropicModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.openai.model import OpenAIModel
from retinue.models.responses.model import ResponsesModel
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.testing import anthropic_format as messages
from retinue.testing.server import (
    ModelServer,
    Received,
    Response,
    as_json,
    chunk,
    events,
    failing,
)

SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
OTHER = '{"type":"object","properties":{"b":{"type":"string"}},"required":["b"]}'
LIST = '{"type":"array","items":{"type":"integer"}}'
GOOD = '{"a": 1}'
TOOL = ToolSpec("read_file", "Read.", msgspec.Raw(b'{"type":"object"}'))
Client = type[OpenAIModel] | type[AnthropicModel]


def asked(schema: str | None = SCHEMA, **fields: Any) -> Request:
    return Request(messages=(UserMessage("Hi."),), schema=schema, **fields)


def form_of(request: Received) -> str:
    """How the request wants its answer held to a schema, in one word."""
    body = request.json
    if "response_format" in body:
        return str(body["response_format"]["type"])
    if "format" in body.get("output_config", {}):
        return "format"
    return "tool" if isinstance(body.get("tool_choice"), dict) else "words"


class Picky:
    """A server that takes only some forms. It answers by the tool if that is the form."""

    def __init__(self, *taken: str, text: str = GOOD) -> None:
        self._taken = taken
        self._text = text
        self.seen: list[str] = []

    def __call__(self, request: Received) -> ScriptedReply | Response:
        mode = form_of(request)
        self.seen.append(mode)
        if mode not in self._taken:
            return failing(400, "Extra inputs are not permitted")
        if mode != "tool":
            return say(self._text)
        return msgspec.structs.replace(call("answer"), calls=call("answer", a=1).calls)


def of(serving: ModelServer, client: Client = OpenAIModel) -> OpenAIModel | AnthropicModel:
    return client(Endpoint(base_url=serving.base_url, model="m"))


async def answers(
    server: Callable[[Received], ScriptedReply | Response], client: Client, *requests: Request
) -> list[AssistantMessage]:
    async with ModelServer(server) as serving, of(serving, client) as model:
        return [(await model.reply(request)).message for request in requests]


@pytest.mark.parametrize(
    ("client", "taken", "seen"),
    [
        (OpenAIModel, "json_schema", ["json_schema", "json_schema"]),
        (OpenAIModel, "json_object", ["json_schema", "json_object", "json_object"]),
        (OpenAIModel, "tool", ["json_schema", "json_object", "tool", "tool"]),
        (OpenAIModel, "words", ["json_schema", "json_object", "tool", "words", "words"]),
        (AnthropicModel, "format", ["format", "format"]),
        (AnthropicModel, "tool", ["format", "tool", "tool"]),
        (AnthropicModel, "words", ["format", "tool", "words", "words"]),
    ],
)
async def test_best_supported_mode_is_learned_once(
    client: Client, taken: str, seen: list[str]
) -> None:
    server = Picky(taken, "words")
    made = await answers(server, client, asked(), asked())
    assert [msgspec.json.decode(message.content) for message in made] == [{"a": 1}, {"a": 1}]
    assert not any(message.calls for message in made)
    assert server.seen == seen


async def test_concurrent_requests_learn_together() -> None:
    server = Picky("words")
    async with ModelServer(server) as serving, of(serving) as model:
        replies = await asyncio.gather(*(model.reply(asked()) for _ in range(9)))
        await model.reply(asked())
    assert all(reply.message.content == GOOD for reply in replies)
    assert server.seen.count("words") == 10
    assert server.seen[-1] == "words"


@pytest.mark.parametrize("client", [OpenAIModel, AnthropicModel])
async def test_mode_is_kept_if_every_mode_is_refused(client: Client) -> None:
    """A request that is refused in every form has another fault: the first refusal is told."""
    bad = failing(400, "The first.")
    server = [bad, failing(400, "b"), failing(400, "c"), failing(400, "d")]
    rungs = 4 if client is OpenAIModel else 3
    async with ModelServer([*server[:rungs], say(GOOD)]) as serving, of(serving, client) as model:
        with pytest.raises(RequestRefused, match=r"The first\."):
            await model.reply(asked())
        await model.reply(asked())
    assert form_of(serving.requests[-1]) in ("json_schema", "format")


async def test_other_errors_do_not_change_the_mode() -> None:
    async with ModelServer([failing(500, "down"), say(GOOD)]) as serving, of(serving) as model:
        with pytest.raises(ProviderError, match="down"):
            await model.reply(asked())
        await model.reply(asked())
    assert form_of(serving.requests[1]) == "json_schema"


async def test_no_retry_after_streamed_text() -> None:
    told: list[str] = []
    refusal = {"error": {"message": "No.", "type": "invalid_request_error"}}
    broken = Response(body=events(chunk({"content": "Hel"}), refusal))
    async with ModelServer([broken]) as serving, of(serving) as model:
        with pytest.raises(RequestRefused, match=r"No\."):
            await model.reply(asked(), told.append)
    assert (told, len(serving.requests)) == (["Hel"], 1)


async def test_refused_schema_does_not_affect_other_schemas() -> None:
    def server(request: Received) -> ScriptedReply | Response:
        seen.append(form_of(request))
        if seen[-1] == "json_schema" and b'"b"' in request.body:
            return failing(400, "The schema is too complex.")
        return say(GOOD)

    seen: list[str] = []
    await answers(server, OpenAIModel, asked(), asked(OTHER), asked(OTHER), asked())
    assert seen == ["json_schema", "json_schema", "json_object", "json_object", "json_schema"]


@pytest.mark.parametrize(
    ("client", "seen"),
    [
        (OpenAIModel, ["json_schema", "json_object", "tool", "words"]),
        (AnthropicModel, ["format", "tool", "words", "words"]),
    ],
)
async def test_ignored_mode_is_not_used_again(client: Client, seen: list[str]) -> None:
    """llama.cpp takes `output_config` on /v1/messages and does nothing about it."""

    def server(request: Received) -> ScriptedReply:
        found.append(form_of(request))
        return say("Surely: it is 1.")

    found: list[str] = []
    made = await answers(server, client, *[asked()] * 4)
    assert made == [AssistantMessage("Surely: it is 1.")] * 4
    assert found == seen


async def test_truncated_answer_does_not_change_the_mode() -> None:
    steps = [say('{"a": ', finish=Finish.LENGTH), say(f"<think>hm</think>{GOOD}"), say(GOOD)]
    async with ModelServer(steps) as serving, of(serving) as model:
        for _ in steps:
            await model.reply(asked())
    assert {form_of(request) for request in serving.requests} == {"json_schema"}


async def test_list_schema_is_not_sent_as_object_mode() -> None:
    server = Picky("words", text="[1]")
    await answers(server, OpenAIModel, asked(LIST))
    assert server.seen == ["json_schema", "words"]


@pytest.mark.parametrize("client", [OpenAIModel, AnthropicModel])
async def test_no_schema_mode_with_tools(client: Client) -> None:
    """Most servers would then never let it call one."""
    server = Picky("words")
    await answers(server, client, asked(tools=(TOOL,)))
    assert server.seen == ["words"]


async def test_body_for_a_schema() -> None:
    async with ModelServer([say(GOOD), say("{}")]) as serving, of(serving) as model:
        await model.reply(asked())
        await model.reply(asked('{"type":"object","properties":{"a":{"minimum":1}}}'))
    strict, loose = (request.json["response_format"] for request in serving.requests)
    shut = {**msgspec.json.decode(SCHEMA), "additionalProperties": False}
    assert strict == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": shut, "strict": True},
    }
    assert loose["json_schema"]["strict"] is False
    assert loose["json_schema"]["schema"]["properties"] == {"a": {"minimum": 1}}


async def test_answer_tool() -> None:
    server = Picky("tool")
    async with ModelServer(server) as serving, of(serving) as model:
        reply = await model.reply(asked())
    assert reply.message == AssistantMessage('{"a":1}')
    assert reply.finish is Finish.STOP
    body = serving.requests[-1].json
    assert body["tool_choice"] == {"type": "function", "function": {"name": "answer"}}
    assert body["tools"][0]["function"]["parameters"] == msgspec.json.decode(SCHEMA)


# Things that a request can do without


def refusing(words: str, message: str) -> Callable[[Received], ScriptedReply | Response]:
    """A server that complains as long as something is in the body."""
    return lambda request: failing(400, message) if words.encode() in request.body else say("ok")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            '"max_tokens"',
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
        ),
        ('"stream_options"', "Unrecognized request argument supplied: stream_options"),
    ],
)
async def test_field_refused_by_name_is_left_out_afterwards(words: str, message: str) -> None:
    async with ModelServer(refusing(words, message)) as serving, of(serving) as model:
        for _ in range(2):
            await model.reply(asked(None, max_output_tokens=9))
    assert len(serving.requests) == 3
    last = serving.requests[-1].json
    assert words.strip('"') not in last
    assert 9 in (last.get("max_tokens"), last.get("max_completion_tokens"))


async def test_refusal_is_raised_if_leaving_out_does_not_help() -> None:
    message = "Use 'max_completion_tokens' instead, and no stream_options."
    async with ModelServer(lambda _: failing(400, message)) as serving, of(serving) as model:
        with pytest.raises(RequestRefused, match="instead, and no"):
            await model.reply(asked(None))
    assert len(serving.requests) == 3


async def test_field_named_by_fastapi() -> None:
    detail = [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs"}]

    def server(request: Received) -> ScriptedReply | Response:
        if b"stream_options" in request.body:
            return as_json({"detail": detail}, status=422)
        return say("ok")

    assert await answers(server, OpenAIModel, asked(None)) == [AssistantMessage("ok")]


JINJA = (
    "\n------------\nWhile executing CallExpression at line 189, column 32 in source:\n"
    "...== 0) %}↵            {{- raise_exception('After the optional system message, con...\n"
    "      ^\nError: Jinja Exception: "
)
ALTERNATE = (
    "After the optional system message, conversation roles must alternate user and assistant"
    " roles except for tool calls and results."
)
NINE = "Tool call IDs should be alphanumeric strings with length 9!"
CALLED = AssistantMessage("", (ToolCall("call_0", "read_file", "{}"),))


def mistral(request: Received) -> ScriptedReply | Response:
    """As the chat template of Mistral's models has it, in llama.cpp."""
    spoken = 0
    for message in request.json["messages"]:
        ids = [message["tool_call_id"]] if message["role"] == "tool" else []
        ids += [call["id"] for call in message.get("tool_calls", ())]
        if any(len(each) != 9 or not each.isalnum() for each in ids):
            return failing(500, JINJA + NINE, kind="server_error", code=500)
        if not ids:
            if (message["role"] == "user") != (spoken % 2 == 0):
                return failing(500, JINJA + ALTERNATE, kind="server_error", code=500)
            spoken += 1
    return say("ok")


async def test_strict_roles_and_short_ids_on_refusal() -> None:
    talk = (
        UserMessage("Hi."),
        UserMessage("Look."),
        CALLED,
        ToolMessage("call_0", "x"),
        UserMessage("Last turn."),
    )
    request = Request(messages=talk)
    async with ModelServer(mistral) as serving, of(serving) as model:
        assert (await model.reply(request)).message == AssistantMessage("ok")
        tries = len(serving.requests)
        await model.reply(request)
    assert len(serving.requests) == tries + 1
    told = serving.requests[-1].json["messages"]
    assert [(one["role"], one["content"]) for one in told] == [
        ("user", "Hi.\n\nLook."),
        ("assistant", None),
        ("tool", "x"),
        ("assistant", "I see."),
        ("user", "Last turn."),
    ]
    assert told[1]["tool_calls"][0]["id"] == told[2]["tool_call_id"]


@pytest.mark.parametrize(
    "message",
    [
        "Unexpected role 'user' after role 'tool'",
        "Tool call id was call_0 but must be a-z, A-Z, 0-9, with a length of 9.",
    ],
)
async def test_refusals_of_mistrals_api(message: str) -> None:
    answers: list[Response | ScriptedReply] = [failing(400, message), say("ok")]
    async with ModelServer(answers) as serving, of(serving) as model:
        talk = (UserMessage("Hi."), CALLED, ToolMessage("call_0", "x"), UserMessage("And?"))
        assert (await model.reply(Request(messages=talk))).message == AssistantMessage("ok")
    first, second = [request.json["messages"] for request in serving.requests]
    assert first != second


async def test_other_template_refusals_are_raised_at_once() -> None:
    answers = [failing(500, JINJA + "No tools, please.", code=500)]
    async with ModelServer(answers) as serving, of(serving) as model:
        with pytest.raises(RequestRefused, match="No tools, please"):
            await model.reply(asked(None))


def thinking_of(name: str, field: str = "reasoning_content") -> AssistantMessage:
    block = msgspec.json.encode({field: "Hm."}).decode()
    calls = (ToolCall("c", "read_file", "{}"),)
    return AssistantMessage("", calls, Thoughts(name, (Thought(block),)))


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_sent_back_in_its_field(field: str) -> None:
    delta = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "x", "arguments": "{}"}}]}
    stop = chunk({}, finish_reason="tool_calls")
    body = events(chunk({field: "H"}), chunk({field: "m."}), chunk(delta), stop, b"[DONE]")
    async with ModelServer([Response(body=body), say("ok")]) as serving, of(serving) as model:
        first = (await model.reply(asked(None))).message
        await model.reply(Request(messages=(UserMessage("Hi."), first, ToolMessage("c", "x"))))
    assert first.thoughts == thinking_of(model.name, field).thoughts
    sent = serving.requests[1].json["messages"][1]
    assert sent[field] == "Hm."
    assert len({"reasoning_content", "reasoning"} & sent.keys()) == 1


async def test_refused_reasoning_is_left_out() -> None:
    message = "'messages.1' : property 'reasoning_content' is unsupported"
    async with ModelServer(refusing("reasoning_content", message)) as serving, of(serving) as model:
        talk = (UserMessage("Hi."), thinking_of(model.name), ToolMessage("c", "x"))
        for _ in range(2):
            await model.reply(Request(messages=talk))
    assert len(serving.requests) == 3


async def test_required_reasoning_is_filled() -> None:
    """DeepSeek wants a thought with every call, also with those of another model."""

    def server(request: Received) -> ScriptedReply | Response:
        calls = request.json["messages"][1:]
        if all("reasoning_content" in one for one in calls if one["role"] == "assistant"):
            return say("ok")
        told = "The `reasoning_content` in the thinking mode must be passed back to the API."
        return failing(400, told, kind="invalid_request_error")

    async with ModelServer(server) as serving, of(serving) as model:
        bare = msgspec.structs.replace(thinking_of("another"), thoughts=None)
        talk = (UserMessage("Hi."), thinking_of("another"), bare, thinking_of(model.name))
        await model.reply(Request(messages=talk))
    sent = [one.get("reasoning_content") for one in serving.requests[-1].json["messages"]]
    assert sent == [None, " ", " ", "Hm."]
    assert len(serving.requests) == 2


@pytest.mark.parametrize(
    ("words", "message", "thinking"),
    [
        ("cache_control", "tools.0.cache_control: Extra inputs are not permitted", None),
        ("adaptive", "adaptive thinking is not supported on this model", ThinkingOptions(on=True)),
        ('"max_tokens":32000', "max_tokens: 32000 > 8192, which is the maximum allowed", None),
        (
            '"effort"',
            "output_config.effort: Extra inputs are not permitted",
            ThinkingOptions(effort="low"),
        ),
    ],
)
async def test_features_refused_by_an_anthropic_server_are_left_out(
    words: str, message: str, thinking: ThinkingOptions | None
) -> None:
    def server(request: Received) -> ScriptedReply | Response:
        if words.encode() in request.body:
            return as_json(messages.error(message, kind="invalid_request_error"), status=400)
        return say("ok")

    async with ModelServer(server) as serving:
        endpoint = Endpoint(base_url=serving.base_url, model="m")
        async with AnthropicModel(endpoint, thinking=thinking) as model:
            for _ in range(2):
                await model.reply(asked(None, tools=(TOOL,)))
    assert len(serving.requests) == 3
    if thinking is not None and thinking.on:
        assert serving.requests[-1].json["thinking"] == {"type": "enabled", "budget_tokens": 16_000}


@pytest.mark.parametrize(
    "told",
    [
        "max_tokens is missing",
        "stream_options: Field required",
        "`temperature` is required for this model",
        "The reasoning must be included with each call.",
    ],
)
async def test_what_a_server_misses_is_never_left_out(told: str) -> None:
    sampling = Sampling(temperature=0.5)
    async with ModelServer([failing(400, told), say("ok")]) as serving, of(serving) as model:
        talk = (UserMessage("Hi."), thinking_of(model.name), ToolMessage("c", "x"))
        request = Request(messages=talk, max_output_tokens=99, sampling=sampling)
        with pytest.raises(RequestRefused):
            await model.reply(request)
        await model.reply(request)
    first, second = (sent.json for sent in serving.requests)
    assert first == second


async def test_what_did_not_help_is_not_left_out_of_the_next_request() -> None:
    """Temperature is refused, and so is the request without it: it was not the reason."""
    sampling = Sampling(temperature=0.5)
    refusals = [failing(400, "Bad temperature."), failing(400, "Bad moon.")]
    async with ModelServer([*refusals, say("ok")]) as serving, of(serving) as model:
        request = Request(messages=(UserMessage("Hi."),), sampling=sampling)
        with pytest.raises(RequestRefused, match="Bad moon"):
            await model.reply(request)
        await model.reply(request)
    assert ["temperature" in sent.json for sent in serving.requests] == [True, False, True]


async def test_reasoning_that_one_conversation_cannot_use_is_sent_in_others() -> None:
    told = "The encrypted content for item rs_1 could not be verified."
    block = '{"type":"reasoning","id":"rs_0","summary":[],"encrypted_content":"spoiled"}'
    async with ModelServer([failing(400, told), *[say("ok")] * 3]) as serving:
        model = ResponsesModel(Endpoint(base_url=serving.base_url, model="m"))
        calls = (ToolCall("c", "read_file", "{}"),)
        owner = f"responses:m@{serving.base_url}"
        spoiled = AssistantMessage("", calls, Thoughts(owner, (Thought(block),)))
        talk = (UserMessage("Hi."), spoiled, ToolMessage("c", "x"))
        await model.reply(Request(messages=talk))
        # The test server itself refuses it the second time.
        await model.reply(Request(messages=talk))
        await model.aclose()
    sent = [[item["type"] for item in one.json["input"]] for one in serving.requests]
    assert ["reasoning" in kinds for kinds in sent] == [True, False, True, False]


async def test_model_without_thinking_budgets_gets_an_effort() -> None:
    """As Claude 4.7 and later models answer."""
    told = (
        '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and'
        ' "output_config.effort" to control thinking behavior.'
    )

    def server(request: Received) -> ScriptedReply | Response:
        if request.json["thinking"]["type"] == "enabled":
            return as_json(messages.error(told, kind="invalid_request_error"), status=400)
        return say("ok")

    async with ModelServer(server) as serving:
        endpoint = Endpoint(base_url=serving.base_url, model="claude-opus-4-7")
        thinking = ThinkingOptions(on=True, budget_tokens=8_000)
        async with AnthropicModel(endpoint, thinking=thinking) as model:
            for _ in range(2):
                await model.reply(asked(None, tools=(TOOL,)))
    assert len(serving.requests) == 3
    sent = serving.requests[-1]
    assert sent.json["thinking"] == {"type": "adaptive"}
    assert sent.json["output_config"] == {"effort": "medium"}
    assert "task-budgets-2026-03-13" in sent.headers["anthropic-beta"]


@pytest.mark.parametrize("can_disable", [True, False])
async def test_forced_tool_of_a_model_that_thinks_by_default(can_disable: bool) -> None:
    """As Claude 5 answers, which can be told not to think, and Claude Opus 5.5, which cannot."""

    def refused(request: dict[str, Any]) -> str:
        disabled = request.get("thinking") == {"type": "disabled"}
        if "format" in request.get("output_config", {}):
            return "output_config.format: Extra inputs are not permitted"
        if disabled and not can_disable:
            return '"thinking.type.disabled" is not supported for this model.'
        forced = request.get("tool_choice", {}).get("type") == "tool"
        if forced and not disabled:
            return "Thinking may not be enabled when tool_choice forces tool use."
        return ""

    def server(request: Received) -> ScriptedReply | Response:
        if told := refused(request.json):
            return as_json(messages.error(told, kind="invalid_request_error"), status=400)
        return call("answer", a=1) if "tool_choice" in request.json else say(GOOD)

    async with ModelServer(server) as serving:
        endpoint = Endpoint(base_url=serving.base_url, model="claude-sonnet-5")
        async with AnthropicModel(endpoint) as model:
            for _ in range(2):
                reply = await model.reply(asked())
                assert msgspec.json.decode(reply.message.content) == {"a": 1}
    # What was learned is not asked again.
    assert not refused(serving.requests[-1].json)
    assert sum(bool(refused(one.json)) for one in serving.requests) == (2 if can_disable else 4)


@pytest.mark.parametrize(
    ("told", "accepted"),
    [
        ("Unrecognized request argument supplied: reasoning_effort", True),
        ("reasoning_effort: Extra inputs are not permitted", True),
        ("Unsupported parameter: 'reasoning_effort' is not supported with this model.", True),
        # A value that is refused is for the user to change.
        ("Unsupported value: 'reasoning_effort' does not support 'max' with this model.", False),
    ],
)
async def test_effort_that_a_chat_server_does_not_have(told: str, accepted: bool) -> None:
    def server(request: Received) -> ScriptedReply | Response:
        refused = "reasoning_effort" in request.json
        return failing(400, told, kind="invalid_request_error") if refused else say("ok")

    async with ModelServer(server) as serving:
        endpoint = Endpoint(base_url=serving.base_url, model="m")
        async with OpenAIModel(endpoint, effort="max") as model:
            if accepted:
                await model.reply(asked(None))
                await model.reply(asked(None))
                assert len(serving.requests) == 3
            else:
                with pytest.raises(RequestRefused, match="does not support 'max'"):
                    await model.reply(asked(None))
