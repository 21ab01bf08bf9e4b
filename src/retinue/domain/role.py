"""A role: the usual terms for a kind of work. It is only an input to writing a contract."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.scope import ANYWHERE
from retinue.errors import ConfigError


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """`tools` None means every tool that the parent has. `spawns` names the roles it may employ."""

    name: str
    description: str
    instructions: str
    tools: tuple[str, ...] | None = None
    budget: Budget = Budget()
    write_scope: tuple[tuple[str, ...], ...] = ANYWHERE
    spawns: tuple[str, ...] = ()
    model: str | None = None
    source: str = "built in"


def pick(roles: Mapping[str, Role], name: str) -> Role:
    if name in roles:
        return roles[name]
    raise ConfigError(f"Unknown role {name!r}; there are: {', '.join(sorted(roles))}.")
