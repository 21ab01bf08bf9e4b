"""Opening a runtime: what must be known before anything is run."""

from __future__ import annotations

from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.errors import ConfigError
from retinue.models.scripted.model import ScriptedModel


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(variables={"HOME": str(tmp_path)})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project


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
