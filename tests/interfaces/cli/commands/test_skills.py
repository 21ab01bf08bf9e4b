"""`retinue commands`, `retinue skills`, and `retinue run /name`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_commands_are_listed_with_their_problems(cli: Cli, project: Path) -> None:
    write(project / ".claude/commands/review.md", "---\nhooks: x\n---\nReview $0.")
    write(project / ".claude/commands/empty.md", "---\ndescription: d\n---\n")
    write(project / ".opencode/command/review.md", "Review.")
    assert cli("commands").out.splitlines() == [
        "NAME    STATE        PLACE                       DESCRIPTION",
        "review  not trusted  .claude/commands/review.md  Review $0.",
        "`retinue trust` allows the commands of the project.",
        "",
        "Problems:",
        "  .claude/commands/review.md: fields without effect: hooks",
        "  .claude/commands/empty.md: left out: it has no text",
        "  .opencode/command/review.md: left out: .claude/commands/review.md defines 'review'"
        " already",
    ]
    assert cli("trust").code == 0
    listed = [json.loads(line) for line in cli("commands", "--json").out.splitlines()]
    assert [(one.get("name"), one.get("trusted")) for one in listed] == [
        ("review", True),
        (None, None),
        (None, None),
    ]


def test_skills_are_listed(cli: Cli, project: Path) -> None:
    assert cli("skills").out == (
        "There are no skills. `retinue help skills` says where they are read from.\n"
    )
    write(project / ".agents/skills/pdf/SKILL.md", "---\nname: pdf\ndescription: Reads.\n---\n")
    write(project / ".agents/skills/bad/SKILL.md", "---\nname: bad\n---\n")
    assert cli("skills").out.splitlines() == [
        "NAME  STATE        PLACE               DESCRIPTION",
        "pdf   not trusted  .agents/skills/pdf  Reads.",
        "`retinue trust` allows the skills of the project.",
        "",
        "Problems:",
        "  .agents/skills/bad: left out: it has no description",
    ]


def test_a_command_is_run_with_its_arguments(cli: Cli, script: Script, project: Path) -> None:
    model = script("rules: [{match: 'Review src and b c', steps: [{say: reviewed}]}]")
    write(project / ".claude/commands/review.md", "Review $0 and $1.")
    refused = cli("run", "-q", "-m", model, "/review", "src", "b c")
    assert refused.code == 4
    assert "/review is a command of the project" in refused.err
    cli("trust")
    assert cli("run", "-q", "-m", model, "/review", "src", "b c").out == "reviewed\n"
    assert cli("run", "-q", "-m", model, "/review src 'b c'").out == "reviewed\n"


def test_the_agent_of_a_command_is_a_child(cli: Cli, script: Script, project: Path) -> None:
    model = script("rules: [{match: 'Look at it', steps: [{say: looked}]}]")
    write(project / ".opencode/command/look.md", "---\nagent: researcher\n---\nLook at it.")
    cli("trust")
    done = cli("run", "-m", model, "/look")
    assert done.out == "looked\n"
    assert "[researcher]" in done.err


def test_an_unknown_command_is_plain_text_and_a_task_is_one_argument(
    cli: Cli, script: Script
) -> None:
    model = script("rules: [{match: '/nothing at all', steps: [{say: plain}]}]")
    assert cli("run", "-q", "-m", model, "/nothing at all").out == "plain\n"
    done = cli("run", "-m", model, "fix", "it")
    assert (done.code, done.out) == (2, "")
    assert "TASK is one argument: put it in quotes. 'it' is left over." in done.err
