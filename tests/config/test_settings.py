from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.config.settings import (
    RUN_BUDGET,
    BudgetSettings,
    EndpointSettings,
    PoolSettings,
    RoleSettings,
    Settings,
    narrow_settings,
)
from retinue.config.settings_file import load_settings
from retinue.domain.grant import Mode
from tests.config.settings_texts import written


def test_layers_are_kept_apart(tmp_path: Path) -> None:
    environment = Environment(variables={"HOME": str(tmp_path / "home")})
    written(environment.user_settings_file, "model = 'mine'")
    written(tmp_path / "retinue.toml", "model = 'theirs'\nmode = 'plan'")
    layers = load_settings(environment, tmp_path)
    assert (layers.user.model, layers.project.model) == ("mine", "theirs")
    assert (layers.merged.model, layers.merged.mode) == ("mine", Mode.PLAN)


def test_project_model_is_used_without_a_user_model() -> None:
    assert narrow_settings(Settings(), Settings(model="theirs")).model == "theirs"


@pytest.mark.parametrize(
    ("user", "project", "merged"),
    [
        (None, None, None),
        (None, "plan", "plan"),
        (None, "normal", "normal"),
        # Where the user says nothing, normal is what holds.
        (None, "auto", "normal"),
        (None, "dangerous", "normal"),
        ("auto", None, "auto"),
        ("auto", "plan", "plan"),
        ("auto", "dangerous", "auto"),
        ("dangerous", "auto", "auto"),
        ("plan", "normal", "plan"),
    ],
)
def test_project_can_only_narrow_the_mode(
    user: str | None, project: str | None, merged: str | None
) -> None:
    def settings(mode: str | None) -> Settings:
        return Settings(mode=None if mode is None else Mode(mode))

    assert narrow_settings(settings(user), settings(project)) == narrow_settings(
        settings(merged), Settings()
    )


@pytest.mark.parametrize(
    ("user", "project", "merged"),
    [
        (None, 2, 2),
        (None, 53, 3),
        (8, None, 8),
        (8, 20, 8),
        (8, 1, 1),
    ],
)
def test_project_can_only_lower_concurrency(
    user: int | None, project: int | None, merged: int
) -> None:
    both = narrow_settings(Settings(max_concurrent=user), Settings(max_concurrent=project))
    assert both.max_concurrent == merged


def test_project_can_only_lower_depth() -> None:
    assert narrow_settings(Settings(), Settings(max_depth=99)).max_depth == 2
    assert narrow_settings(Settings(max_depth=9), Settings(max_depth=99)).max_depth == 9
    assert narrow_settings(Settings(max_depth=9), Settings(max_depth=1)).max_depth == 1


@pytest.mark.parametrize("limit", BudgetSettings.__struct_fields__)
def test_project_can_only_lower_the_budget(limit: str) -> None:
    def merged(user: float | None, project: float | None) -> float | None:
        one, two = (
            Settings(budget=BudgetSettings(**{limit: value}))  # type: ignore[arg-type]
            for value in (user, project)
        )
        value: float | None = getattr(narrow_settings(one, two).budget, limit)
        return value

    assert merged(50, 20) == 20
    assert merged(20, 50) == 20
    assert merged(20, None) == 20
    default = getattr(RUN_BUDGET, limit)
    # More than what holds where nobody says anything is more than the user allows.
    assert merged(None, 10**9) == (10**9 if default is None else default)


def test_user_role_wins_over_project_role() -> None:
    def settings(**roles: str) -> Settings:
        return Settings(roles={name: RoleSettings(instructions=t) for name, t in roles.items()})

    both = narrow_settings(settings(a="mine", b="mine"), settings(b="theirs", c="theirs"))
    assert {name: role.instructions for name, role in both.roles.items()} == {
        "a": "mine",
        "b": "mine",
        "c": "theirs",
    }


def test_project_cannot_set_pools_and_servers() -> None:
    theirs = Settings(
        pools={"smart": PoolSettings(endpoints=("openai:m@http://evil/v1",))},
        servers={"http://a": EndpointSettings(slots=9)},
    )
    both = narrow_settings(Settings(), theirs)
    assert (both.pools, both.servers) == ({}, {})
