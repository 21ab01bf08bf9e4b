"""Roles: five built in, as data files, and what the user's settings make of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec

from retinue.config.settings import RoleSettings
from retinue.domain.budget import Budget
from retinue.domain.role import Role
from retinue.domain.scope import scope
from retinue.errors import ConfigError, ContractError

LEAD = Role(
    name="lead",
    description="The root of a run: does the user's job.",
    instructions=(
        "You are a coding agent at work in the user's project. Do the task with the tools, look"
        " before you change, check what you claim."
    ),
    budget=Budget(
        max_tool_calls=100, max_turns=200, max_tokens=None, max_context_tokens=32_768,
        timeout_s=3_600, max_retries=0,
    ),
)  # fmt: skip


@cache
def builtin_roles() -> Mapping[str, Role]:
    found: dict[str, Role] = {}
    for item in files(__package__).joinpath("roles").iterdir():
        if item.name.endswith(".toml"):
            name = item.name.removesuffix(".toml")
            spec = msgspec.convert(tomllib.loads(item.read_text("utf-8")), RoleSettings)
            found[name] = _role(name, spec, None, "built in")
    return dict(sorted(found.items()))


def configured_roles(overrides: Mapping[str, RoleSettings], source: str) -> dict[str, Role]:
    """The built-in roles with the user's changes, and the user's own."""
    roles = dict(builtin_roles())
    for name, spec in overrides.items():
        try:
            roles[name] = _role(name, spec, roles.get(name), source)
        except ContractError as error:
            raise ConfigError(f"{source}: role {name!r}: {error}") from error
    return roles


def _role(name: str, spec: RoleSettings, before: Role | None, source: str) -> Role:
    if before is None:
        if not spec.instructions:
            raise ContractError("a new role needs `instructions`.")
        before = Role(name=name, description="", instructions="", source=source)
    budget = {field: getattr(before.budget, field) for field in Budget.__struct_fields__}
    budget |= {f: v for f in budget if (v := getattr(spec.budget, f)) is not None}
    return Role(
        name=name,
        description=spec.description or before.description or f"The role {name}.",
        instructions=spec.instructions or before.instructions,
        tools=before.tools if spec.tools is None else spec.tools,
        budget=Budget(**budget),
        write_scope=before.write_scope if spec.write is None else scope(*spec.write),
        spawns=before.spawns if spec.spawns is None else spec.spawns,
        model=spec.model or before.model,
        source=source,
    )
