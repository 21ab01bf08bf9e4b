"""A role: the usual terms for a kind of work. It is only an input to writing a contract."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.contract import WorkspaceKind
from retinue.domain.grant import Mode
from retinue.domain.scope import ANYWHERE
from retinue.errors import ConfigError

BOOTSTRAP_FILES = ("AGENTS.md", "ENVIRONMENT.md")


class Role(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Five are built in; a `profile` is one that the user wrote.

    `tools` None means every tool that the parent has. `spawns` names the roles it may employ. Its
    prompt is put together from `bootstrap_files`, then `prompt_file`, then `instructions`.
    `problems` are the parts of an agent file that mean nothing here, a line each.
    """

    name: str
    description: str
    instructions: str
    profile: bool = False
    tools: tuple[str, ...] | None = None
    mode: Mode | None = None
    budget: Budget = Budget()
    write_scope: tuple[tuple[str, ...], ...] = ANYWHERE
    workspace: WorkspaceKind | None = None
    spawns: tuple[str, ...] = ()
    model: str | None = None
    bootstrap_files: tuple[str, ...] = BOOTSTRAP_FILES
    prompt_file: str | None = None
    source: str = "built in"
    problems: tuple[str, ...] = ()


def pick(roles: Mapping[str, Role], name: str) -> Role:
    if name in roles:
        return roles[name]
    raise ConfigError(f"Unknown role {name!r}; there are: {', '.join(sorted(roles))}.")
