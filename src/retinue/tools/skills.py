"""Tool that loads skills. Its description lists them, so without skills a prompt has no list.

The list has a fixed number of bytes. The names of 200 skills fit into it; descriptions are cut to
the bytes that are left. The list is sorted, so that prompts have a stable beginning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, ToolSpec
from retinue.domain.paths import STATE_FOLDER
from retinue.domain.skill import LOAD_SKILL, Skill
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.threads import in_daemon_thread
from retinue.tools.excerpt import excerpt
from retinue.tools.files import read_file
from retinue.tools.function import FunctionTool

MAX_LIST_BYTES = 16_000
"""About 4,000 tokens."""
MAX_LISTED_FILES = 50
_HEAD = "Load a skill, or a file of it, when your task fits its description:"

ReadText = Callable[[Path, Path | None], tuple[str, str]]
"""Reads a file inside a folder: returns its text and a problem, of which one is empty."""


class SkillTool:
    """`load_skill`, for the skills of a project and its user."""

    effect = Effect.READ

    def __init__(self, skills: Mapping[str, Skill], *, read: ReadText) -> None:
        self._skills = skills
        self._read = read
        self._function = FunctionTool(
            self._load, name=LOAD_SKILL, description="", effect=Effect.READ
        )
        self.spec = self.spec_for(Grant())

    def spec_for(self, grant: Grant) -> ToolSpec:
        shown = [skill for name, skill in self._skills.items() if grant.may_load(name)]
        return ToolSpec(LOAD_SKILL, skill_list(shown), self._function.spec.parameters)

    async def run(self, arguments: Mapping[str, Any], ctx: ToolContext) -> ToolOutcome:
        return await self._function.run(arguments, ctx)

    async def _load(
        self, ctx: ToolContext, name: str, file: str | None = None, start: int | None = None
    ) -> ToolOutcome:
        skill = self._skills.get(name.strip())
        if skill is None or not ctx.may_load(skill.name):
            names = ", ".join(filter(ctx.may_load, self._skills)) or "none"
            raise ToolFailure(f"There is no skill {name!r}; there are: {names}.")
        if file is None:
            text = excerpt(skill.name, skill.body.encode(), start, None)
            about = await in_daemon_thread(lambda: _about(skill))
            content = f"{text}\n\n{about}" if start is None else text
            return ToolOutcome(content=content, only_tools=skill.allowed_tools)
        if skill.of_project and not skill.place.startswith(STATE_FOLDER):
            # The contract says which files of the project the agent may read.
            outcome = await read_file(ctx, f"{skill.place}/{file}", start)
            return msgspec.structs.replace(outcome, only_tools=skill.allowed_tools)
        folder = Path(skill.folder)
        text, problem = await in_daemon_thread(lambda: self._read(folder / file, folder))
        if problem:
            problem = problem.replace("the project", "the skill")
            raise ToolFailure(f"{file} of the skill {name}: {problem}.")
        content = excerpt(file, text.encode(), start, None)
        return ToolOutcome(content=content, only_tools=skill.allowed_tools)


def skill_list(skills: list[Skill]) -> str:
    """Names and descriptions in at most MAX_LIST_BYTES. Long descriptions are cut first."""
    names = [skill.name for skill in skills]
    texts = [skill.description.encode() for skill in skills]
    room = MAX_LIST_BYTES - len(_HEAD) - sum(len(f"\n{name}: ".encode()) for name in names)
    while room < 0:
        room += len(f"\n{names.pop()}: ".encode())
    low, high = 0, MAX_LIST_BYTES
    while low < high:
        most = (low + high + 1) // 2
        fits = sum(min(len(text), most) for text in texts[: len(names)]) <= room
        low, high = (most, high) if fits else (low, most - 1)
    lines = [
        f"{name}: {_cut(text, low)}" if low else name
        for name, text in zip(names, texts, strict=False)
    ]
    return "\n".join([_HEAD, *lines])


def _cut(text: bytes, most: int) -> str:
    if len(text) <= most:
        return text.decode()
    return text[: max(0, most - 3)].decode("utf-8", "ignore") + "…"


def _about(skill: Skill) -> str:
    """Where the files of a skill are, and the only tools that it leaves."""
    files, more = _files(skill.folder)
    where = skill.place if skill.of_project else skill.folder
    lines = [f"[Folder of the skill: {where}"]
    if files:
        listed = ", ".join(files) + (f" and {more} more" if more else "")
        lines.append(f"Files, for load_skill or run_command: {listed}")
    if skill.allowed_tools:
        lines.append(
            "From now on you may use these tools only, as far as you have them:"
            f" {', '.join(skill.allowed_tools)}"
        )
    return "\n".join(lines) + "]"


def _files(folder: str) -> tuple[list[str], int]:
    found: list[str] = []
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        below = os.path.relpath(path, folder)
        found += [os.path.normpath(os.path.join(below, name)) for name in names]
        if len(found) > 20 * MAX_LISTED_FILES:
            break
    shown = sorted(name for name in found if name != "SKILL.md" and name.isprintable())
    return shown[:MAX_LISTED_FILES], max(0, len(shown) - MAX_LISTED_FILES)
