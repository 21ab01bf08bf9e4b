"""Roles: defaults for a kind of work. A role grants nothing; contracts are drafted from it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.contract import WorkspaceKind
from retinue.domain.grant import Mode
from retinue.domain.sampling import NO_SAMPLING, Sampling
from retinue.domain.scope import ANYWHERE
from retinue.errors import ConfigError

GENERAL = "general"
"""The role of a child for which none is named."""
BOOTSTRAP_FILES = ("AGENTS.md", "ENVIRONMENT.md")
INSTRUCTION_FILES = (
    "AGENTS.md", "CLAUDE.md", "GEMINI.md", ".github/copilot-instructions.md", ".cursorrules",
)  # fmt: skip
"""Names of the file with a project's instructions for agents. The first that exists is read."""


class Role(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Defaults for agents of one kind. Six roles are built in; users write profiles.

    The system prompt consists of `bootstrap_files`, then `prompt_file`, then `instructions`.

    ```python
    role = rt.roles["researcher"]
    print(role.description, role.tools, role.budget.max_tool_calls)
    ```
    """

    name: str
    description: str
    instructions: str
    """If `general` has none, it has those of its parent's role."""
    profile: bool = False
    """Whether the user wrote it."""
    tools: tuple[str, ...] | None = None
    """None: every tool of the parent."""
    mode: Mode | None = None
    web_hosts: tuple[str, ...] | None = None
    """Hosts that it may fetch from; None: those of the parent."""
    budget: Budget = Budget()
    write_scope: tuple[tuple[str, ...], ...] = ANYWHERE
    workspace: WorkspaceKind | None = None
    spawns: tuple[str, ...] = ()
    """Roles of the children that it may spawn."""
    skills: tuple[str, ...] | None = None
    """The only skills that it may load; None: every skill of the parent."""
    model: str | None = None
    sampling: Sampling = NO_SAMPLING
    bootstrap_files: tuple[str, ...] = BOOTSTRAP_FILES
    prompt_file: str | None = None
    source: str = "built in"
    problems: tuple[str, ...] = ()
    """Parts of an agent file that have no effect here, a line each."""


def find_role(roles: Mapping[str, Role], name: str) -> Role:
    """The role of that name. Raises ConfigError."""
    if name in roles:
        return roles[name]
    raise ConfigError(f"Unknown role {name!r}; there are: {', '.join(sorted(roles))}.")
