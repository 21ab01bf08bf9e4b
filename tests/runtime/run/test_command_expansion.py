"""Slash commands of files: how they are found, expanded and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.errors import ApprovalNeeded, UsageError
from retinue.models.scripted.model import ScriptedModel, say


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("text of a\n")
    return project


def write(at: Path, name: str, text: str) -> None:
    path = at / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def opened(project: Path, model: ScriptedModel | None = None, **options: Any) -> Any:
    variables = {"HOME": str(project.parent), "PATH": "/usr/bin:/bin"}
    options = {"trust": True, **options}
    return retinue.open(
        project,
        model=model or ScriptedModel([]),
        environment=Environment(variables=variables),
        **options,
    )


async def test_commands_of_three_programs_and_their_names(project: Path) -> None:
    write(project, ".claude/commands/grp/hi.md", "Say $0 and $1.")
    write(project, ".opencode/command/grp/hi.md", "---\ndescription: Greets.\n---\nSay $1.")
    write(project, ".retinue/commands/own.md", "Say $1.")
    write(project.parent, ".config/opencode/command/mine.md", "Say $ARGUMENTS.")
    async with opened(project) as rt:
        assert {name: one.place for name, one in rt.commands.items()} == {
            "grp/hi": ".opencode/command/grp/hi.md",
            "grp:hi": ".claude/commands/grp/hi.md",
            "mine": "~/.config/opencode/command/mine.md",
            "own": ".retinue/commands/own.md",
        }
        assert rt.commands["grp/hi"].description == "Greets."
        assert (await rt.expand("/grp:hi a b")).task == "Say a and b."
        assert (await rt.expand("/grp/hi a b")).task == "Say a b."
        assert (await rt.expand("/own a b")).task == "Say a."
        assert await rt.expand("/unknown a") is None
        assert await rt.expand("own") is None


async def test_files_and_shell_output_become_part_of_the_task(project: Path) -> None:
    write(project, ".claude/commands/c.md", "Look at @a.txt, @../x and @/etc/passwd: !`cat $0`")
    async with opened(project) as rt:
        expanded = await rt.expand("/c a.txt")
    assert expanded.files == ("a.txt",)
    assert expanded.task.startswith("Look at @a.txt, @../x and @/etc/passwd: <output-")
    assert "text of a" in expanded.task


async def test_shell_commands_of_a_file_cannot_write(project: Path) -> None:
    write(project, ".claude/commands/c.md", "!`echo x > a.txt`")
    async with opened(project) as rt:
        with pytest.raises(UsageError, match=r"/c: `echo x > a.txt` failed \(exit"):
            await rt.expand("/c")
    assert (project / "a.txt").read_text() == "text of a\n"


async def test_plan_mode_and_untrusted_projects_run_nothing(project: Path) -> None:
    write(project, ".claude/commands/c.md", "!`ls`")
    async with opened(project, mode="plan") as rt:
        with pytest.raises(UsageError) as refused:
            await rt.expand("/c")
        assert str(refused.value) == "/c runs shell commands, and plan mode runs none."
    async with opened(project, trust=False) as rt:
        with pytest.raises(ApprovalNeeded) as needed:
            await rt.expand("/c")
    assert str(needed.value) == (
        "/c is a command of the project (.claude/commands/c.md), and this folder is not trusted;"
        " `retinue trust` allows it."
    )


async def test_tools_of_a_command_only_narrow(project: Path) -> None:
    text = "---\nallowed-tools: Read, Bash(git:*), Teleport\nmodel: opus\n---\nWork."
    write(project, ".claude/commands/c.md", text)
    model = ScriptedModel([say("done")])
    async with opened(project, model, mode="plan") as rt:
        command = await rt.expand("/c")
        assert rt.commands["c"].problems == (
            "model 'opus' is not in your [models]; the usual model is used",
            "unknown tool: Teleport",
        )
        assert command.tools == ("read_file", "run_command")
        await rt.run(command.task, tools=command.tools)
    # Plan mode has no run_command, and the list of a command does not add it.
    assert [tool.name for tool in model.requests[0].tools] == ["read_file"]
