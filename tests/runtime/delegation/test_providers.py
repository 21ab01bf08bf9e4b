"""Runs on servers that speak either API: keys, routes, thoughts and schemas from end to end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import ModelReplied
from retinue.domain.messages import Usage
from retinue.domain.report import job_block
from retinue.errors import ConfigError
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, call, calls, say, think
from retinue.project import open_journal
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Received, Response, failing

Settings = Callable[[str], None]

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
KEYS = {"OPENAI_API_KEY": "sk-openai-0123456789", "ANTHROPIC_API_KEY": "sk-ant-0123456789"}


@pytest.fixture
def opened(project: Path, tmp_path: Path) -> Any:
    """A runtime of a user with these variables."""

    @asynccontextmanager
    async def open_(model: Any, **variables: str) -> AsyncIterator[Runtime]:
        environment = Environment(variables={"HOME": str(tmp_path), **KEYS, **variables})
        async with retinue.open(project, model=model, environment=environment) as runtime:
            yield runtime

    return open_


def keys_in(request: Received) -> set[str]:
    return {key for key in KEYS.values() for value in request.headers.values() if key in value}


# Keys


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("openai:m@{url}", "OPENAI_API_KEY"),
        ("responses:m@{url}", "OPENAI_API_KEY"),
        ("anthropic:m@{url}", "ANTHROPIC_API_KEY"),
        ("anthropic:m+thinking@{url}", "ANTHROPIC_API_KEY"),
    ],
)
async def test_each_api_has_its_own_key(opened: Any, name: str, key: str) -> None:
    async with ModelServer([say("Hi.")]) as server, opened(name.format(url=server.base_url)) as rt:
        assert (await rt.run("Go.")).response == "Hi."
    assert keys_in(server.requests[0]) == {KEYS[key]}


@pytest.mark.parametrize(
    ("name", "variable", "path", "key"),
    [
        ("anthropic:m", "ANTHROPIC_BASE_URL", "/v1/messages", "ANTHROPIC_API_KEY"),
        ("openai:m", "OPENAI_BASE_URL", "/v1/chat/completions", "OPENAI_API_KEY"),
        ("responses:m", "OPENAI_BASE_URL", "/v1/responses", "OPENAI_API_KEY"),
        # The key belongs to the address, whichever API is spoken there.
        ("openai:m@{url}", "ANTHROPIC_BASE_URL", "/v1/chat/completions", "ANTHROPIC_API_KEY"),
        ("anthropic:m@{url}", "OPENAI_BASE_URL", "/v1/messages", "OPENAI_API_KEY"),
    ],
)
async def test_address_from_the_environment(
    opened: Any, name: str, variable: str, path: str, key: str
) -> None:
    async with ModelServer([say("Hi.")]) as server:
        base = {variable: server.base_url}
        async with opened(name.format(url=server.base_url), **base) as rt:
            await rt.run("Go.")
    (sent,) = server.requests
    assert sent.target == path
    assert keys_in(sent) == {KEYS[key]}


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("openai:m@https://api.anthropic.com", "ANTHROPIC_API_KEY"),
        ("anthropic:m@https://api.openai.com/v1", "OPENAI_API_KEY"),
    ],
)
async def test_a_key_never_goes_to_another_services_address(
    opened: Any, name: str, missing: str
) -> None:
    """Nothing can be heard at those addresses, but who has no key for them is told which."""
    elsewhere = {
        "OPENAI_BASE_URL": "http://127.0.0.1:9",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
    }
    with pytest.raises(ConfigError, match=f"needs a key: set {missing};"):
        async with opened(name, **elsewhere, **{missing: ""}):
            raise AssertionError


async def test_anthropic_needs_a_key(opened: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        async with opened("anthropic:claude+thinking=8000", ANTHROPIC_API_KEY=""):
            raise AssertionError
    assert str(caught.value) == (
        "Model 'claude' needs a key: set ANTHROPIC_API_KEY; or name a server of your own: -m"
        " anthropic:claude@http://127.0.0.1:8080/v1."
    )


async def test_project_settings_cannot_redirect_a_key(opened: Any, project: Path) -> None:
    async with ModelServer([failing(401, "Key?")]) as server:
        (project / "retinue.toml").write_text(f'model = "anthropic:m@{server.base_url}"\n')
        async with opened(None) as rt:
            result = await rt.run("Go.")
    assert not keys_in(server.requests[0])
    assert "wants an API key (401 Unauthorized). Set one in ANTHROPIC_API_KEY." in result.error


# Routes


async def test_a_bare_name_is_another_model_of_the_same_server(opened: Any) -> None:
    async with (
        ModelServer(lambda _: say("Hi.")) as server,
        opened(f"anthropic:large+thinking@{server.base_url}") as rt,
    ):
        await rt.spawn("researcher", "x", model="small")
        await rt.spawn("researcher", "x", model="small+effort=low")
        await rt.spawn("researcher", "x")
    sent = [(request.target, request.json["model"]) for request in server.requests]
    assert sent == [("/v1/messages", name) for name in ("small", "small", "large")]
    assert server.requests[1].json["output_config"] == {"effort": "low"}
    assert server.requests[2].json["thinking"] == {"type": "adaptive"}


async def test_a_role_may_have_a_model_of_another_provider(opened: Any, settings: Settings) -> None:
    settings('[roles.planner]\nmodel = "anthropic:claude"\n')
    async with ModelServer(lambda _: say("Hi.")) as server:
        name = f"openai:qwen@{server.base_url}"
        async with opened(name, ANTHROPIC_BASE_URL=server.base_url) as rt:
            await rt.spawn("planner", "x")
            await rt.spawn("researcher", "x")
    sent = [(request.target, request.json["model"]) for request in server.requests]
    assert sent == [("/v1/messages", "claude"), ("/v1/chat/completions", "qwen")]


async def test_a_model_cannot_choose_to_go_to_another_provider(opened: Any) -> None:
    steps = [call("spawn_agent", role="researcher", task="x", model="anthropic:claude"), say("ok")]
    async with ModelServer(steps) as server, opened(f"openai:m@{server.base_url}") as rt:
        result = await rt.run("Go.")
    assert result.children == 0
    told = server.requests[1].json["messages"][-1]["content"]
    assert told.startswith("[ERROR] Unknown model 'anthropic:claude'; there are: openai:m@")


async def test_an_endpoint_without_a_model_needs_one(opened: Any, settings: Settings) -> None:
    settings('endpoints = ["http://127.0.0.1:9/v1"]\n')
    async with opened(ScriptedModel([])) as rt:
        with pytest.raises(ConfigError, match="Name the model to ask at 'http://127"):
            await rt.spawn("researcher", "x", endpoint="http://127.0.0.1:9/v1")


# Thoughts


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_thoughts_are_kept_across_turns_and_on_record(
    opened: Any, project: Path, provider: str
) -> None:
    secret = "Where did I put my keys?"
    steps = [
        think(secret, calls(call("list_dir"), call("read_file", path="none"), text="I look.")),
        think("And now?", call("list_dir")),
        say("Done."),
    ]
    shown: list[str] = []
    async with ModelServer(steps) as server, opened(f"{provider}:m@{server.base_url}") as rt:
        result = await rt.spawn("researcher", "Look.")
        shown.append(job_block(result, cap_tokens=2000))
    assert result.response == "Done."
    last = server.requests[-1].body.decode()
    assert secret in last
    assert "And now?" in last
    async with open_journal(project) as store:
        (run, *_) = await store.runs()
        events = await store.events(run.id)
    replies = [event.fact for event in events if isinstance(event.fact, ModelReplied)]
    kept = [reply.thoughts.by if reply.thoughts else None for reply in replies]
    name = f"{provider}:m@{server.base_url}"
    assert kept == [name, name, None]
    # On record, and nowhere that anybody reads.
    assert not any(secret in text for text in (*shown, *(event.summary for event in events)))
    report = (project / ".retinue" / "step-0-result.md").read_text()
    assert secret not in report


async def test_failed_tool_is_marked_as_failed(opened: Any) -> None:
    steps = [calls(call("list_dir"), call("read_file", path="none")), say("Done.")]
    async with ModelServer(steps) as server, opened(f"anthropic:m@{server.base_url}") as rt:
        await rt.spawn("researcher", "Look.")
    results = server.requests[1].json["messages"][-1]["content"]
    assert [result.get("is_error", False) for result in results] == [False, True]


# Schemas


@pytest.mark.parametrize(
    ("provider", "field"), [("openai", "response_format"), ("anthropic", "output_config")]
)
async def test_an_answer_in_the_wrong_form_is_asked_for_again_under_the_schema(
    opened: Any, provider: str, field: str
) -> None:
    steps = [call("list_dir"), say("Seven, I think."), say('{"age": 7}')]
    async with ModelServer(steps) as server, opened(f"{provider}:m@{server.base_url}") as rt:
        result = await rt.spawn("researcher", "How old?", output=SCHEMA)
    assert (result.ok, result.data) == (True, {"age": 7})
    first, second, third = (request.json for request in server.requests)
    for body in (first, second):
        assert body["tools"]
        assert field not in body
    assert field in third
    # Anthropic wants to know the tools of earlier calls, though none may be called.
    assert third.get("tools") is None or third["tool_choice"] == {"type": "none"}


async def test_a_child_without_tools_is_held_to_its_schema_at_once(opened: Any) -> None:
    steps = [say('{"age": 7}')]
    async with ModelServer(steps) as server, opened(f"openai:m@{server.base_url}") as rt:
        result = await rt.spawn("researcher", "How old?", output=SCHEMA, tools=[])
    assert result.data == {"age": 7}
    assert server.requests[0].json["response_format"]["type"] == "json_schema"


async def test_schema_works_without_server_support(opened: Any) -> None:
    def server(request: Received) -> ScriptedReply | Response:
        if b"response_format" in request.body or b"tool_choice" in request.body:
            return failing(400, "This response_format type is unavailable now")
        return say('```json\n{"age": 7}\n```')

    async with ModelServer(server) as serving, opened(f"openai:m@{serving.base_url}") as rt:
        for task in ("Age?", "And hers?"):
            result = await rt.spawn("researcher", task, output=SCHEMA, tools=[])
            assert (result.data, result.attempts, result.usage.turns) == ({"age": 7}, 1, 1)
    assert len(serving.requests) == 5, "three refusals, once"


# Money


async def test_cache_writes_have_their_own_price(opened: Any, settings: Settings) -> None:
    settings("[prices.m]\ninput = 3.0\noutput = 15.0\ncached = 0.3\ncache_write = 3.75\n")
    usage = Usage(1000, 600, 10, tokens_written=300)
    used = msgspec.structs.replace(say("Hi."), usage=usage)
    async with (
        ModelServer([used]) as server,
        opened(f"anthropic:m+thinking@{server.base_url}") as rt,
    ):
        result = await rt.spawn("researcher", "x")
    # 100 at 3.00, 600 at 0.30, 300 at 3.75 and 10 at 15.00 dollars per million.
    assert result.usage.cost_usd == pytest.approx(0.001755)
    assert (result.usage.tokens_in, result.usage.tokens_cached) == (1000, 600)
