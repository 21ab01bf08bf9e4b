"""The tool that loads skills: its list, its answers, and who may load what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retinue
from retinue.config.environment import Environment
from retinue.domain.messages import ToolMessage
from retinue.domain.skill import Skill, skill_allows
from retinue.errors import RunSuspended, Unreachable
from retinue.models.scripted.model import ScriptedModel, call, fail, say
from retinue.tools.skills import MAX_LIST_BYTES, skill_list

TEXT = (
    "---\nname: {name}\ndescription: Use for {name}.\nallowed-tools: Read\n---\nBody of {name}.\n"
)


def make(name: str, description: str) -> Skill:
    return Skill(name=name, description=description, body="", folder="/", place="")


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(variables={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    for at, name in ((project, "ours"), (tmp_path, "mine")):
        folder = at / ".claude/skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(TEXT.format(name=name))
        (folder / "hello.sh").write_text(f"echo hello from {name}\n")
    return project


@given(
    st.lists(
        st.tuples(st.text("abc-", min_size=64, max_size=64), st.text(max_size=1024)), max_size=200
    )
)
@settings(max_examples=30, deadline=None)
def test_200_skills_fit_whatever_their_length(given: list[tuple[str, str]]) -> None:
    skills = [make(name, text) for name, text in given]
    text = skill_list(skills)
    assert len(text.encode()) <= MAX_LIST_BYTES
    assert all(skill.name in text for skill in skills)


def test_descriptions_are_whole_if_they_fit_and_names_go_last() -> None:
    few = [make("a", "first"), make("b", "x" * 1024)]
    assert skill_list(few).splitlines()[1:] == ["a: first", f"b: {'x' * 1024}"]
    many = [make(f"s{number:04}", "d" * 100) for number in range(2_000)]
    text = skill_list(many)
    assert len(text.encode()) <= MAX_LIST_BYTES
    assert "s0000" in text
    assert "s1999" not in text


async def results(
    project: Path, environment: Environment, *steps: Any, **options: Any
) -> tuple[ScriptedModel, list[str]]:
    """What the tools answer to the calls of a scripted model."""
    model = ScriptedModel([*steps, say("done")])
    async with retinue.open(
        project, model=model, environment=environment, trust=True, mode="auto", **options
    ) as rt:
        assert (await rt.run("Work.")).ok
    last = model.requests[-1]
    return model, [m.content for m in last.messages if isinstance(m, ToolMessage)]


async def test_body_and_files_are_loaded_on_demand(project: Path, environment: Environment) -> None:
    model, answers = await results(
        project,
        environment,
        call("load_skill", name="ours"),
        call("load_skill", name="ours", file="hello.sh"),
        call("load_skill", name="mine", file="hello.sh"),
        call("load_skill", name="mine", file="../../../project/retinue.toml"),
        call("load_skill", name="none"),
    )
    (tool,) = [tool for tool in model.requests[0].tools if tool.name == "load_skill"]
    assert tool.description.splitlines()[1:] == ["mine: Use for mine.", "ours: Use for ours."]
    assert answers[0] == (
        "Body of ours.\n\n[Folder of the skill: .claude/skills/ours\n"
        "Files, for load_skill or run_command: hello.sh\n"
        "From now on you may use these tools only, as far as you have them: Read]"
    )
    assert answers[1:3] == ["echo hello from ours\n", "echo hello from mine\n"]
    assert "it leads out of the skill" in answers[3]
    assert "There is no skill 'none'; there are: mine, ours." in answers[4]


async def test_scripts_of_skills_run_in_the_sandbox(
    project: Path, tmp_path: Path, environment: Environment
) -> None:
    folder = tmp_path / ".claude/skills/mine"
    own = project / ".retinue/skills/own"
    own.mkdir(parents=True)
    (own / "SKILL.md").write_text(TEXT.format(name="own"))
    (own / "hello.sh").write_text("echo hello from own\n")
    _, answers = await results(
        project,
        environment,
        call("run_command", command=f"sh {folder}/hello.sh"),
        call("run_command", command=f"echo changed > {folder}/hello.sh"),
        call("run_command", command="sh .retinue/skills/own/hello.sh; ls .retinue"),
        call("load_skill", name="own", file="hello.sh"),
    )
    assert answers[2:] == ["Exit code 0\nhello from own\nskills\n", "echo hello from own\n"]
    assert answers[0] == "Exit code 0\nhello from mine\n"
    assert not answers[1].startswith("Exit code 0")
    assert (folder / "hello.sh").read_text() == "echo hello from mine\n"


async def test_without_skills_there_is_no_tool(tmp_path: Path, environment: Environment) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = Environment(variables={"HOME": str(empty)})
    project = empty / "project"
    project.mkdir()
    model, _ = await results(project, environment)
    assert "load_skill" not in {tool.name for tool in model.requests[0].tools}


async def test_roles_and_tasks_name_the_skills_of_a_child(
    project: Path, environment: Environment
) -> None:
    agents = project / ".retinue/agents"
    agents.mkdir(parents=True)
    (agents / "narrow.md").write_text(
        "---\nname: narrow\ndescription: d\ntools: read_file\nskills: mine\n---\nWork.\n"
    )
    model = ScriptedModel([call("load_skill", name="ours"), say("done"), say("done"), say("done")])
    async with retinue.open(project, model=model, environment=environment, trust=True) as rt:
        await rt.spawn("narrow", "Work.")
        await rt.spawn("narrow", "Work more.", skills=["ours"])
        await rt.spawn("researcher", "Work.")
    first, second, third, fourth = model.requests
    lists = {tool.name: tool.description for tool in first.tools}
    assert lists["load_skill"].splitlines()[1:] == ["mine: Use for mine."]
    assert "There is no skill 'ours'; there are: mine." in second.messages[-1].content
    # Neither the role's skills nor those of the task alone count.
    assert "load_skill" not in {tool.name for tool in third.tools}
    assert "load_skill" not in {tool.name for tool in fourth.tools}


def limited(project: Path, name: str, tools: str) -> None:
    folder = project / ".claude/skills" / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        f"---\nname: {name}\ndescription: d\nallowed-tools: {tools}\n---\nBody.\n"
    )
    (folder / "more.md").write_text("More.\n")


async def test_allowed_tools_narrow_later_calls(project: Path, environment: Environment) -> None:
    limited(project, "look", "Read, Bash(echo:*), Write(docs/*)")
    _, answers = await results(
        project,
        environment,
        call("run_command", command="true"),
        call("load_skill", name="look"),
        call("run_command", command="echo a"),
        call("run_command", command="true"),
        call("run_command", command="echo a; true"),
        call("write_file", path="docs/a.md", content="a"),
        call("write_file", path="docs/../b.md", content="b"),
        call("list_dir"),
        call("load_skill", name="ours"),
        call("run_command", command="echo a"),
    )
    refusal = (
        "[DENIED] A skill that you loaded allows only: Read, Bash(echo:*), Write(docs/*)."
        " Go on without this use of {tool}."
    )
    assert answers[0] == "Exit code 0"
    assert answers[2] == "Exit code 0\na\n"
    assert answers[3] == answers[4] == refusal.format(tool="run_command")
    assert not answers[5].startswith("[")
    assert answers[6] == refusal.format(tool="write_file")
    assert answers[7] == refusal.format(tool="list_dir")
    assert answers[8].startswith("Body of ours.")
    # Two skills leave what both allow.
    assert answers[9] == (
        "[DENIED] A skill that you loaded allows only: Read. Go on without this use of run_command."
    )
    assert (project / "docs/a.md").exists()
    assert not (project / "b.md").exists()


async def test_a_file_of_a_skill_narrows_like_its_text(
    project: Path, environment: Environment
) -> None:
    limited(project, "look", "Read")
    for name in ("look", "mine"):
        file = {"look": "more.md", "mine": "hello.sh"}[name]
        _, answers = await results(
            project,
            environment,
            call("load_skill", name=name, file=file),
            call("run_command", command="true"),
        )
        assert "allows only: Read" in answers[1]


async def test_allowed_tools_never_grant_a_tool(project: Path, environment: Environment) -> None:
    limited(project, "wide", "Bash Write Read")
    model = ScriptedModel(
        [
            call("load_skill", name="wide"),
            call("run_command", command="true"),
            say("done"),
        ]
    )
    async with retinue.open(project, model=model, environment=environment, trust=True) as rt:
        await rt.spawn("researcher", "Work.", tools=["read_file", "load_skill"])
    assert "You have no tool 'run_command'" in model.requests[-1].messages[-1].content


async def test_a_resumed_agent_keeps_to_the_tools_of_its_skills(
    project: Path, environment: Environment
) -> None:
    first = ScriptedModel([call("load_skill", name="ours"), fail(Unreachable("Gone."))])
    async with retinue.open(
        project, model=first, environment=environment, trust=True, mode="auto"
    ) as rt:
        with pytest.raises(RunSuspended) as suspended:
            await rt.run("Work.")
    second = ScriptedModel([call("run_command", command="true"), say("done")])
    async with retinue.open(
        project, model=second, environment=environment, trust=True, mode="auto"
    ) as rt:
        assert (await rt.resume(suspended.value.run_id)).ok
    assert "allows only: Read" in second.requests[-1].messages[-1].content


def test_a_name_that_is_no_tool_leaves_none() -> None:
    assert not skill_allows(("no tool!",), "read_file", "a", is_command=False)
    assert skill_allows(("no tool!",), "load_skill", "", is_command=False)
    assert skill_allows(("*",), "run_command", "a; b", is_command=True)
    assert skill_allows(("mcp__github__*",), "mcp__github__issues", "", is_command=False)
