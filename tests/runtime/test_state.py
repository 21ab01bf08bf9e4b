from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.errors import ConfigError, StoreError
from retinue.models.scripted.model import ScriptedModel, call, hold, say
from retinue.testing.clock import FakeClock


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(variables={"HOME": str(tmp_path)})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project


@pytest.mark.parametrize("what", ["folder", "database"])
async def test_state_is_never_kept_behind_a_link(
    project: Path, tmp_path: Path, environment: Environment, what: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    if what == "folder":
        (project / ".retinue").symlink_to(outside)
    else:
        (project / ".retinue").mkdir()
        (project / ".retinue" / "retinue.db").symlink_to(outside / "retinue.db")
    with pytest.raises(StoreError, match="a link to somewhere else; remove it"):
        async with retinue.open(project, model=ScriptedModel([]), environment=environment):
            pass
    assert list(outside.iterdir()) == []


async def test_the_state_of_a_project_ignores_itself_but_not_its_agents(
    project: Path, environment: Environment
) -> None:
    async with retinue.open(project, model=ScriptedModel([]), environment=environment):
        pass
    assert (project / ".retinue" / ".gitignore").read_text() == "*\n!/agents/\n!/agents/**\n"


async def test_a_limit_of_money_without_a_price_is_refused(
    project: Path, environment: Environment
) -> None:
    with pytest.raises(ConfigError) as caught:
        async with retinue.open(
            project, model=ScriptedModel([]), limits={"max_cost_usd": 1.0}, environment=environment
        ):
            pass
    assert str(caught.value) == (
        "max_cost_usd is set, and nobody knows what scripted costs; write its price into your"
        ' settings: [prices."scripted"] with input and output.'
    )


async def test_a_price_is_found_by_the_bare_name_of_a_model(
    project: Path, tmp_path: Path, environment: Environment
) -> None:
    settings = tmp_path / ".config" / "retinue"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text('[prices."script.yaml"]\ninput = 100\noutput = 100\n')
    (project / "script.yaml").write_text("steps:\n  - say: done\n")
    async with retinue.open(
        project,
        model="scripted:script.yaml",
        limits={"max_cost_usd": 100.0},
        environment=environment,
    ) as rt:
        result = await rt.spawn("researcher", "Look.")
    assert result.ok
    assert result.usage.cost_usd == pytest.approx(result.usage.tokens * 100 / 1_000_000)


async def test_a_child_whose_parent_runs_out_of_time_says_so(
    project: Path, environment: Environment
) -> None:
    clock, asked, never = FakeClock(), asyncio.Event(), asyncio.Event()

    def listen(event: retinue.Event) -> None:
        if event.type == "turn.started" and event.agent_id == "a1":
            asked.set()

    model = ScriptedModel(
        {
            "Lead.": [call("spawn_agent", task="Wait.", role="researcher", timeout_s=3_000)],
            "Wait.": [hold(never, say("never"))],
        },
        strict=False,
    )
    async with retinue.open(
        project,
        model=model,
        clock=clock,
        limits={"timeout_s": 60.0, "max_retries": 0},
        listeners=retinue.Listeners(on_event=listen),
        environment=environment,
    ) as rt:
        led = asyncio.create_task(rt.run("Lead."))
        await asked.wait()
        clock.advance(60)
        result = await led
        events = [event async for event in rt.events(result.id)]
    assert result.status == "timeout"
    view = retinue.fold(events)
    assert view.agents["a1"].close_reason == "its parent ran out of time"


async def test_when_money_runs_out_there_is_a_last_word(
    project: Path, tmp_path: Path, environment: Environment
) -> None:
    settings = tmp_path / ".config" / "retinue"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text("[prices.scripted]\ninput = 10\noutput = 10\n")
    # It goes on for as long as it has tools.
    step = lambda request: call("list_dir") if request.tools else say("That is all.")  # noqa: E731
    model = ScriptedModel([step] * 20, strict=False)
    async with retinue.open(
        project, model=model, limits={"max_cost_usd": 0.04}, environment=environment
    ) as rt:
        result = await rt.spawn("researcher", "Look around.", max_tokens=1_000_000)
    assert result.status == "budget_exceeded"
    assert result.error == "max_cost_usd 0.04 reached"
    assert result.response == "That is all."
    assert result.usage.cost_usd <= 0.04
