"""Looking at servers, over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.models.http.endpoint import Endpoint
from retinue.models.scripted.model import say
from retinue.models.server_info.inventory import inspect_model, inspect_server
from retinue.testing.server import (
    ModelServer,
    Received,
    Response,
    ResponseEnding,
    as_json,
    failing,
    streamed,
    whole,
)
from tests.models.proxy import ForwardingProxy

RECORDED = Path(__file__).parents[1] / "recorded"

DEEP = b"[" * 100_000 + b"]" * 100_000


def page(name: str) -> Any:
    return msgspec.json.decode((RECORDED / f"{name}.json").read_bytes())


def shown(request: Received) -> Any:
    return page("ollama_show").get(request.json["model"]) or failing(404, "model not found")


LLAMA_CPP = {"/v1/models": page("llama_cpp_models"), "/props": page("llama_cpp_props")}
OLLAMA = {
    "/v1/models": page("ollama_models"),
    "/api/ps": page("ollama_ps"),
    "/api/show": shown,
}
LM_STUDIO = {"/v1/models": page("lm_studio_models"), "/api/v1/models": page("lm_studio_v1")}
OLD_LM_STUDIO = {
    "/v1/models": page("lm_studio_models"),
    # It answers 200 to whatever it does not have.
    "/api/v1/models": {"error": "Unexpected endpoint or method. (GET /api/v1/models)"},
    "/api/v0/models": page("lm_studio_v0"),
}
VLLM = {"/v1/models": page("vllm_models")}


def at(server: ModelServer, model: str = "", **fields: Any) -> Endpoint:
    return Endpoint(base_url=server.base_url, model=model, **fields)


@pytest.mark.parametrize(
    ("pages", "kind", "found"),
    [
        (LLAMA_CPP, "llama.cpp", [("/models/SmolLM2-135M-Instruct.Q4_1.gguf", 512, 2, False)]),
        (
            OLLAMA,
            "Ollama",
            [
                ("qwen2.5:7b", None, None, True),
                ("gemma3:latest", 4096, None, False),
                ("deepseek-v3.1:671b-cloud", 163_840, None, True),
            ],
        ),
        (
            LM_STUDIO,
            "LM Studio",
            [("google/gemma-4-e4b", 4096, 4, True), ("qwen3.6-35b-a3b-apex", None, None, True)],
        ),
        (
            OLD_LM_STUDIO,
            "LM Studio",
            [
                ("google/gemma-4-e4b", 16_384, None, True),
                ("qwen3.6-35b-a3b-apex", None, None, None),
            ],
        ),
        (VLLM, "vLLM", [("meta-llama/Meta-Llama-3.1-8B-Instruct", 8096, None, None)]),
    ],
    ids=["llama.cpp", "Ollama", "LM Studio", "LM Studio 0.3", "vLLM"],
)
async def test_models_of_each_server(
    pages: dict[str, Any], kind: str, found: list[tuple[str, int | None, int | None, bool | None]]
) -> None:
    async with ModelServer(pages=pages) as server:
        inventory = await inspect_server(at(server), timeout_s=10)
        assert inventory.address == server.base_url
    assert inventory.server == kind
    assert [(m.model, m.window, m.slots, m.tools) for m in inventory.models] == found
    assert inventory.latency_s is not None
    assert inventory.latency_s > 0
    assert inventory.problem == ""
    assert not server.requests, "no model was called"


async def test_a_server_of_many_models_is_not_made_to_load_them() -> None:
    props = {"/v1/models": page("llama_cpp_router"), "/props": page("llama_cpp_props")}
    async with ModelServer(pages=props) as server:
        inventory = await inspect_server(at(server), timeout_s=10)
    assert [(m.window, m.loaded) for m in inventory.models] == [(512, True), (None, False)]
    assert [inspection.target for inspection in server.visits] == [
        "/v1/models",
        "/props?model=ggml-org/gemma-3-4b-it-GGUF:Q4_K_M&autoload=false",
    ]


@pytest.mark.parametrize(
    ("cards", "pages", "kind"),
    [
        # Without models there is nobody they could belong to.
        (None, {"/api/ps": {"models": []}}, "Ollama"),
        ([{"id": "hf.co/me/m:Q4", "owned_by": "me"}], {"/api/ps": {"models": []}}, "Ollama"),
        ([{"id": "gpt-4o", "owned_by": "somebody"}], {}, ""),
    ],
)
async def test_default_port_needs_confirmation(
    cards: list[Any] | None, pages: dict[str, Any], kind: str
) -> None:
    there = "http://127.0.0.1:11434"
    listed = {"/v1/models": {"object": "list", "data": cards}}
    at_usual_port = {f"{there}{path}": page for path, page in (listed | pages).items()}
    # By a proxy, so that it does not matter what runs on this machine.
    async with ModelServer(pages=at_usual_port) as proxy:
        url = proxy.base_url.removesuffix("/v1")
        found = await inspect_server(
            Endpoint(base_url=f"{there}/v1", model="", proxy=url), timeout_s=10
        )
    assert found.server == kind
    assert [m.server for m in found.models] == [kind] * len(cards or [])


@pytest.mark.parametrize("pages", [LLAMA_CPP, OLLAMA, LM_STUDIO])
async def test_missing_pages_are_left_out(pages: dict[str, Any]) -> None:
    async with ModelServer(pages={"/v1/models": pages["/v1/models"]}) as server:
        inventory = await inspect_server(at(server), timeout_s=10)
    assert inventory.models
    assert {m.slots for m in inventory.models} == {None}


async def test_late_pages_are_left_out() -> None:
    pages = {**LLAMA_CPP, "/props": Response(ending=ResponseEnding.HANG)}
    async with ModelServer(pages=pages) as server:
        inventory = await inspect_server(at(server), timeout_s=0.2)
    assert [(m.window, m.slots) for m in inventory.models] == [(512, None)]


# What may be wrong


async def problem_of(server: ModelServer, **fields: Any) -> tuple[str, bool]:
    found = await inspect_server(at(server, **fields), timeout_s=10)
    assert found.models == ()
    return found.problem, found.no_server


async def test_nothing_listens() -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))  # Bound and not listening: it refuses.
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        found = await inspect_server(Endpoint(base_url=url, model=""))
    assert (found.problem, found.no_server) == ("nothing listens there", True)


async def test_a_server_that_accepts_and_never_answers() -> None:
    async with ModelServer(pages={"/v1/models": Response(gate=asyncio.Event())}) as server:
        found = await inspect_server(at(server), timeout_s=0.2)
    assert (found.problem, found.no_server) == ("no answer within 0.2 s", False)


async def test_a_server_that_begins_to_answer_and_never_ends() -> None:
    hanging = Response(body=b'{"data": [', ending=ResponseEnding.HANG)
    async with ModelServer(pages={"/v1/models": hanging}) as server:
        found = await inspect_server(at(server), timeout_s=0.2)
    assert (found.problem, found.no_server) == ("no answer within 0.2 s", False)


@pytest.mark.parametrize(
    ("answer", "problem", "no_server"),
    [
        (failing(404, "Not found"), "it answers 404; is that a model server?", True),
        (
            Response(status=302, headers={"location": "/login"}),
            "it answers 302; is that a model server?",
            True,
        ),
        (Response(body=b"<html>"), "it does not answer in JSON; is that a model server?", True),
        (Response(body=DEEP), "it does not answer in JSON; is that a model server?", True),
        (Response(status=500, body=DEEP), "it answers 500", False),
        (Response(body=b"\xff\xfe"), "it does not answer in JSON; is that a model server?", True),
        (as_json({"hello": 1}), "it has no list of models; is that a model server?", True),
        (Response(raw=b"220 mail.example.com ESMTP\r\n"), "it does not speak HTTP", True),
        (failing(503, "Loading model"), "it answers 503 (Loading model)", False),
        (Response(status=502, body=b"<html>"), "it answers 502", False),
    ],
    ids=str,
)
async def test_unusable_answers(answer: Response, problem: str, no_server: bool) -> None:
    async with ModelServer(pages={"/v1/models": lambda _: answer}) as server:
        assert await problem_of(server) == (problem, no_server)


async def test_unknown_host() -> None:
    found = await inspect_server(
        Endpoint(base_url="http://nowhere.invalid/v1", model=""), timeout_s=10
    )
    assert found.problem == "no host 'nowhere.invalid' is known"


async def test_invalid_ca_file(tmp_path: Path) -> None:
    empty = tmp_path / "ca.pem"
    empty.write_text("")
    endpoint = Endpoint(base_url="https://127.0.0.1:1/v1", model="", ca_file=str(empty))
    problem = (await inspect_server(endpoint)).problem
    assert problem == f"The ca_file '{empty}' is not a certificate in PEM form"


# Keys


async def test_a_key_is_sent_only_if_the_endpoint_has_one() -> None:
    async with ModelServer(pages=LLAMA_CPP) as server:
        await inspect_server(at(server), timeout_s=10)
        assert not any("authorization" in inspection.headers for inspection in server.visits)
        await inspect_server(at(server, api_key="sk-secret"), timeout_s=10)
        assert server.visits[-1].headers["authorization"] == "Bearer sk-secret"


async def test_key_header_of_anthropic() -> None:
    async with ModelServer(pages={"/v1/models": page("anthropic_models")}) as server:
        found = await inspect_server(
            at(server, api_key="sk-secret"), timeout_s=10, provider="anthropic"
        )
    assert [m.model for m in found.models] == ["claude-sonnet-4-6"]
    (inspection,) = server.visits
    assert inspection.headers["x-api-key"] == "sk-secret"
    assert "anthropic-version" in inspection.headers
    assert "authorization" not in inspection.headers


async def test_key_wins_over_a_password() -> None:
    async with ModelServer(pages=VLLM) as server:
        url = server.base_url.replace("http://", "http://me:secret@")
        found = await inspect_server(
            Endpoint(base_url=url, model="", api_key="sk-key"), timeout_s=10
        )
        assert found.address == server.base_url
        await inspect_server(Endpoint(base_url=url, model=""), timeout_s=10)
    with_key, with_password = (inspection.headers["authorization"] for inspection in server.visits)
    assert with_key == "Bearer sk-key"
    assert with_password.startswith("Basic ")


async def test_a_server_that_wants_a_key() -> None:
    async with ModelServer(pages={"/v1/models": failing(401, "No key")}) as server:
        source = {"key_source": "OPENAI_API_KEY"}
        assert await problem_of(server, **source) == (
            "it wants a key (401); set OPENAI_API_KEY",
            False,
        )
        assert await problem_of(server, api_key="sk-secret", **source) == (
            "it refuses the key from OPENAI_API_KEY (401)",
            False,
        )
        assert await problem_of(server) == (
            "it wants a key (401), which only an address that you name is sent:"
            f" -m openai:MODEL@{server.base_url}",
            False,
        )


# One model


async def test_inspect_one_model() -> None:
    async with ModelServer(pages=OLLAMA) as server:
        found = await inspect_model(at(server, "gemma3"))
    assert found is not None
    assert (found.model, found.window) == ("gemma3:latest", 4096)
    assert [inspection.target for inspection in server.visits] == [
        "/v1/models",
        "/api/ps",
        "/api/show",
    ]


async def test_unknown_model() -> None:
    async with ModelServer(pages=OLLAMA) as server:
        assert await inspect_model(at(server, "llama3")) is None


async def test_unreachable_server_tells_nothing() -> None:
    async with ModelServer() as server:
        assert await inspect_model(at(server, "m")) is None


def loading(pages: dict[str, Any], page_of_loaded: str, loaded: Any) -> Callable[[Any], Any]:
    """Pages of a server that loads a model when it is called."""

    def answer(_: Received) -> Response:
        pages[page_of_loaded] = loaded
        return whole(say("Hi"))

    return answer


async def test_a_model_that_is_not_loaded_is_called_to_learn_its_window() -> None:
    pages: dict[str, Any] = {**OLLAMA}
    loaded = {"models": [{"model": "qwen2.5:7b", "context_length": 4096}]}
    async with ModelServer(loading(pages, "/api/ps", loaded), pages=pages) as server:
        found = await inspect_model(at(server, "qwen2.5:7b"))
    assert found is not None
    assert (found.window, found.loaded) == (4096, True)
    (request,) = server.requests
    assert request.target == "/v1/chat/completions"
    assert request.json["max_tokens"] == 1


async def test_a_model_that_cannot_be_loaded_has_no_window() -> None:
    async with ModelServer([failing(500, "out of memory")], pages=OLLAMA) as server:
        found = await inspect_model(at(server, "qwen2.5:7b"))
    assert found is not None
    assert (found.window, found.max_window) == (None, 32_768)


async def test_a_model_whose_window_is_known_is_not_called() -> None:
    pages = {**OLLAMA, "/api/ps": {"models": []}}
    async with ModelServer([streamed(say("Hi"))], pages=pages) as server:
        found = await inspect_model(at(server, "gemma3"))
    assert found is not None
    assert (found.window, found.loaded) == (2048, False)
    assert not server.requests


async def test_inspection_can_be_cancelled() -> None:
    asked = asyncio.Event()

    def never(_: Received) -> Response:
        asked.set()
        return Response(gate=asyncio.Event())

    async with ModelServer(pages={"/v1/models": never}) as server:
        task = asyncio.create_task(inspect_server(at(server), timeout_s=60))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.hung_up()


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_key_is_not_sent_to_the_proxy(provider: str) -> None:
    async with ForwardingProxy(refusal=403) as proxy:
        endpoint = Endpoint(
            base_url="https://example.invalid/v1", model="", api_key="sk-secret", proxy=proxy.url
        )
        assert (await inspect_server(endpoint, provider=provider)).problem
    (seen,) = proxy.requests
    assert (seen.method, seen.target) == ("CONNECT", "example.invalid:443")
    assert "sk-secret" not in str(seen.headers)
