"""Pools by name: wherever a model's name works, and nowhere that the user did not allow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import Event, ModelReplied
from retinue.domain.messages import ToolMessage
from retinue.errors import ConfigError, RunSuspended
from retinue.models.scripted.model import ScriptedModel, call, raw_call, say
from retinue.project import open_journal
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, failing

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Settings = Callable[[str], None]

ROOT = "at work in the user's project"


@pytest.fixture
async def two() -> AsyncIterator[tuple[str, str]]:
    """The names of models at two servers that answer with their own names."""
    first = ModelServer(lambda _: say("first").using(1_000, 100))
    second = ModelServer(lambda _: say("second").using(1_000, 100))
    async with first, second:
        yield f"openai:m@{first.base_url}", f"openai:m@{second.base_url}"


def pool(two: tuple[str, str], strategy: str = "order") -> str:
    return f'[pools.smart]\nendpoints = ["{two[0]}", "{two[1]}"]\nstrategy = "{strategy}"\n'


async def test_the_default_model_may_be_a_pool(
    opened: Opened, settings: Settings, two: tuple[str, str]
) -> None:
    settings(pool(two))
    events: list[Event] = []
    async with opened(model="smart", on_event=events.append) as rt:
        assert (await rt.run("Who are you?")).response == "first"
        assert (await rt.spawn("researcher", "And you?")).response == "first"
    assert [e.fact.model for e in events if isinstance(e.fact, ModelReplied)] == [two[0]] * 2


@pytest.mark.parametrize("depth", [500, 985, 995, 2_000, 20_000])
@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_deeply_nested_arguments_are_an_error_to_the_model(
    opened: Opened, api: str, depth: int
) -> None:
    nested = '{"path":' * depth + "1" + "}" * depth
    steps = iter([raw_call("read_file", nested), say("I see.")])
    async with ModelServer(lambda _: next(steps)) as server:
        address = server.base_url if api == "openai" else server.base_url.removesuffix("/v1")
        async with opened(model=f"{api}:m@{address}") as rt:
            result = await rt.spawn(
                "researcher", "Look.", max_context_tokens=200_000, max_tokens=1_000_000
            )
    assert (result.status, result.response, result.error) == ("completed", "I see.", None)
    assert not any(receipt.ok for receipt in result.receipts)


async def test_a_setting_a_role_a_profile_and_a_short_name(
    opened: Opened, settings: Settings, two: tuple[str, str]
) -> None:
    settings(
        'model = "smart"\n[models]\nclever = "smart"\n'
        '[roles.planner]\nmodel = "clever"\n[profiles.poet]\npool = "smart"\n' + pool(two)
    )
    async with opened() as rt:
        for role in ("researcher", "planner", "poet"):
            assert (await rt.spawn(role, "Hello.")).response == "first"
        assert (await rt.spawn("researcher", "Hi.", model="clever")).response == "first"


async def test_a_model_may_choose_a_pool_and_not_mix_it_with_an_endpoint(
    opened: Opened, settings: Settings, two: tuple[str, str]
) -> None:
    settings(pool(two))
    root = ScriptedModel(
        {
            ROOT: [
                call("spawn_agent", role="researcher", task="x", model="smart"),
                call(
                    "spawn_agent",
                    role="researcher",
                    task="x",
                    model="smart",
                    endpoint=two[0].partition("@")[2],
                ),
                call("spawn_agent", role="researcher", task="x", model="smarter"),
                say("ok"),
            ]
        },
        name="root",
    )
    async with opened(model=root) as rt:
        await rt.run("Go.")
    spawned, mixed, unknown = (
        m.content for m in root.requests[-1].messages if isinstance(m, ToolMessage)
    )
    assert "\nfirst\n" in spawned
    assert mixed == "[ERROR] 'smart' is a pool and has its endpoints; leave `endpoint` out."
    assert unknown == "[ERROR] Unknown model 'smarter'; there are: root, smart."


async def test_bare_name_is_unknown_if_the_default_is_a_pool(
    opened: Opened, settings: Settings, two: tuple[str, str]
) -> None:
    settings(pool(two))
    async with opened(model="smart") as rt:
        with pytest.raises(ConfigError, match=r"Unknown model 'tiny'; there are: smart\."):
            await rt.spawn("researcher", "x", model="tiny")


async def test_models_given_by_a_program_may_be_in_a_pool(
    opened: Opened, settings: Settings
) -> None:
    settings('[pools.both]\nendpoints = ["small", "large"]\nweights = [1, 3]\n')
    small, large = (ScriptedModel({"": [say(n)]}, name=f"the {n}") for n in ("small", "large"))
    events: list[Event] = []
    async with opened(
        model="both", models={"small": small, "large": large}, on_event=events.append
    ) as rt:
        assert (await rt.spawn("researcher", "x")).response == "large"
        await rt.spawn("researcher", "y", model="small")
    answered = [e.fact.model for e in events if isinstance(e.fact, ModelReplied)]
    assert answered == ["large", ""]


async def test_project_cannot_define_a_pool(
    opened: Opened, settings: Settings, project: Path, two: tuple[str, str]
) -> None:
    (project / "retinue.toml").write_text(pool(two) + '[servers."http://a"]\nslots = 9\n')
    settings(f'model = "{two[1]}"\n')
    async with opened() as rt:
        assert (await rt.spawn("researcher", "x")).response == "second"
        # It is no name for anything, so it is one of a model at the server in use.
        assert (await rt.spawn("researcher", "x", model="smart")).response == "second"


async def test_pool_endpoints_get_the_key(
    tmp_path: Path, project: Path, settings: Settings
) -> None:
    async with ModelServer([say("hello")]) as server:
        settings(f'[pools.smart]\nendpoints = ["openai:m@{server.base_url}"]\n')
        environment = Environment(variables={"HOME": str(tmp_path), "OPENAI_API_KEY": "sk-1"})
        async with retinue.open(project, model="smart", environment=environment) as rt:
            assert (await rt.spawn("researcher", "x")).ok
    assert server.requests[0].headers["authorization"] == "Bearer sk-1"


async def test_misspelled_pool_is_suggested(opened: Opened, settings: Settings) -> None:
    settings('[pools.smart]\nendpoints = ["openai:m@http://127.0.0.1:9/v1"]\n')
    with pytest.raises(ConfigError, match=r"Model 'smrt' needs a key: .* Did you mean 'smart'\?"):
        async with opened(model="smrt"):
            pass


async def test_price_is_that_of_the_member_that_answered(
    opened: Opened, settings: Settings, two: tuple[str, str]
) -> None:
    prices = f'[prices."{two[0]}"]\ninput = 1\noutput = 10\n'
    both = prices + f'[prices."{two[1]}"]\ninput = 2\noutput = 20\n'
    settings(pool(two) + both)
    async with opened(model="smart", limits={"max_cost_usd": 1.0}) as rt:
        assert (await rt.spawn("researcher", "x")).usage.cost_usd == pytest.approx(0.002)
    settings(pool((two[1], two[0])) + both)
    async with opened(model="smart") as rt:
        assert (await rt.spawn("researcher", "z")).usage.cost_usd == pytest.approx(0.004)
    # What costs nothing that anybody knows of cannot be limited.
    settings(pool(two) + prices)
    with pytest.raises(ConfigError, match=r"the price of openai:m@\S+ is unknown") as caught:
        async with opened(model="smart", limits={"max_cost_usd": 1.0}):
            pass
    assert two[1] in str(caught.value)
    async with opened(model="smart") as rt:
        assert (await rt.spawn("researcher", "w")).usage.cost_usd == pytest.approx(0.002)


async def test_reservation_covers_the_most_expensive_member(
    opened: Opened, settings: Settings, two: tuple[str, str]
) -> None:
    settings(
        pool(two)
        + f'[prices."{two[0]}"]\ninput = 0\noutput = 0\n'
        + f'[prices."{two[1]}"]\ninput = 1000000\noutput = 1000000\n'
    )
    async with opened(model="smart") as rt:
        result = await rt.spawn("researcher", "x", max_cost_usd=0.5)
    assert (result.status, result.usage.turns) == ("budget_exceeded", 0)


async def test_runtimes_share_the_queue_of_an_endpoint(
    opened: Opened, settings: Settings, project: Path
) -> None:
    async with ModelServer(lambda _: say("hello"), slots=2) as server:
        settings(f'[servers."{server.base_url}"]\nslots = 2\n')
        name = f"openai:m@{server.base_url}"
        async with opened(model=name) as one, opened(model=name) as other:
            jobs = [await rt.start("researcher", f"{n}") for n in range(10) for rt in (one, other)]
            assert all([(await job.result()).ok for job in jobs])
    assert server.refused == 0
    async with open_journal(project) as store:
        assert len(await store.runs()) == 2


async def test_password_in_the_base_url_is_sent_and_never_shown(
    opened: Opened, tmp_path: Path
) -> None:
    refusal = failing(429, "Come back tomorrow.", headers={"retry-after": "9999"})
    async with ModelServer([refusal]) as server:
        url = server.base_url.replace("http://", "http://me:hunter2hunter2@")
        variables = {"HOME": str(tmp_path), "OPENAI_BASE_URL": url}
        async with opened(model="openai:m", environment=Environment(variables=variables)) as rt:
            with pytest.raises(RunSuspended, match="accepts no requests") as left:
                await rt.spawn("researcher", "x")
            with pytest.raises(ConfigError, match="is not known") as caught:
                await rt.spawn("researcher", "x", endpoint="http://elsewhere/v1")
    assert server.requests[0].headers["authorization"].startswith("Basic ")
    for text in (str(left.value), str(caught.value)):
        assert "hunter2" not in text
        assert f"127.0.0.1:{server.port}" in text


async def test_one_origin_has_one_queue(opened: Opened, settings: Settings) -> None:
    async with ModelServer(lambda _: say("hello"), slots=1) as server:
        settings(f'[servers."http://LocalHost:{server.port}"]\nslots = 1\n')
        names = [f"openai:m@http://{host}:{server.port}/v1" for host in ("localhost", "LOCALHOST")]
        async with opened(model=names[0]) as one, opened(model=names[1]) as other:
            jobs = [await rt.start("researcher", f"{n}") for n in range(5) for rt in (one, other)]
            assert all([(await job.result()).ok for job in jobs])
    assert server.refused == 0
