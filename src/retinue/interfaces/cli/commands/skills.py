"""`retinue skills`: lists the skills of the user and the project."""

from __future__ import annotations

import click

from retinue.config.environment import Environment
from retinue.config.project_permissions import project_permissions
from retinue.config.settings_file import load_settings
from retinue.domain.skill import Skill
from retinue.interfaces.cli.options import directory_option, json_objects_option
from retinue.interfaces.cli.terminal.output import print_json, print_line
from retinue.interfaces.view.formatting import aligned, clip
from retinue.project import project_root


@click.command()
@directory_option
@json_objects_option
def skills(directory: str, as_json: bool) -> None:
    """List the skills of you and this project, and what is wrong with invalid ones.

    Example: retinue skills --json
    """
    root, environment = project_root(directory), Environment.current()
    found = project_permissions(load_settings(environment, root), root, environment).prompt_files
    shown = [(skill, True) for skill in found.skills.values()]
    shown += [(skill, False) for skill in found.untrusted_skills]
    if as_json:
        print_json(*(_fields(skill, trusted=trusted) for skill, trusted in shown))
        print_json(*({"problem": problem} for problem in found.problems))
        return
    if not shown:
        print_line("No skills. They are folders with a SKILL.md in .retinue/skills, .claude/skills")
        print_line("or .agents/skills, of a project or of your home directory.")
    rows = [
        (s.name, "" if ok else "not trusted", s.place, clip(s.description, 80)) for s, ok in shown
    ]
    for row in aligned([("NAME", "STATE", "FOLDER", "DESCRIPTION"), *rows]) if rows else ():
        print_line(row)
    if found.untrusted_skills:
        print_line("`retinue trust` lets agents use the skills of the project.")
    problems = [f"{skill.place}: {problem}" for skill, _ in shown for problem in skill.problems]
    if problems := [*problems, *found.problems]:
        print_line("")
        print_line("Problems:")
        for problem in problems:
            print_line(f"  {problem}")


def _fields(skill: Skill, *, trusted: bool) -> dict[str, object]:
    return {
        "name": skill.name,
        "description": skill.description,
        "folder": skill.place,
        "trusted": trusted,
        "allowed_tools": skill.allowed_tools,
        "problems": skill.problems,
    }
