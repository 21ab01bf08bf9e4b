"""Skills of the user and the project: which count, which wait for trust, what is wrong.

What a project adds to prompts counts only with the user's trust, one request for each folder. A
file that changes changes the request, so the user is asked again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from retinue.config.agent_folders import AgentFolder
from retinue.config.environment import Environment
from retinue.config.skill_files import InvalidFile, read_skills
from retinue.config.tool_translation import Dialect
from retinue.config.trust import TrustRequest
from retinue.domain.skill import Skill

SKILLS = "skills"
_SHOWN_NAMES = 12
# If two folders define the same name, the earlier folder wins, and the user's wins over both.
_SKILL_PLACES = (
    (".retinue/skills", Dialect.RETINUE),
    (".claude/skills", Dialect.CLAUDE),
    (".agents/skills", Dialect.CODEX),
)


class PromptFiles(msgspec.Struct, frozen=True, kw_only=True):
    """`skills` can be used, by name. `problems` has a line for each file that cannot."""

    skills: dict[str, Skill]
    untrusted_skills: tuple[Skill, ...] = ()
    problems: tuple[str, ...] = ()


def load_prompt_files(
    project: Path,
    environment: Environment,
    is_granted: Callable[[TrustRequest], bool],
) -> PromptFiles:
    """Read all folders. `is_granted` decides about each folder of the project."""
    skills: dict[str, Skill] = {}
    untrusted: list[Skill] = []
    problems: list[str] = []
    for folder in _folders(_SKILL_PLACES, project, environment):
        found: list[Skill] = []
        for item in read_skills(folder):
            if isinstance(item, InvalidFile):
                problems.append(str(item))
            else:
                found.append(item)
        if found and folder.within is not None and not is_granted(_request(folder, found)):
            untrusted += found
            continue
        for skill in found:
            first = skills.setdefault(skill.name, skill)
            if first is not skill:
                problems.append(
                    f"{skill.place}: left out: {first.place} defines {skill.name!r} already"
                )
    return PromptFiles(
        skills={name: skills[name] for name in sorted(skills)},
        untrusted_skills=tuple(untrusted),
        problems=tuple(problems),
    )


def _folders(
    places: tuple[tuple[str, Dialect], ...], project: Path, environment: Environment
) -> Iterator[AgentFolder]:
    """The user's folders, then the project's."""
    seen = set()
    for place, dialect in places:
        path = environment.home / place
        if dialect is Dialect.RETINUE:
            path = environment.config_home / place.removeprefix(".")
        seen.add(os.path.realpath(path))
        yield AgentFolder(path=path, display_path=environment.display_path(path), dialect=dialect)
    root = Path(os.path.realpath(project))
    for place, dialect in places:
        # In the home directory the project's folders are the user's.
        if os.path.realpath(root / place) not in seen:
            yield AgentFolder(path=root / place, display_path=place, dialect=dialect, within=root)


def _request(folder: AgentFolder, skills: list[Skill]) -> TrustRequest:
    names = [skill.name for skill in skills]
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    effect = f"tells agents how to work: {', '.join(names[:_SHOWN_NAMES])}{more}"
    content = hashlib.sha256(msgspec.json.encode([folder.display_path, skills])).digest()
    return TrustRequest(SKILLS, folder.display_path, "skill files", effect, content)
