from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Reply,
    Request,
    ToolCall,
    ToolSpec,
    Usage,
    UserMessage,
)
from retinue.errors import ConfigError, ProviderError, RateLimited
from retinue.models.http.endpoint import Endpoint
from retinue.models.openai.model import OpenAIModel
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.ports.model import Model
from retinue.testing.model_contract import ModelContract
from retinue.testing.server import (
    Framing,
    ModelServer,
    Response,
    ResponseEnding,
    chunk,
    events,
    failing,
    read_request,
    streamed,
    whole,
)

HI = Request(messages=(UserMessage("Hi."),))


def model_of(server: ModelServer, **fields: Any) -> OpenAIModel:
    return OpenAIModel(Endpoint(base_url=server.base_url, model="m", **fields))


async def replied(*answers: Response | ScriptedReply, **fields: Any) -> Reply:
    """The reply to the first of these answers."""
    async with ModelServer(answers) as server, model_of(server, **fields) as model:
        return await model.reply(HI)


class TestOpenAIModel(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Model]:
        async with ModelServer(steps) as server, model_of(server) as model:
            yield model


class TestOpenAIModelWithoutStreaming(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Model]:
        async with ModelServer(map(whole, steps)) as server, model_of(server) as model:
            yield model


async def test_request_headers_and_body() -> None:
    tool = ToolSpec("now", "The time.", msgspec.Raw(b"{}"))
    request = Request(messages=(UserMessage("Hi."),), tools=(tool,), max_output_tokens=9)
    async with ModelServer([say("x")]) as server, model_of(server, api_key=" sk-1 \n") as model:
        await model.reply(request)
    (sent,) = server.requests
    assert (sent.method, sent.target) == ("POST", "/v1/chat/completions")
    assert sent.headers["authorization"] == "Bearer sk-1"
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["user-agent"].startswith("retinue/")
    assert sent.json["model"] == "m"
    assert sent.json["stream"] is True
    assert sent.json["stream_options"] == {"include_usage": True}
    assert sent.json["max_tokens"] == 9
    assert sent.json["tools"][0]["function"]["name"] == "now"


@pytest.mark.parametrize("suffix", ["", "/", "/chat/completions", "/chat/completions/"])
async def test_forms_of_the_base_url(suffix: str) -> None:
    async with ModelServer([say("x")]) as server:
        endpoint = Endpoint(base_url=server.base_url + suffix, model="m")
        async with OpenAIModel(endpoint) as model:
            await model.reply(HI)
    assert server.requests[0].target == "/v1/chat/completions"
    assert "authorization" not in server.requests[0].headers


async def test_a_query_in_the_base_url_is_kept() -> None:
    async with ModelServer([say("x")]) as server:
        endpoint = Endpoint(base_url=f"{server.base_url}?api-version=1", model="m")
        async with OpenAIModel(endpoint) as model:
            await model.reply(HI)
    assert server.requests[0].target == "/v1/chat/completions?api-version=1"


async def test_a_user_in_the_base_url_is_sent_and_not_shown() -> None:
    async with ModelServer([say("x")]) as server:
        base_url = server.base_url.replace("//", "//ann:letmein@")
        async with OpenAIModel(Endpoint(base_url=base_url, model="m")) as model:
            await model.reply(HI)
    assert server.requests[0].headers["authorization"] == "Basic YW5uOmxldG1laW4="
    assert model.name == f"openai:m@http://127.0.0.1:{server.base_url.split(':')[2]}"


def test_default_name() -> None:
    endpoint = Endpoint(base_url="http://h/v1", model="m", api_key="sk-secret")
    assert OpenAIModel(endpoint).name == "openai:m@http://h/v1"
    assert OpenAIModel(endpoint, name="local").name == "local"
    assert repr(OpenAIModel(endpoint)) == "OpenAIModel('openai:m@http://h/v1')"


@pytest.mark.parametrize(
    "base_url", ["", "127.0.0.1:8080/v1", "ftp://h/v1", "http://", "http://[x"]
)
def test_invalid_base_url(base_url: str) -> None:
    with pytest.raises(ConfigError, match=r"write it like http://127\.0\.0\.1:8080/v1"):
        OpenAIModel(Endpoint(base_url=base_url, model="m"))


def test_key_with_a_line_break() -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAIModel(
            Endpoint(base_url="http://h/v1", model="m", api_key="sk-a\nb", key_source="MY_KEY")
        )
    assert str(caught.value).startswith("The API key in MY_KEY has characters that no key has")
    assert "sk-a" not in str(caught.value)


async def test_one_connection_serves_one_reply_after_another() -> None:
    async with ModelServer([say("a"), whole(say("b")), say("c")]) as server:
        async with model_of(server) as model:
            for _ in range(3):
                await model.reply(HI)
        assert server.connections == 1


async def test_stale_connection_is_replaced() -> None:
    stale = Response(raw=b"", ending=ResponseEnding.DROP)
    async with ModelServer([say("a"), stale, say("b")]) as server, model_of(server) as model:
        assert (await model.reply(HI)).message.content == "a"
        assert (await model.reply(HI)).message.content == "b"
        assert server.connections == 2


async def test_lost_new_connection_is_an_error() -> None:
    lost = Response(raw=b"", ending=ResponseEnding.DROP)
    async with ModelServer([lost, say("b")]) as server, model_of(server) as model:
        with pytest.raises(ProviderError, match="closed the connection without an answer"):
            await model.reply(HI)
        assert len(server.requests) == 1


async def test_stale_connections_are_retried_a_few_times_only() -> None:
    lost = Response(raw=b"", ending=ResponseEnding.DROP)
    async with ModelServer([say("a"), *[lost] * 9]) as server, model_of(server) as model:
        await model.reply(HI)
        with pytest.raises(ProviderError, match="closed the connection without an answer"):
            await model.reply(HI)
        assert len(server.requests) < 9


async def test_a_body_larger_than_a_megabyte() -> None:
    request = Request(messages=(UserMessage("x" * 3_000_000),))
    async with ModelServer([say("a")]) as server, model_of(server) as model:
        await model.reply(request)
    assert len(server.requests[0].json["messages"][0]["content"]) == 3_000_000


async def test_text_is_reported_once_per_read() -> None:
    told: list[str] = []
    heard = asyncio.Event()

    def tell(text: str) -> None:
        told.append(text)
        heard.set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        writer.write(events(chunk({"content": "Some "}), chunk({"content": "words"})))
        await heard.wait()
        writer.write(events(chunk({"content": "."}), STOP, b"[DONE]"))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        async with OpenAIModel(Endpoint(base_url=f"http://{host}:{port}", model="m")) as model:
            assert (await model.reply(HI, tell)).message.content == "Some words."
    assert told == ["Some words", "."]


async def test_timing_is_measured() -> None:
    timing = (await replied(say("x"))).timing
    assert timing.first_token_s > 0
    assert timing.generating_s > 0


TEXT = {"content": "Grüße 🪶"}
STOP = chunk({}, finish_reason="stop")
EXPECTED = "Grüße 🪶"


@pytest.mark.parametrize(
    "body",
    [
        events(chunk(TEXT), STOP, b"[DONE]"),
        events(chunk(TEXT), STOP, b"[DONE]").replace(b"\n", b"\r\n"),
        events(chunk(TEXT), STOP, b"[DONE]").replace(b"data: ", b"data:"),
        events(chunk(TEXT), STOP),
        events(chunk(TEXT), b"[DONE]"),
        events(chunk(TEXT), STOP).rstrip(b"\n"),
        b"\xef\xbb\xbf" + events(chunk(TEXT), STOP),
        b"\n\n" + events(chunk(TEXT), STOP),
        b": ping\n\n" + events(chunk(TEXT), STOP) + b": ping\n\n",
        b"event: message\n" + events(chunk(TEXT), STOP),
        events(chunk(TEXT), STOP).replace(b",", b",\ndata: "),
        events(chunk(TEXT), STOP, b"[DONE]").replace(b"\n\n", b"\n"),
        events(chunk(TEXT), STOP, b"[DONE]", b"rubbish"),
        events(chunk({"role": "assistant"}), chunk(TEXT), STOP),
        events(chunk({"reasoning_content": "hm"}), chunk({"reasoning": "hm"}), chunk(TEXT), STOP),
        events({"choices": [], "prompt_filter_results": []}, chunk(TEXT), STOP),
        events({"choices": [{"message": TEXT, "finish_reason": "stop"}]}),
        events(chunk(TEXT), {"choices": None, "usage": {"prompt_tokens": 1}}),
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
    body = streamed(call("read_file", path="ä")).body
    response = Response(body=body, cuts=tuple(range(len(body))))
    reply = await replied(response)
    assert reply.message.calls == (ToolCall("call_0", "read_file", '{"path":"ä"}'),)


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", "text/plain"])
async def test_a_body_that_is_not_streamed(content_type: str) -> None:
    response = msgspec.structs.replace(
        whole(say("Hi.").using(5, 2)), headers={"content-type": content_type}
    )
    reply = await replied(response)
    assert reply.message.content == "Hi."
    assert reply.usage == Usage(5, 0, 2)


async def test_lone_surrogate_in_a_chunk_is_replaced() -> None:
    halves = [rb"\ud83e", rb"\udeb6"]
    text = [b'{"choices":[{"delta":{"content":"%b"}}]}' % half for half in halves]
    first = b'{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":'
    arguments = [
        first + rb'{"name":"write_file","arguments":"{\"text\":\"' + halves[0] + b'"}}]}}]}',
        first + rb'{"arguments":"' + halves[1] + rb'\"}"}}]},"logprobs":NaN}]}',
    ]
    reply = await replied(Response(body=events(*text, *arguments, STOP)))
    assert reply.message.content == "??"
    (made,) = reply.message.calls
    assert msgspec.json.decode(made.arguments) == {"text": "🪶"}


async def test_nan_in_a_body_that_is_not_streamed() -> None:
    body = b'{"choices":[{"message":{"content":"Hi."},"logprobs":NaN,"finish_reason":"stop"}]}'
    assert (await replied(Response(body=body))).message == AssistantMessage("Hi.")


async def test_a_server_that_never_ends_the_body_after_done() -> None:
    response = Response(body=events(chunk(TEXT), STOP, b"[DONE]"), ending=ResponseEnding.HANG)
    assert (await replied(response)).message.content == EXPECTED


async def test_done_ends_the_wait() -> None:
    response = Response(body=events(chunk(TEXT), STOP, b"[DONE]"), ending=ResponseEnding.HANG)
    async with ModelServer([response]) as server:
        # Over before the end of the body is given up.
        endpoint = Endpoint(base_url=server.base_url, model="m", first_byte_timeout_s=0.2)
        async with OpenAIModel(endpoint) as model:
            assert (await model.reply(HI)).message.content == EXPECTED


async def test_a_connection_cut_after_the_finish_is_a_whole_reply() -> None:
    response = Response(body=events(chunk(TEXT), STOP), ending=ResponseEnding.DROP)
    assert (await replied(response)).message.content == EXPECTED


async def test_length_limit_while_thinking_gives_a_reply() -> None:
    body = events(chunk({"reasoning_content": "hm"}), chunk({}, finish_reason="length"))
    reply = await replied(Response(body=body))
    assert (reply.message, reply.finish) == (AssistantMessage(""), Finish.LENGTH)


@pytest.mark.parametrize(
    "response",
    [
        Response(raw=b"", ending=ResponseEnding.HANG),
        Response(ending=ResponseEnding.HANG),
        Response(body=events(chunk(TEXT)), ending=ResponseEnding.HANG),
    ],
)
async def test_cancelling_closes_the_connection(response: Response) -> None:
    told = asyncio.Event()
    async with ModelServer([response, say("still here")]) as server, model_of(server) as model:
        task = asyncio.create_task(model.reply(HI, lambda _: told.set()))
        await (told.wait() if response.body else server.received())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.hung_up()
        assert (await model.reply(HI)).message.content == "still here"


async def test_more_requests_than_connections() -> None:
    async with ModelServer(lambda _: say("x")) as server:
        async with model_of(server, max_connections=2) as model:
            await asyncio.gather(*(model.reply(HI) for _ in range(20)))
        assert server.connections == 2


async def test_error_in_on_text_is_raised() -> None:
    def explode(_: str) -> None:
        raise KeyError

    async with ModelServer([say("x"), say("y")]) as server, model_of(server) as model:
        with pytest.raises(KeyError):
            await model.reply(HI, explode)
        assert (await model.reply(HI)).message.content == "y"


async def test_closed_model_raises() -> None:
    async with ModelServer([say("x")]) as server:
        model = model_of(server)
        await model.aclose()
        with pytest.raises(ProviderError, match="was closed before this call"):
            await model.reply(HI)


def test_closed_client_in_another_loop() -> None:
    async def first() -> OpenAIModel:
        async with ModelServer([say("a")]) as server, model_of(server) as model:
            await model.reply(HI)
            return model

    model = asyncio.run(first())
    with pytest.raises(ProviderError, match="was closed before this call"):
        asyncio.run(model.reply(HI))


async def test_headers_of_every_response_are_reported() -> None:
    heads: list[tuple[int, str | None]] = []
    answers = [
        failing(429, "Slow down.", headers={"X-Left": "0"}),
        Response(headers={"x-left": "9"}, body=streamed(say("Hi.")).body),
    ]
    async with ModelServer(answers) as server:
        endpoint = Endpoint(base_url=server.base_url, model="m")
        model = OpenAIModel(
            endpoint,
            on_headers=lambda status, headers: heads.append((status, headers.get("X-LEFT"))),
        )
        async with model:
            with pytest.raises(RateLimited):
                await model.reply(HI)
            await model.reply(HI)
    assert heads == [(429, "0"), (200, "9")]


async def test_streamed_call_is_a_sign_of_life() -> None:
    heard: list[str] = []
    async with ModelServer([call("read_file", path="a.txt")]) as server, model_of(server) as model:
        await model.reply(HI, heard.append)
    assert heard
    assert set(heard) == {""}
