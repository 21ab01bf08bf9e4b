"""Skills and slash commands of user and project: usable ones, untrusted ones, and problems.

Files of a project are used only with the user's trust. There is one trust request for each folder.
It covers the content of these files, and of all other files in the folder of a skill. If one of
them changes, retinue asks again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from retinue.config.agent_folders import AgentFolder, InvalidFile
from retinue.config.command_files import read_commands
from retinue.config.environment import Environment
from retinue.config.server_code import files_digest
from retinue.config.skill_files import SKILL_FILE, read_skills
from retinue.config.tool_translation import Dialect
from retinue.config.trust import TrustRequest
from retinue.domain.plural import listed
from retinue.domain.skill import Skill
from retinue.domain.slash_command import SlashCommand

SKILLS, COMMANDS = "skills", "commands"
_EFFECTS = {
    SKILLS: "tells agents how to work, if they load",
    COMMANDS: "is sent to agents, with the output of its shell commands, if you type",
}
_SHOWN_NAMES = 12
# If two folders define the same name, the earlier folder wins, and the user's wins over both.
_SKILL_PLACES = (
    (".retinue/skills", Dialect.RETINUE),
    (".claude/skills", Dialect.CLAUDE),
    (".agents/skills", Dialect.CODEX),
)
_COMMAND_PLACES = (
    (".retinue/commands", Dialect.RETINUE),
    (".claude/commands", Dialect.CLAUDE),
    (".opencode/command", Dialect.OPENCODE),
)
Item = TypeVar("Item", bound=Skill | SlashCommand)


class SkillsAndCommands(msgspec.Struct, frozen=True, kw_only=True):
    """Skills and commands by name, and a line for each file that cannot be used."""

    skills: dict[str, Skill]
    untrusted_skills: tuple[Skill, ...] = ()
    commands: dict[str, SlashCommand]
    """Includes marked commands of an untrusted project: typing one says why it does not run."""
    skill_problems: tuple[str, ...] = ()
    command_problems: tuple[str, ...] = ()


def load_skills_and_commands(
    project: Path,
    environment: Environment,
    is_granted: Callable[[TrustRequest], bool],
    models: Mapping[str, str],
) -> SkillsAndCommands:
    """Read all folders. `is_granted` decides about each folder of the project.

    `models` are the user's short names of models, in lower case.
    """
    problems: dict[str, list[str]] = {SKILLS: [], COMMANDS: []}
    skills: dict[str, Skill] = {}
    commands: dict[str, SlashCommand] = {}
    untrusted: list[Skill] = []
    skill_commands: list[SlashCommand] = []
    for folder in _folders(_SKILL_PLACES, project, environment):
        found = _valid(read_skills(folder, models), problems[SKILLS])
        trusted = _is_usable(SKILLS, folder, found, is_granted)
        loadable = [one for one in found if isinstance(one, Skill)]
        if trusted:
            _add(skills, loadable, problems[SKILLS])
        else:
            untrusted += loadable
        skill_commands += _marked((one for one in found if isinstance(one, SlashCommand)), trusted)
    for folder in _folders(_COMMAND_PLACES, project, environment):
        read = _valid(read_commands(folder, models), problems[COMMANDS])
        trusted = _is_usable(COMMANDS, folder, read, is_granted)
        _add(commands, _marked(read, trusted), problems[COMMANDS])
    _add(commands, skill_commands, problems[COMMANDS])
    return SkillsAndCommands(
        skills=dict(sorted(skills.items())),
        untrusted_skills=tuple(untrusted),
        commands=dict(sorted(commands.items())),
        skill_problems=tuple(problems[SKILLS]),
        command_problems=tuple(problems[COMMANDS]),
    )


def _marked(commands: Iterable[SlashCommand], trusted: bool) -> list[SlashCommand]:
    return [msgspec.structs.replace(one, trusted=trusted) for one in commands]


def _valid(items: Iterable[Item | InvalidFile], problems: list[str]) -> list[Item]:
    found: list[Item] = []
    for item in items:
        if isinstance(item, InvalidFile):
            problems.append(str(item))
        else:
            found.append(item)
    return found


def _add(items: dict[str, Item], found: Iterable[Item], problems: list[str]) -> None:
    for item in found:
        first = items.setdefault(item.name, item)
        if first is not item:
            problems.append(f"{item.place}: left out: {first.place} defines {item.name!r} already")


def _is_usable(
    kind: str,
    folder: AgentFolder,
    found: Sequence[Skill | SlashCommand],
    is_granted: Callable[[TrustRequest], bool],
) -> bool:
    if folder.within is None or not found:
        return True
    mark = "/" if kind == COMMANDS else ""
    names = [f"{mark}{item.name}" for item in found]
    effect = f"{_EFFECTS[kind]} {listed(names, _SHOWN_NAMES)}"
    others = ""
    if kind == SKILLS:
        others = files_digest([f"{item.place}/{SKILL_FILE}" for item in found], str(folder.within))
    covered = msgspec.json.encode([folder.display_path, found, others])
    content = hashlib.sha256(covered).digest()
    return is_granted(
        TrustRequest(kind, folder.display_path, f"{kind[:-1]} files", effect, content)
    )


def _folders(
    places: tuple[tuple[str, Dialect], ...], project: Path, environment: Environment
) -> Iterator[AgentFolder]:
    """The user's folders, then the project's."""
    seen = set()
    for place, dialect in places:
        path = environment.home / place
        if dialect in (Dialect.RETINUE, Dialect.OPENCODE):
            path = environment.config_home / place.removeprefix(".")
        seen.add(os.path.realpath(path))
        yield AgentFolder(path=path, display_path=environment.display_path(path), dialect=dialect)
    root = Path(os.path.realpath(project))
    for place, dialect in places:
        # In the home directory the project's folders are the user's.
        if os.path.realpath(root / place) not in seen:
            yield AgentFolder(path=root / place, display_path=place, dialect=dialect, within=root)
