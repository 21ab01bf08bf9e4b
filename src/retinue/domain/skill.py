"""Skills: instructions that a model loads when a task needs them."""

from __future__ import annotations

import msgspec

LOAD_SKILL = "load_skill"


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
    """The tools that its author had in mind. They grant nothing."""
    problems: tuple[str, ...] = ()
    """Parts of the file that have no effect here, a line each."""
