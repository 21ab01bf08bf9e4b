"""Opening a runtime: what must be known before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.errors import ConfigError, UsageError
from retinue.events import CircuitBreakerTripped, Event
from retinue.models.scripted.model import ScriptedModel, call, calls, say


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(variables={"HOME": str(tmp_path)})


async def test_a_cost_limit_needs_a_price(project: Path, environment: Environment) -> None:
    with pytest.raises(ConfigError) as caught:
        async with retinue.open(
            project, model=ScriptedModel([]), limits={"max_cost_usd": 1.0}, environment=environment
        ):
            pass
    assert str(caught.value) == (
        "max_cost_usd is set, but the price of scripted is unknown; add it to your"
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


@pytest.mark.parametrize(
    ("budget", "run_calls", "child_calls"),
    [("tight", 50, 7), (None, 100, 15), ("generous", 400, 60)],
)
async def test_a_budget_scales_all_limits(
    project: Path,
    environment: Environment,
    budget: Literal["tight", "normal", "generous"] | None,
    run_calls: int,
    child_calls: int,
) -> None:
    async with retinue.open(
        project,
        model=ScriptedModel([]),
        budget=budget,
        limits={"max_turns": 9},
        environment=environment,
    ) as rt:
        run, child = rt.budget, rt.roles["researcher"].budget
    # A limit that is given stays as it is.
    assert (run.max_tool_calls, run.max_turns) == (run_calls, 9)
    assert child.max_tool_calls == child_calls


async def test_a_tight_budget_warns_sooner(project: Path, environment: Environment) -> None:
    reads = [call("list_dir", path=".") for _ in range(30)]
    seen: list[Event] = []
    async with retinue.open(
        project,
        model=ScriptedModel([calls(*reads), say("Done.")]),
        budget="tight",
        listeners=retinue.Listeners(on_event=seen.append),
        environment=environment,
    ) as rt:
        assert (await rt.run("Look.")).ok
    (tripped,) = [e.fact for e in seen if isinstance(e.fact, CircuitBreakerTripped)]
    assert (tripped.stage, tripped.of) == ("warn", 50)


async def test_an_unknown_budget(project: Path, environment: Environment) -> None:
    with pytest.raises(UsageError, match=r"Unknown budget 'huge'; there are: tight, normal, gen"):
        async with retinue.open(
            project,
            model=ScriptedModel([]),
            budget="huge",  # type: ignore[arg-type]
            environment=environment,
        ):
            pass


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_concurrent": 0}, "max_concurrent must be at least 1, not 0."),
        ({"max_concurrent": -1}, "max_concurrent must be at least 1, not -1."),
        ({"limits": {"nope": 1}}, "Unknown limit 'nope'; there are: max_tool_calls, "),
    ],
)
async def test_wrong_limits_are_refused(
    project: Path, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        async with retinue.open(project, model=ScriptedModel([]), **wrong):  # type: ignore[arg-type]
            pass
    assert str(refused.value).startswith(message)
