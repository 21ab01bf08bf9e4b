"""Keys by endpoint: variables, commands and presets, and what a project's file cannot do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.config.settings import Settings as SettingsFile
from retinue.config.settings import SettingsLayers
from retinue.domain.events import Event
from retinue.domain.server_info import ServedModel
from retinue.errors import ConfigError
from retinue.model_registry import ModelRegistry
from retinue.models.scripted.model import call, say
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Received, Response, failing

OpenProject = Callable[..., AbstractAsyncContextManager[Runtime]]
Settings = Callable[[str], None]


@pytest.fixture
def opened(tmp_path: Path, project: Path, open_project: OpenProject) -> OpenProject:
    def open_with(
        variables: dict[str, str], **options: object
    ) -> AbstractAsyncContextManager[Runtime]:
        home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        environment = Environment(variables=home | variables)
        return open_project(project, environment=environment, **options)

    return open_with


async def test_azure_gets_its_key_in_both_headers_and_has_a_price(opened: OpenProject) -> None:
    async with ModelServer([say("hello").using(1_000_000, 100_000)]) as server:
        variables = {
            "AZURE_OPENAI_ENDPOINT": server.base_url.removesuffix("/v1"),
            "AZURE_OPENAI_API_KEY": "azure-1",
            "OPENAI_API_KEY": "sk-1",
        }
        async with opened(variables, model="azure:gpt-5-mini") as rt:
            result = await rt.spawn("researcher", "Who are you?", max_cost_usd=5.0)
    (request,) = server.requests
    assert request.target == "/openai/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer azure-1"
    assert request.headers["api-key"] == "azure-1"
    assert result.usage.cost_usd == pytest.approx(0.45)


async def served(tmp_path: Path, name: str, **variables: str) -> ServedModel | None:
    environment = Environment(variables=variables)
    layers = SettingsLayers(SettingsFile(), SettingsFile())
    async with ModelRegistry(environment, layers, tmp_path, {}, SystemClock()) as registry:
        registry.use_trusted(name)
        return await registry.served(name)


async def test_table_has_the_window_and_the_longest_output(tmp_path: Path) -> None:
    found = await served(tmp_path, "openai:gpt-5-mini", OPENAI_API_KEY="sk-1")
    assert found is not None
    assert (found.window, found.max_output, found.tools) == (400_000, 128_000, True)


async def test_unknown_price_is_said_once(opened: OpenProject) -> None:
    async with ModelServer([say("hello")] * 2) as server:
        variables = {
            "AZURE_OPENAI_ENDPOINT": server.base_url.removesuffix("/v1"),
            "AZURE_OPENAI_API_KEY": "azure-1",
        }
        events: list[Event] = []
        async with opened(variables, model="azure:mine", on_event=events.append) as rt:
            await rt.fan_out([("researcher", "x"), ("researcher", "y")])
    notes = [note for e in events for note in getattr(e.fact, "notes", ())]
    assert [note for note in notes if "price unknown" in note] == [
        "price unknown: mine costs money that is not counted; set input and output under"
        ' [prices."mine"] in your settings'
    ]


async def test_server_knows_better_than_the_table(tmp_path: Path) -> None:
    page = {"data": [{"id": "gpt-5-mini", "context_window": 9_000, "max_completion_tokens": 900}]}
    async with ModelServer([], pages={"/v1/models": page}) as server:
        name = f"openai:gpt-5-mini@{server.base_url}"
        found = await served(tmp_path, name, OPENAI_BASE_URL=server.base_url)
    assert found is not None
    assert (found.window, found.max_output, found.price) == (9_000, 900, None)


async def test_each_endpoint_has_its_own_key(opened: OpenProject, settings: Settings) -> None:
    async with ModelServer([say("a")]) as first, ModelServer([say("b")]) as second:
        settings(
            f'[servers."{first.base_url}"]\nkey_variable = "FIRST_KEY"\n'
            f'[models]\nfirst = "openai:m@{first.base_url}"\n'
            f'second = "openai:m@{second.base_url}"\n'
        )
        keys = {"FIRST_KEY": "key-of-first", "OPENAI_API_KEY": "sk-1"}
        async with opened(keys, model="first") as rt:
            assert (await rt.spawn("researcher", "x")).response == "a"
            assert (await rt.spawn("researcher", "x", model="second")).response == "b"
    assert first.requests[0].headers["authorization"] == "Bearer key-of-first"
    assert second.requests[0].headers["authorization"] == "Bearer sk-1"


def key_counter(folder: Path) -> Path:
    """A command that prints key-1 when it first runs, then key-2, and so on."""
    command = folder / "next-key"
    command.write_text(
        f'#!/bin/sh\necho x >> {folder}/runs\necho "a warning" >&2\n'
        f'echo "key-$(wc -l < {folder}/runs)"\n'
    )
    command.chmod(0o755)
    return command


def accepting(*keys: str) -> Callable[[Received], object]:
    def answer(request: Received) -> object:
        if request.headers.get("authorization", "").removeprefix("Bearer ") in keys:
            return say("fine")
        return failing(401, "the token has expired")

    return answer


async def test_key_command_runs_again_when_the_key_has_expired(
    opened: OpenProject, settings: Settings, tmp_path: Path
) -> None:
    valid = {"key-1"}

    def answer(request: Received) -> Response | object:
        return accepting(*valid)(request)

    async with ModelServer(answer) as server:  # type: ignore[arg-type]
        settings(f'[servers."{server.base_url}"]\nkey_command = "{key_counter(tmp_path)}"\n')
        async with opened({}, model=f"openai:m@{server.base_url}", max_concurrent=8) as rt:
            tasks = [("researcher", f"Question {n}") for n in range(8)]
            assert all(result.ok for result in await rt.fan_out(tasks))
            valid = {"key-2"}
            again = [("researcher", f"Another question {n}") for n in range(8)]
            assert all(result.ok for result in await rt.fan_out(again))
    # One run for eight children, and one more when the first key was refused.
    assert (tmp_path / "runs").read_text().split() == ["x", "x"]


async def test_key_that_stays_refused_is_an_error(
    opened: OpenProject, settings: Settings, tmp_path: Path
) -> None:
    async with ModelServer(lambda _: failing(401, "who is key-2?")) as server:
        settings(f'[servers."{server.base_url}"]\nkey_command = "{key_counter(tmp_path)}"\n')
        async with opened({}, model=f"openai:m@{server.base_url}") as rt:
            result = await rt.spawn("researcher", "x")
    assert not result.ok
    assert f"refused the API key from {tmp_path}/next-key (401 Unauthorized)" in str(result.error)
    assert "key-2" not in str(result.error)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("false", "ended with 1"),
        ("true", "printed no key on its standard output"),
        ("no-such-program", "cannot be run: "),
        ("sh -c 'echo log in first >&2; exit 3'", "ended with 3: log in first"),
    ],
)
async def test_key_command_that_fails(
    opened: OpenProject, settings: Settings, command: str, problem: str
) -> None:
    async with ModelServer([]) as server:
        settings(f'[servers."{server.base_url}"]\nkey_command = "{command}"\n')
        async with opened({}, model=f"openai:m@{server.base_url}") as rt:
            result = await rt.spawn("researcher", "x")
    assert f"The key_command {command!r} {problem}" in str(result.error)
    assert "key_command under [servers." in str(result.error)
    assert not server.requests


async def test_project_cannot_set_a_key_or_run_a_command(
    opened: OpenProject, settings: Settings, project: Path, tmp_path: Path
) -> None:
    async with ModelServer([say("hello")]) as server:
        (project / "retinue.toml").write_text(
            f'model = "openai:m@{server.base_url}"\n'
            f'[servers."{server.base_url}"]\nkey_command = "touch {tmp_path}/ran"\n'
        )
        async with opened({"OPENAI_API_KEY": "sk-1"}) as rt:
            assert (await rt.spawn("researcher", "x")).ok
    assert "authorization" not in server.requests[0].headers
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["deepseek:m@URL", "anthropic:m@URL"])
async def test_project_cannot_send_another_key_to_a_known_address(
    opened: OpenProject, settings: Settings, project: Path, name: str
) -> None:
    """The user trusts the address with OpenAI's key, and with no other."""
    async with ModelServer([say("hello")]) as server:
        settings(f'[models]\nmine = "openai:m@{server.base_url}"\n')
        model = name.replace("URL", server.base_url)
        (project / "retinue.toml").write_text(f'model = "{model}"\n')
        keys = {name: f"key-of-{name}" for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")}
        async with opened(keys | {"DEEPSEEK_API_KEY": "sk-deep"}) as rt:
            assert (await rt.spawn("researcher", "x")).ok
    sent = server.requests[0].headers
    assert "authorization" not in sent
    assert "x-api-key" not in sent


async def test_price_of_the_server_allows_a_limit(opened: OpenProject) -> None:
    """As OpenRouter lists its models."""
    card = {"id": "m", "pricing": {"prompt": "1e-6", "completion": "1e-5"}}
    answers, pages = [say("hello").using(1_000, 100)], {"/v1/models": {"data": [card]}}
    async with ModelServer(answers, pages=pages) as server:
        name = f"openai:m@{server.base_url}"
        async with opened({}, model=name, limits={"max_cost_usd": 1.0}) as rt:
            result = await rt.spawn("researcher", "x")
    assert result.usage.cost_usd == pytest.approx(0.002)


async def test_provider_without_an_address(opened: OpenProject) -> None:
    for name, variable in (
        ("azure:gpt-5-mini", "AZURE_OPENAI_ENDPOINT"),
        ("vertex:google/gemini-3.6-flash", "GOOGLE_CLOUD_PROJECT"),
    ):
        with pytest.raises(ConfigError, match=f"needs the address of .*: set {variable}, or"):
            async with opened({}, model=name):
                pass


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai:gpt-5-mini", "OPENAI_API_KEY"),
        ("deepseek:deepseek-v4-flash", "DEEPSEEK_API_KEY"),
        ("openai:deepseek-v4-flash@https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
        ("bedrock:openai.gpt-oss-120b-1:0", "AWS_BEARER_TOKEN_BEDROCK"),
        ("gemini:gemini-3.6-flash", "GEMINI_API_KEY"),
    ],
)
async def test_missing_key_names_the_variable(
    opened: OpenProject, name: str, variable: str
) -> None:
    with pytest.raises(ConfigError, match=f"needs a key: set {variable}; or name a server"):
        async with opened({}, model=name):
            pass


async def test_local_provider_needs_no_key(opened: OpenProject) -> None:
    async with ModelServer([say("hello")]) as server:
        host = server.base_url.removeprefix("http://").removesuffix("/v1")
        variables = {"OLLAMA_HOST": host, "OPENAI_API_KEY": "sk-1"}
        async with opened(variables, model="ollama:qwen3:8b") as rt:
            assert (await rt.spawn("researcher", "x")).ok
    assert "authorization" not in server.requests[0].headers
    assert server.requests[0].json["model"] == "qwen3:8b"


async def test_effort_of_the_name_and_of_a_role(opened: OpenProject, settings: Settings) -> None:
    settings('[roles.planner.sampling]\neffort = "high"\n')
    async with ModelServer([say("a"), say("b")]) as server:
        name = f"openai:m+effort=low@{server.base_url}"
        async with opened({}, model=name) as rt:
            assert (await rt.spawn("researcher", "x")).ok
            assert (await rt.spawn("planner", "x")).ok
    assert [one.json["reasoning_effort"] for one in server.requests] == ["low", "high"]
    assert [one.json["model"] for one in server.requests] == ["m", "m"]


async def test_anthropic_hears_of_the_budget_and_caches_for_an_hour(
    opened: OpenProject, settings: Settings
) -> None:
    async with ModelServer([say("a"), call("list_dir"), say("b")]) as server:
        settings(f'[servers."{server.base_url}"]\none_hour_cache = true\n')
        name = f"anthropic:claude-opus-5@{server.base_url}"
        async with opened({}, model=name) as rt:
            assert (await rt.spawn("researcher", "x", max_tokens=15_000)).ok
            assert (await rt.spawn("researcher", "y", max_tokens=40_000)).ok
    small, first, second = (one.json for one in server.requests)
    assert "output_config" not in small
    budget = {"task_budget": {"type": "tokens", "total": 40_000}}
    assert first["output_config"] == second["output_config"] == budget
    assert first["system"][-1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert server.requests[1].headers["anthropic-beta"] == "task-budgets-2026-03-13"
