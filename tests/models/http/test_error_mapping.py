"""Every way a call can fail: what is raised, what it says, and that it never shows the key."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import traceback
from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from retinue.domain.messages import Request, UserMessage
from retinue.errors import (
    ContextOverflow,
    EmptyReply,
    EndpointUnusable,
    ModelError,
    ModelTimeout,
    Overloaded,
    ProviderError,
    RateLimited,
    RequestRefused,
    UnknownModel,
)
from retinue.models.anthropic.model import AnthropicModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.error_mapping import parse_error
from retinue.models.http.sse import MAX_LINE_BYTES
from retinue.models.openai.model import OpenAIModel
from retinue.testing import anthropic_format as messages
from retinue.testing.server import (
    Framing,
    ModelServer,
    Response,
    ResponseEnding,
    chunk,
    events,
    failing,
)
from tests.models.proxy import ForwardingProxy

DEEP = b"[" * 100_000 + b"]" * 100_000
KEY = "sk-very-secret-0123456789"
HI = Request(messages=(UserMessage("Hi."),))
TEXT = chunk({"content": "Hel"})
STOP = chunk({}, finish_reason="stop")


def page(text: str, status: int = 200) -> Response:
    return Response(status=status, headers={"content-type": "text/html"}, body=text.encode())


def plain(text: str, status: int = 200) -> Response:
    return Response(status=status, headers={"content-type": "text/plain"}, body=text.encode())


def json(value: Any, status: int = 200) -> Response:
    return Response(
        status=status,
        headers={"content-type": "application/json"},
        body=msgspec.json.encode(value),
        framing=Framing.LENGTH,
    )


def stream(*payloads: Any, ending: ResponseEnding = ResponseEnding.PROPER) -> Response:
    return Response(body=events(*payloads), ending=ending)


Client = type[OpenAIModel] | type[AnthropicModel]


async def failure(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture, client: Client = OpenAIModel
) -> ModelError:
    """The error of one call, after looking everywhere for the key."""
    model = client(endpoint)
    with caplog.at_level(logging.DEBUG):
        try:
            with pytest.raises(ModelError) as caught:
                await model.reply(HI)
        finally:
            await model.aclose()
    error = caught.value
    assert error.__context__ is None
    assert error.__cause__ is None
    shown = "".join(
        traceback.TracebackException.from_exception(error, capture_locals=True).format()
    )
    for text in (str(error), repr(error), repr(vars(error)), caplog.text, repr(model)):
        assert KEY not in text
        assert KEY[:20] not in text
    assert KEY not in shown
    assert str(error).endswith((".", "?", "!"))
    return error


async def answered(
    response: Response,
    caplog: pytest.LogCaptureFixture,
    client: Client = OpenAIModel,
    **fields: Any,
) -> tuple[ModelError, str]:
    """The error that an answer leads to, and its text with the address as URL."""
    async with ModelServer([response]) as server:
        fields = {"model": "qwen", "api_key": KEY, **fields}
        endpoint = Endpoint(base_url=server.base_url, **fields)
        error = await failure(endpoint, caplog, client)
    return error, str(error).replace(server.base_url, "URL")


BILLED = " The provider may bill this request, and the prompt again if it is retried."
ADVICE = " If you cannot change that, choose another model with -m."

CASES: list[tuple[str, Response, type[ModelError], bool, str]] = [
    (
        "401",
        failing(401, f"Incorrect API key provided: {KEY}"),
        EndpointUnusable,
        False,
        "URL refused the API key from MY_KEY (401 Unauthorized). Set a key that is valid there and "
        "may use 'qwen'. It said: Incorrect API key provided: ***.",
    ),
    (
        "403",
        failing(403, "No access."),
        EndpointUnusable,
        False,
        "URL refused the API key from MY_KEY (403 Forbidden). Set a key that is valid there and "
        "may use 'qwen'. It said: No access.",
    ),
    (
        "404",
        failing(404, "model 'qwen' not found"),
        UnknownModel,
        False,
        "URL has no model 'qwen', or no API at that path (404 Not Found). It said: model 'qwen' "
        "not found. Check the model's name, and the address: is the base URL right?",
    ),
    (
        "429",
        failing(429, "Slow down.", headers={"Retry-After": "7"}),
        RateLimited,
        True,
        "URL limits the rate of requests. It said: Slow down. Wait, or run fewer agents at once.",
    ),
    (
        "429 of the quota",
        failing(429, "You exceeded your quota.", kind="insufficient_quota"),
        EndpointUnusable,
        False,
        "The quota at URL is used up. It said: You exceeded your quota. Add credit to the account "
        "of MY_KEY, or choose another model with -m.",
    ),
    (
        "422",
        json({"detail": [{"loc": ["body"], "msg": "field required"}]}, 422),
        RequestRefused,
        False,
        # Its name has changed between Pythons.
        f"URL refused the request (422 {HTTPStatus(422).phrase}). It said: field required."
        + ADVICE,
    ),
    (
        "400 without a word",
        Response(status=400),
        RequestRefused,
        False,
        "URL refused the request (400 Bad Request). Check the model's name and the server's "
        "settings.",
    ),
    (
        "408",
        plain("late", 408),
        ProviderError,
        True,
        "URL refused the request (408 Request Timeout). It said: late.",
    ),
    (
        "500",
        json({"error": "out of memory"}, 500),
        ProviderError,
        True,
        "URL failed (500 Internal Server Error). It said: out of memory. If it does so again, look "
        "into the server's log.",
    ),
    (
        "502 with a page",
        page("<html><title>502 Bad\nGateway</title>", 502),
        ProviderError,
        True,
        "URL failed (502 Bad Gateway). It said: a web page: 502 Bad Gateway. If it does so again, "
        "look into the server's log.",
    ),
    (
        "503 while loading",
        failing(503, "Loading model", kind="unavailable_error", code=503),
        Overloaded,
        True,
        "URL failed (503 Service Unavailable). It said: Loading model. If it does so again, look "
        "into the server's log.",
    ),
    (
        "a status nobody knows",
        Response(status=599),
        ProviderError,
        True,
        "URL failed (599). If it does so again, look into the server's log.",
    ),
    (
        "a redirect",
        Response(status=307, headers={"location": "https://u:p@elsewhere/v1"}),
        EndpointUnusable,
        False,
        "URL redirects to https://elsewhere/v1. Redirects are not followed, because the API key "
        "would be sent along: set the base URL to where the API is.",
    ),
    (
        "a web page",
        page("<!doctype html><html>Open WebUI</html>"),
        EndpointUnusable,
        False,
        "URL answered a web page, not JSON: is URL the API's base URL? It usually ends in /v1.",
    ),
    (
        "a text",
        plain("Ollama is running"),
        EndpointUnusable,
        False,
        "URL answered something that is not JSON: 'Ollama is running'. Is that the API's base URL? "
        "It usually ends in /v1.",
    ),
    (
        "nothing",
        Response(),
        EmptyReply,
        True,
        "URL sent an empty reply. If it does so again, see whether the prompt fits the context "
        "window that 'qwen' was loaded with.",
    ),
    (
        "only [DONE]",
        stream(b"[DONE]"),
        EmptyReply,
        True,
        "URL sent an empty reply. If it does so again, see whether the prompt fits the context "
        "window that 'qwen' was loaded with.",
    ),
    (
        "an end without a finish",
        stream(TEXT),
        ProviderError,
        True,
        "The reply of URL broke off in the middle. If it does so again, look into the server's "
        "log.",
    ),
    (
        "a connection cut in the middle",
        stream(TEXT, ending=ResponseEnding.DROP),
        ProviderError,
        True,
        "",
    ),
    (
        "a finish that is an error",
        stream(TEXT, chunk({}, finish_reason="error")),
        ProviderError,
        True,
        "The reply of URL broke off in the middle. If it does so again, look into the server's "
        "log.",
    ),
    (
        "a connection cut before the answer",
        Response(raw=b"", ending=ResponseEnding.DROP),
        ProviderError,
        True,
        "URL closed the connection without an answer. If it does so again, look into the server's "
        "log.",
    ),
    (
        "another protocol",
        Response(raw=b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        EndpointUnusable,
        False,
        "URL did not answer in HTTP. Is another kind of server on that port? Check the base URL.",
    ),
    (
        "broken JSON in a chunk",
        stream(TEXT, b'{"choices": [{"delta"\x1b[31m', STOP),
        ProviderError,
        True,
        'URL sent broken JSON: \'{"choices": [{"delta" [31m\'. If it does so again, look into the '
        "server's log.",
    ),
    (
        "broken JSON as a whole",
        plain('{"choices": '),
        ProviderError,
        True,
        "URL sent broken JSON: '{\"choices\":'. If it does so again, look into the server's log.",
    ),
    (
        "an error in the stream",
        stream(TEXT, {"error": {"message": "CUDA out of memory", "code": 500}}),
        ProviderError,
        True,
        "URL failed (500 Internal Server Error). It said: CUDA out of memory. If it does so again, "
        "look into the server's log.",
    ),
    *(
        (
            f"an error in the stream that is not called one, {number}",
            stream(TEXT, error, b"[DONE]"),
            ProviderError,
            True,
            "URL failed (500 Internal Server Error). It said: CUDA out of memory. If it does so "
            "again, look into the server's log.",
        )
        for number, error in enumerate(
            (
                {"object": "error", "message": "CUDA out of memory", "code": 500},
                {"detail": "CUDA out of memory"},
                {"code": 20012, "message": "CUDA out of memory", "data": None},
            )
        )
    ),
    *(
        (
            f"a finish that is none: {reason}",
            stream(TEXT, chunk({}, finish_reason=reason), b"[DONE]"),
            ProviderError,
            True,
            "The reply of URL broke off in the middle. If it does so again, look into the "
            "server's log.",
        )
        for reason in ("abort", "cancelled")
    ),
    (
        "a reply that broke off after its usage so far",
        stream({**TEXT, "usage": {"prompt_tokens": 9, "completion_tokens": 1}}),
        ProviderError,
        True,
        "The reply of URL broke off in the middle. If it does so again, look into the server's "
        "log.",
    ),
    (
        "a connection cut after the usage so far",
        stream({"choices": [], "usage": {"prompt_tokens": 9}}, TEXT, ending=ResponseEnding.DROP),
        ProviderError,
        True,
        "",
    ),
    (
        "402",
        failing(402, "Insufficient Balance"),
        EndpointUnusable,
        False,
        "The quota at URL is used up. It said: Insufficient Balance. Add credit to the account of "
        "MY_KEY, or choose another model with -m.",
    ),
    (
        "a rate limit in the stream",
        stream({"error": {"message": "Slow. Try again in 2s", "type": "rate_limit_error"}}),
        RateLimited,
        True,
        "URL limits the rate of requests. It said: Slow. Try again in 2s. Wait, or run fewer "
        "agents at once.",
    ),
    (
        "an authentication error in the stream",
        stream({"error": {"message": "Bad key", "type": "authentication_error"}}),
        EndpointUnusable,
        False,
        "URL refused the API key from MY_KEY (401 Unauthorized). Set a key that is valid there and "
        "may use 'qwen'. It said: Bad key.",
    ),
    (
        "an invalid request in the stream",
        stream({"error": {"message": "No tools", "type": "BadRequestError", "code": 400}}),
        RequestRefused,
        False,
        "URL refused the request (400 Bad Request). It said: No tools." + ADVICE,
    ),
    (
        "an event named error",
        Response(body=b'event: error\ndata: {"message": "overloaded"}\n\n'),
        ProviderError,
        True,
        "URL failed (500 Internal Server Error). It said: overloaded. If it does so again, look "
        "into the server's log.",
    ),
    (
        "which field FastAPI means",
        json({"detail": [{"loc": ["body", "tools", 0], "msg": "Extra inputs"}]}, 422),
        RequestRefused,
        False,
        f"URL refused the request (422 {HTTPStatus(422).phrase}). It said: tools.0: Extra inputs."
        + ADVICE,
    ),
    (
        "JSON in JSON in JSON",
        Response(body=b'data: {"choices":' + DEEP + b"}\n\n"),
        ProviderError,
        True,
        "URL sent broken JSON: '(nested too deeply)'. If it does so again, look into the server's "
        "log.",
    ),
    (
        "a refusal in JSON in JSON",
        Response(status=400, body=DEEP),
        ProviderError,
        True,
        "",
    ),
    (
        "a line named error",
        Response(body=b'error: {"code": 400, "message": "bad grammar"}\n\n'),
        RequestRefused,
        False,
        "URL refused the request (400 Bad Request). It said: bad grammar." + ADVICE,
    ),
    (
        "an error with status 200",
        json({"object": "error", "message": "no such adapter", "code": 400}),
        RequestRefused,
        False,
        "URL refused the request (400 Bad Request). It said: no such adapter." + ADVICE,
    ),
    (
        "the content filter",
        stream(TEXT, chunk({}, finish_reason="content_filter")),
        ProviderError,
        False,
        "URL withheld the reply by its content filter. Word the task differently, or choose "
        "another model with -m.",
    ),
    (
        "a line without end",
        Response(body=b"data: " + b"x" * (MAX_LINE_BYTES + 1)),
        ProviderError,
        False,
        "URL sent more data than any reply has, and was cut off. Is that a model server?",
    ),
    (
        "a body without end",
        plain("{" + " " * (MAX_LINE_BYTES + 1)),
        ProviderError,
        False,
        "URL sent more data than any reply has, and was cut off. Is that a model server?",
    ),
    (
        "a message without end",
        failing(400, "\x1b[2J\n" + "no " * 1000 + KEY),
        RequestRefused,
        False,
        "URL refused the request (400 Bad Request). It said: [2J "
        + ("no " * 1000)[:395]
        + "…."
        + ADVICE,
    ),
]


@pytest.mark.parametrize(
    ("response", "kind", "retryable", "message"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
async def test_failed_responses(
    response: Response,
    kind: type[ModelError],
    retryable: bool,
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    error, text = await answered(response, caplog, key_source="MY_KEY")
    assert type(error) is kind
    assert error.retryable is retryable
    assert message in ("", text)


@pytest.mark.parametrize(
    "response",
    [
        failing(
            400,
            "This model's maximum context length is 8192 tokens. However, your messages resulted "
            "in 8545 tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
        ),
        failing(400, "Your input exceeds the context window of this model."),
        failing(
            400,
            "request (33056 tokens) exceeds the available context size (32768 tokens), try "
            "increasing it",
            kind="exceed_context_size_error",
            code=400,
        ),
        failing(500, "the request exceeds the available context size", code=500),
        failing(
            400,
            "You passed 1015 input tokens and requested 10 output tokens. However, the model's "
            "context length is only 1024 tokens, resulting in a maximum input length of 1014 "
            "tokens.",
            kind="BadRequestError",
            code=400,
        ),
        failing(400, "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"),
        failing(
            400,
            "The number of tokens to keep from the initial prompt is greater than the context "
            "length (n_keep: 10247>= n_ctx: 4096).",
        ),
        failing(
            400,
            "The input (400013 tokens) is longer than the model's context length (262144 tokens).",
        ),
        failing(422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193"),
        failing(400, "The decoder prompt (length 9) is longer than the maximum model length of 8."),
        failing(400, "input length 9000 exceeds maximum context length 4096"),
        json({"error": "the prompt is too long: it exceeds maximum context length"}, 400),
        json(
            {
                "error": "Trying to keep the first 15857 tokens when context the overflows. "
                "However, the model is loaded with context length of only 4096 tokens"
            },
            400,
        ),
        failing(
            400,
            "The number of tokens to keep from the initial prompt is greater than the context "
            "length",
        ),
        failing(400, "Context size has been exceeded."),
        # LiteLLM wraps what the server behind it said.
        failing(
            400,
            "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - "
            "request (10010 tokens) exceeds the available context size (2048 tokens), try "
            "increasing it\nmodel=smollm2. fallbacks=None.",
            kind="invalid_request_error",
            code="400",
        ),
        failing(400, "prompt is too long: 213462 tokens > 200000 maximum"),
        Response(status=413),
        stream({"error": {"message": "too big", "type": "exceed_context_size_error"}}),
        stream(TEXT, {"error": "Context size has been exceeded."}),
    ],
)
async def test_context_overflow(response: Response, caplog: pytest.LogCaptureFixture) -> None:
    error, text = await answered(response, caplog)
    assert type(error) is ContextOverflow
    assert not error.retryable
    assert text.startswith("The prompt is larger than the context window of 'qwen' at URL.")
    assert text.endswith("Shorten it, or serve the model with a larger window.")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "12"}, 12.0),
        ({"Retry-After-Ms": "250"}, 0.25),
        (
            {
                "Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT",
                "Date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            30.0,
        ),
        ({"X-RateLimit-Reset-Requests": "1m2s"}, 62.0),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after(
    status: int, headers: dict[str, str], seconds: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    error, _ = await answered(failing(status, "Wait.", headers=headers), caplog)
    assert error.retry_after_s == seconds


async def test_missing_key(caplog: pytest.LogCaptureFixture) -> None:
    _, text = await answered(failing(401, "Key?"), caplog, api_key=None, key_source="MY_KEY")
    assert text == "URL wants an API key (401 Unauthorized). Set one in MY_KEY. It said: Key?"
    _, text = await answered(failing(401, ""), caplog, api_key=None)
    assert text == "URL wants an API key (401 Unauthorized). Set one for this endpoint."


async def test_a_missing_v1_is_suggested(caplog: pytest.LogCaptureFixture) -> None:
    async with ModelServer([plain("404 page not found", 404)]) as server:
        base_url = server.base_url.removesuffix("/v1")
        endpoint = Endpoint(base_url=base_url, model="qwen", api_key=KEY)
        error = await failure(endpoint, caplog)
    assert str(error).endswith(
        f"Check the model's name, and the address: is the base URL {base_url}/v1?"
    )


async def test_idle_timeout_in_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    error, text = await answered(
        stream(TEXT, ending=ResponseEnding.HANG), caplog, idle_timeout_s=0.05
    )
    assert type(error) is ModelTimeout
    assert error.retryable
    assert text == (
        "URL went silent in the middle of its reply for 0.05 s. If the server is only slow, raise "
        f"idle_timeout_s.{BILLED}"
    )


@pytest.mark.parametrize(
    "response",
    [
        Response(body=events(TEXT, STOP), work_s=0.8),
        Response(body=events(TEXT, STOP), cuts=(len(events(TEXT)),), pause_s=0.8),
    ],
    ids=["before the first token", "in the middle"],
)
async def test_stalled_process_causes_no_idle_timeout(response: Response) -> None:
    async with ModelServer([response]) as server:
        endpoint = Endpoint(
            base_url=server.base_url, model="m", first_byte_timeout_s=0.6, idle_timeout_s=0.6
        )
        async with OpenAIModel(endpoint) as model:
            begun = asyncio.Event()
            asked = asyncio.create_task(model.reply(HI, lambda _: begun.set()))
            await (begun.wait() if response.cuts else server.received())
            time.sleep(1.4)  # noqa: ASYNC251  As a process that is stopped.
            assert (await asked).message.content == "Hel"


async def test_idle_timeout_in_a_body_that_is_not_streamed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = Response(body=b'{"choices": [', ending=ResponseEnding.HANG)
    error, _ = await answered(response, caplog, idle_timeout_s=0.05)
    assert type(error) is ModelTimeout


KEEP_ALIVE = b": ping\n\n"


@pytest.mark.parametrize(
    ("response", "told"),
    [
        (Response(raw=b"", ending=ResponseEnding.HANG), "did not begin to reply within"),
        (Response(ending=ResponseEnding.HANG), "did not begin to reply within"),
        (
            Response(
                body=KEEP_ALIVE + events(chunk({"role": "assistant"})),
                ending=ResponseEnding.HANG,
            ),
            "went silent before its reply for",
        ),
    ],
)
async def test_first_token_timeout(
    response: Response, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Reading the prompt is no idling, whatever the server sends meanwhile.
    error, text = await answered(response, caplog, first_byte_timeout_s=0.1, idle_timeout_s=0.01)
    assert type(error) is ModelTimeout
    assert error.received_tokens == 0, "the prompt is billed"
    assert text == (
        f"URL {told} 0.1 s. If the server is only slow, raise first_byte_timeout_s.{BILLED}"
    )


async def test_no_key_means_no_bill() -> None:
    async with ModelServer([Response(ending=ResponseEnding.HANG)]) as server:
        endpoint = Endpoint(base_url=server.base_url, model="m", first_byte_timeout_s=0.05)
        model = OpenAIModel(endpoint)
        with pytest.raises(ModelTimeout, match=r"raise first_byte_timeout_s\.$"):
            await model.reply(HI)
        await model.aclose()


@pytest.mark.parametrize("piece", [KEEP_ALIVE, b"\n", events({"choices": []}), b": half a com"])
async def test_anything_that_arrives_is_a_sign_of_life(piece: bytes) -> None:
    """A server that thinks for longer than the limit, and sends nothing but this meanwhile."""
    pieces = [piece] * 12
    cuts = tuple(len(piece) * number for number in range(1, 13))
    ending = b"\n\n" if piece.startswith(b": half") else b""
    body = b"".join(pieces) + ending + events(TEXT, STOP)
    told: list[str] = []
    async with ModelServer([Response(body=body, cuts=cuts, pause_s=0.1)]) as server:
        endpoint = Endpoint(
            base_url=server.base_url, model="m", first_byte_timeout_s=0.8, idle_timeout_s=0.8
        )
        model = OpenAIModel(endpoint)
        assert (await model.reply(HI, told.append)).message.content == "Hel"
        await model.aclose()
    assert told.count("") >= 10
    assert len(server.requests) == 1, "the prompt was paid for once"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_connection_refused(host: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"http://{host}:{free_port()}/v1"
    error = await failure(Endpoint(base_url=url, model="m", api_key=KEY), caplog)
    assert str(error) == (
        f"Cannot reach {url}: connection refused. Start the server or choose another with -m."
    )
    assert error.retryable


async def test_unknown_host(caplog: pytest.LogCaptureFixture) -> None:
    url = "http://no-such-host.invalid/v1"
    error = await failure(Endpoint(base_url=url, model="m", api_key=KEY), caplog)
    assert str(error) == (
        f"Cannot reach {url}: the host name 'no-such-host.invalid' cannot be resolved. Check its "
        "spelling and the network, or choose another server with -m."
    )


async def test_connect_timeout(caplog: pytest.LogCaptureFixture) -> None:
    # A listener that never accepts, with its queue full, leaves further connections unanswered.
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}/v1"
        endpoint = Endpoint(base_url=url, model="m", api_key=KEY, connect_timeout_s=0.05)
        error = await failure(endpoint, caplog)
    assert str(error) == (
        f"Cannot reach {url}: no connection within 0.05 s. Check the address and the network, or "
        "choose another server with -m."
    )
    assert error.retryable


async def test_unreachable_proxy(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    endpoint = Endpoint(
        base_url="http://example.invalid/v1",
        model="m",
        api_key=KEY,
        proxy=f"http://bob:hunter22@127.0.0.1:{port}",
    )
    error = await failure(endpoint, caplog)
    assert str(error) == (
        f"Cannot reach the proxy http://127.0.0.1:{port}: connection refused. Start it, or correct "
        "the setting of the proxy."
    )


@pytest.mark.parametrize(
    ("status", "retryable", "words"),
    [
        (407, False, "wants a user name and a password (407 Proxy Authentication Required)"),
        (403, False, "would not connect to https://example.invalid/v1 (403 Forbidden)"),
        (502, True, "would not connect to https://example.invalid/v1 (502 Bad Gateway)"),
    ],
)
async def test_proxy_refuses(
    status: int, retryable: bool, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with ForwardingProxy(refusal=status) as proxy:
        endpoint = Endpoint(
            base_url="https://example.invalid/v1", model="m", api_key=KEY, proxy=proxy.url
        )
        error = await failure(endpoint, caplog)
    assert words in str(error)
    assert error.retryable is retryable


# Anthropic's API has words of its own.


def told(message: str, kind: str, status: int, **headers: str) -> Response:
    answer = json(messages.error(message, kind=kind), status)
    return msgspec.structs.replace(answer, headers={**answer.headers, **headers})


def spoken(*events: bytes, ending: ResponseEnding = ResponseEnding.PROPER) -> Response:
    return Response(body=b"".join(events), ending=ending)


SAID = messages.event("content_block_delta", index=0, delta={"text": "Hel"})
ANTHROPIC_CASES: list[tuple[str, Response, type[ModelError], bool, str]] = [
    (
        "401",
        told(f"invalid x-api-key {KEY}", "authentication_error", 401),
        EndpointUnusable,
        False,
        "URL refused the API key from ANTHROPIC_API_KEY (401 Unauthorized). Set a key that is "
        "valid there and may use 'qwen'. It said: invalid x-api-key ***.",
    ),
    (
        "402",
        told("No credit.", "billing_error", 402),
        EndpointUnusable,
        False,
        "The quota at URL is used up. It said: No credit. Add credit to the account of "
        "ANTHROPIC_API_KEY, or choose another model with -m.",
    ),
    (
        "404",
        told("model: qwen", "not_found_error", 404),
        UnknownModel,
        False,
        "URL has no model 'qwen', or no API at that path (404 Not Found). It said: model: qwen. "
        "Check the model's name, and the address: is the base URL right?",
    ),
    (
        "400",
        told("messages: Field required", "invalid_request_error", 400),
        RequestRefused,
        False,
        "URL refused the request (400 Bad Request). It said: messages: Field required." + ADVICE,
    ),
    (
        "413",
        told("Request exceeds the maximum size", "request_too_large", 413),
        ContextOverflow,
        False,
        "The prompt is larger than the context window of 'qwen' at URL. It said: Request exceeds "
        "the maximum size. Shorten it, or serve the model with a larger window.",
    ),
    (
        "too long",
        told("prompt is too long: 213462 tokens > 200000 maximum", "invalid_request_error", 400),
        ContextOverflow,
        False,
        "",
    ),
    (
        "too long with its answer",
        told("input length and `max_tokens` exceed context limit: 9 + 8", "invalid_request", 400),
        ContextOverflow,
        False,
        "",
    ),
    (
        "429",
        told("This would exceed your limit.", "rate_limit_error", 429),
        RateLimited,
        True,
        "URL limits the rate of requests. It said: This would exceed your limit. Wait, or run "
        "fewer agents at once.",
    ),
    (
        "529",
        told("Overloaded", "overloaded_error", 529),
        RateLimited,
        True,
        "URL is overloaded (529). It said: Overloaded. Wait, or choose another model with -m.",
    ),
    (
        "500",
        told("Internal server error", "api_error", 500),
        ProviderError,
        True,
        "URL failed (500 Internal Server Error). It said: Internal server error. If it does so "
        "again, look into the server's log.",
    ),
    (
        "overloaded in the middle",
        spoken(
            SAID, messages.event("error", **messages.error("Overloaded", kind="overloaded_error"))
        ),
        RateLimited,
        True,
        "URL is overloaded (529). It said: Overloaded. Wait, or choose another model with -m.",
    ),
    (
        "an error without its event's name",
        Response(body=events(messages.error("No.", kind="permission_error"))),
        EndpointUnusable,
        False,
        "URL refused the API key from ANTHROPIC_API_KEY (403 Forbidden). Set a key that is valid "
        "there and may use 'qwen'. It said: No.",
    ),
    (
        "an error with status 200",
        json(messages.error("Odd.", kind="invalid_request_error")),
        RequestRefused,
        False,
        "URL refused the request (400 Bad Request). It said: Odd." + ADVICE,
    ),
    (
        "a refusal",
        spoken(
            messages.event(
                "message_delta",
                delta={"stop_reason": "refusal", "stop_details": {"explanation": "Not this."}},
            )
        ),
        ProviderError,
        False,
        "URL withheld the reply by its content filter. It said: Not this. Word the task "
        "differently, or choose another model with -m.",
    ),
    (
        "broken off",
        spoken(SAID),
        ProviderError,
        True,
        "The reply of URL broke off in the middle. If it does so again, look into the server's "
        "log.",
    ),
    (
        "cut off",
        spoken(SAID, ending=ResponseEnding.DROP),
        ProviderError,
        True,
        "The reply of URL broke off in the middle. If it does so again, look into the server's "
        "log.",
    ),
    (
        "nothing",
        spoken(messages.event("message_start", message={}), messages.event("message_stop")),
        EmptyReply,
        True,
        "URL sent an empty reply. If it does so again, see whether the prompt fits the context "
        "window that 'qwen' was loaded with.",
    ),
    (
        "broken JSON",
        Response(body=b'data: {"type": "message_start", \n\n'),
        ProviderError,
        True,
        'URL sent broken JSON: \'{"type": "message_start",\'. If it does so again, look into the '
        "server's log.",
    ),
    (
        "broken JSON in one piece",
        json(None),
        EndpointUnusable,
        False,
        "",
    ),
    (
        "a chat completion",
        json({"choices": [{"message": {"content": "Hi."}}]}),
        ProviderError,
        True,
        "URL failed (500 Internal Server Error). If it does so again, look into the server's log.",
    ),
    (
        "a web page",
        page("<html><title>Welcome</title></html>"),
        EndpointUnusable,
        False,
        "URL answered a web page, not JSON: is URL the API's base URL?",
    ),
    (
        "JSON in JSON in JSON",
        Response(body=b'data: {"type":"x","content_block":' + DEEP + b"}\n\n"),
        ProviderError,
        True,
        "URL sent broken JSON: '(nested too deeply)'. If it does so again, look into the server's "
        "log.",
    ),
]


@pytest.mark.parametrize(
    ("response", "kind", "retryable", "message"),
    [case[1:] for case in ANTHROPIC_CASES],
    ids=[case[0] for case in ANTHROPIC_CASES],
)
async def test_failed_anthropic_responses(
    response: Response,
    kind: type[ModelError],
    retryable: bool,
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    error, text = await answered(response, caplog, AnthropicModel, key_source="ANTHROPIC_API_KEY")
    assert type(error) is kind
    assert error.retryable is retryable
    assert message in ("", text)


async def test_retry_after_of_anthropic(caplog: pytest.LogCaptureFixture) -> None:
    headers = {
        "Date": "Wed, 21 Oct 2026 07:28:00 GMT",
        "anthropic-ratelimit-requests-remaining": "9",
        "anthropic-ratelimit-requests-reset": "2026-10-21T07:28:01Z",
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": "2026-10-21T07:28:20Z",
    }
    response = told("Wait.", "rate_limit_error", 429, **headers)
    error, _ = await answered(response, caplog, AnthropicModel)
    assert error.retry_after_s == 20.0
    response = told("Wait.", "rate_limit_error", 429, **headers, **{"retry-after": "3"})
    error, _ = await answered(response, caplog, AnthropicModel)
    assert error.retry_after_s == 3.0


@pytest.mark.parametrize(
    ("told", "advice"),
    [
        (
            "Unsupported value: 'minimal' is not supported with the 'gpt-6' model for"
            " reasoning.effort. Supported values are: 'low', 'medium' and 'high'.",
            "Choose another effort in the model's name (+effort=…), or leave it out.",
        ),
        (
            "gemma3 does not support tools",
            "Choose a model that can call tools with -m; `retinue models` shows which can.",
        ),
    ],
)
async def test_a_refusal_says_what_to_change(told: str, advice: str) -> None:
    async with ModelServer([failing(400, told)]) as server:
        model = OpenAIModel(Endpoint(base_url=server.base_url, model="m"))
        with pytest.raises(RequestRefused) as caught:
            await model.reply(Request(messages=(UserMessage("Hi."),)))
        await model.aclose()
    assert told in str(caught.value)
    assert str(caught.value).endswith(advice)


@pytest.mark.parametrize(
    "raw", ['{"error":{"message":"Too big","code":"x"}}', {"message": "Too big"}, "Too big"]
)
def test_an_error_in_the_metadata_of_a_gateway(raw: object) -> None:
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}
    details = parse_error({"error": error})
    assert details.message == "Provider returned error: Too big"
    assert details.status == 400
