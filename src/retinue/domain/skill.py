"""Skills: instructions that a model loads when a task needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from retinue.domain.approval import Rule, Rules, parse_rule
from retinue.errors import ConfigError

LOAD_SKILL = "load_skill"

UNLIMITED_TOOLS = frozenset(
    {LOAD_SKILL, "ask_user", "spawn_await", "agent_message", "agent_cancel", "agent_result"}
)
"""Tools that `allowed-tools` leaves: they read skills, ask the user, or are about children that
the agent has already."""


def skill_allows(
    allowed_tools: tuple[str, ...], tool: str, subject: str, *, is_command: bool
) -> bool:
    """Whether a skill's `allowed_tools` leave a call. `subject` is the command or the path."""
    if tool in UNLIMITED_TOOLS:
        return True
    rules = tuple(rule for name in allowed_tools for rule in _rules(name))
    return Rules(allow=rules).covers(tool, subject, is_command=is_command)


def _rules(name: str) -> Iterator[Rule]:
    with suppress(ConfigError):  # A name that is no rule stands for no tool.
        yield parse_rule(name)


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """A folder with a `SKILL.md`, as it was when the runtime was opened."""

    name: str
    description: str
    body: str
    folder: str
    """Absolute path of the folder."""
    place: str
    """Path of the folder in messages; for a skill of the project, relative to the project."""
    of_project: bool = False
    allowed_tools: tuple[str, ...] = ()
    """Rules for tools, such as `Bash(git log:*)`. An agent that loads the skill may make no other
    calls from then on. They grant nothing."""
    problems: tuple[str, ...] = ()
    """Parts of the file that have no effect here, a line each."""
