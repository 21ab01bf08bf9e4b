"""Skill files: finds the `SKILL.md` folders of retinue and of other coding agents, and parses them.

The rules are those of the Agent Skills format. A skill that breaks one is reported; where Claude
Code can use it all the same, so can agents, under the name of its folder.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator

import msgspec

from retinue.config.agent_files import one_line
from retinue.config.agent_folders import AgentFolder, list_folder, read_text
from retinue.config.frontmatter import as_bool, as_list, as_prose, as_text, parse_front_matter
from retinue.config.tool_translation import COMMON_NAMES
from retinue.domain.skill import Skill

SKILL_FILE = "SKILL.md"
MAX_NAME = 64
MAX_DESCRIPTION = 1_024
FIELDS = ("name", "description", "license", "allowed-tools", "metadata", "compatibility")
_TOOL = re.compile(r"[^\s,()]+(?:\([^()]*\))?")  # Read, Bash(git log:*)
HIDING_FIELD = "disable-model-invocation"


class InvalidFile(msgspec.Struct, frozen=True):
    """A file that is left out, and why."""

    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: left out: {self.problem}"


def read_skills(folder: AgentFolder) -> Iterator[Skill | InvalidFile]:
    """The skills of a folder, by name. A missing folder has none."""
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
            yield _parse(text, name, place, folder)


def _parse(text: str, folder_name: str, place: str, folder: AgentFolder) -> Skill | InvalidFile:
    matter = parse_front_matter(text, known=("name", "description", "license", "allowedtools"))
    name = unicodedata.normalize("NFKC", folder_name)
    description = as_prose(matter.fields.get("description"))
    problem = ""
    if not matter.found:
        problem = "it has no front matter with name and description"
    elif len(name) > MAX_NAME or not all(letter.isalnum() or letter in "-_." for letter in name):
        problem = f"the name of a folder has at most {MAX_NAME} letters, digits, and `-`, `_`, `.`"
    elif not description:
        problem = "it has no description"
    elif as_bool(matter.fields.get(HIDING_FIELD)):
        problem = f"{HIDING_FIELD} hides it from models"
    if problem:
        return InvalidFile(place, problem)
    allowed = matter.fields.get("allowed-tools")
    # The format separates them by spaces, and Claude Code by commas.
    tools = _TOOL.findall(allowed) if isinstance(allowed, str) else as_list(allowed)
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
            *_broken_rules(as_text(matter.fields.get("name")) or "", name, description),
            *([f"fields without effect: {', '.join(unknown)}"] if unknown else ()),
        ),
    )


def _broken_rules(name: str, folder: str, description: str) -> Iterator[str]:
    """What is wrong with a skill that agents can use all the same."""
    name = unicodedata.normalize("NFKC", name)
    valid = all(letter.isalnum() or letter == "-" for letter in name) and name == name.lower()
    shown = one_line(name, MAX_NAME)
    if not name:
        yield "it has no name; that of its folder is used"
    elif name != folder:
        yield f"its name {shown!r} differs from that of its folder, which is used"
    elif not valid or name.startswith("-") or name.endswith("-") or "--" in name:
        yield f"a name has small letters, digits and single hyphens between them, not {shown!r}"
    if len(description) > MAX_DESCRIPTION:
        yield f"its description has {len(description):,} characters; {MAX_DESCRIPTION:,} are used"
