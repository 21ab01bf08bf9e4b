"""Skill files: finds the `SKILL.md` folders of retinue and of other coding agents, and parses them.

The rules are those of the Agent Skills format. A skill that breaks one is reported; where Claude
Code can use it all the same, so can agents.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Mapping

import msgspec

from retinue.config.agent_files import one_line
from retinue.config.agent_folders import AgentFolder, InvalidFile, list_folder, read_text
from retinue.config.command_files import parse_command
from retinue.config.frontmatter import (
    as_bool,
    as_prose,
    as_text,
    as_tools,
    normalize_key,
    parse_front_matter,
)
from retinue.config.tool_translation import COMMON_NAMES, Dialect
from retinue.domain.skill import Skill
from retinue.domain.slash_command import SlashCommand

SKILL_FILE = "SKILL.md"
MAX_NAME = 64
MAX_DESCRIPTION = 1_024
FIELDS = ("name", "description", "license", "allowed-tools", "metadata", "compatibility")
HIDING_FIELD = "disable-model-invocation"
_IGNORED = tuple(normalize_key(key) for key in (*FIELDS, HIDING_FIELD))


def read_skills(
    folder: AgentFolder, models: Mapping[str, str]
) -> Iterator[Skill | SlashCommand | InvalidFile]:
    """The skills of a folder, by name. A missing folder has none.

    Skills that only people may start are slash commands.
    """
    names, problem = list_folder(folder)
    if problem:
        yield InvalidFile(folder.display_path, problem)
    for name in names:
        path = folder.path / name / SKILL_FILE
        if not os.path.lexists(path):
            continue
        place = one_line(f"{folder.display_path}/{name}", 200)
        text, problem = read_text(path, folder.within)
        if problem:
            yield InvalidFile(place, problem)
        else:
            yield _parse(text, name, place, folder, models)


def _parse(
    text: str, folder_name: str, place: str, folder: AgentFolder, models: Mapping[str, str]
) -> Skill | SlashCommand | InvalidFile:
    matter = parse_front_matter(text, known=("name", "description", "license", "allowedtools"))
    name = unicodedata.normalize("NFKC", folder_name)
    given = unicodedata.normalize("NFKC", as_text(matter.fields.get("name")) or "")
    if folder.dialect is Dialect.CODEX and given and _is_usable(given):
        name = given  # Codex and opencode do so. Claude Code uses the name of the folder.
    description = as_prose(matter.fields.get("description"))
    problem = ""
    if not matter.found:
        problem = "it has no front matter with name and description"
    elif not _is_usable(name):
        problem = f"the name of a folder has at most {MAX_NAME} letters, digits, and `-`, `_`, `.`"
    elif not description:
        problem = "it has no description"
    if problem:
        return InvalidFile(place, problem)
    if as_bool(matter.fields.get(HIDING_FIELD)):
        command = parse_command(text, name, place, folder, models, _IGNORED)
        if isinstance(command, InvalidFile):
            return command
        body = f"Base directory for this skill: {place}\n\n{command.body}"
        return msgspec.structs.replace(command, body=body)
    tools = as_tools(matter.fields.get("allowed-tools"))
    tools = [ours for tool in tools for ours in COMMON_NAMES.get(tool.casefold(), (tool,))]
    unknown = sorted(key for key in matter.fields if key not in FIELDS)
    return Skill(
        name=name,
        description=one_line(description, MAX_DESCRIPTION),
        body=matter.body,
        folder=os.path.realpath(folder.path / folder_name),
        place=place,
        of_project=folder.within is not None,
        allowed_tools=tuple(one_line(tool, 200) for tool in tools),
        problems=(
            *matter.problems,
            *_broken_rules(given, folder_name, name, description),
            *([f"fields without effect: {', '.join(unknown)}"] if unknown else ()),
        ),
    )


def _is_usable(name: str) -> bool:
    return len(name) <= MAX_NAME and all(letter.isalnum() or letter in "-_." for letter in name)


def _broken_rules(name: str, folder: str, used: str, description: str) -> Iterator[str]:
    """Problems of a skill that agents can use all the same."""
    valid = all(letter.isalnum() or letter == "-" for letter in name) and name == name.lower()
    shown = one_line(name, MAX_NAME)
    if not name:
        yield "it has no name; that of its folder is used"
    elif name != used:
        yield f"its name {shown!r} differs from that of its folder, which is used"
    elif name != unicodedata.normalize("NFKC", folder):
        yield f"its name {shown!r} differs from that of its folder, {one_line(folder, MAX_NAME)!r}"
    elif not valid or name.startswith("-") or name.endswith("-") or "--" in name:
        yield f"a name has small letters, digits and single hyphens between them, not {shown!r}"
    if len(description) > MAX_DESCRIPTION:
        yield f"its description has {len(description):,} characters; {MAX_DESCRIPTION:,} are used"
