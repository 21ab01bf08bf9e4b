"""The five roles: what each may do, and which children it may spawn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import retinue
from retinue.domain.contract import Contract
from retinue.domain.events import AgentCreated, Event
from retinue.domain.messages import ToolMessage
from retinue.domain.scope import contains
from retinue.errors import ProviderError, UsageError
from retinue.models.scripted.model import ScriptedModel, call, fail, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]
Settings = Callable[[str], None]

READING = {"find_files", "list_dir", "read_file", "recall", "search_files"}
CODE = {"find_symbol", "git_read"}
WRITING = {"edit_file", "write_file"}
DELEGATING = {"agent_result", "spawn_agent"}


@pytest.mark.parametrize(
    ("role", "tools", "calls", "employs"),
    [
        ("researcher", READING | CODE | {"docs_coverage", "overview", "remember"}, 15, ()),
        ("planner", READING | {"find_symbol", "overview", "remember"}, 10, ()),
        (
            "executor",
            READING | CODE | WRITING | DELEGATING | {"remember", "run_command"},
            30,
            ("reviewer",),
        ),
        ("reviewer", READING | CODE | {"remember", "run_command"}, 15, ()),
        (
            "tester",
            READING | WRITING | DELEGATING | {"remember", "run_command"},
            20,
            ("reviewer",),
        ),
    ],
)
async def test_a_role_has_its_tools_its_budget_and_its_right_to_spawn(
    opened: Opened,
    contracts: Contracts,
    role: str,
    tools: set[str],
    calls: int,
    employs: tuple[str, ...],
) -> None:
    model = ScriptedModel([say("ok")])
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        assert (await rt.spawn(role, "Go.")).ok
    contract = (await contracts())["a1"]
    grant, budget = contract.permissions, contract.execution.budget
    assert set(grant.allowed_tools) == tools
    assert {tool.name for tool in model.requests[0].tools} == tools
    assert (budget.max_tool_calls, budget.max_context_tokens) == (calls, 24_576)
    assert (budget.max_turns, budget.max_tokens, budget.timeout_s) == (50, 65_536, 300)
    assert grant.spawn_roles == employs
    assert grant.can_spawn_children is bool(employs)
    system = model.requests[0].messages[0].content
    article = "an" if role[0] == "e" else "a"
    assert system.startswith(f"You are {article} {role}. ")


async def test_a_tester_writes_tests_only_and_a_reviewer_nothing(
    opened: Opened, contracts: Contracts
) -> None:
    async with opened(model=ScriptedModel({"": [say("ok")]}), mode="auto") as rt:
        await rt.fan_out([("tester", "a"), ("reviewer", "b"), ("executor", "c")])
    grants = {c.execution.role: c.permissions for c in (await contracts()).values()}

    def may(role: str, path: str) -> bool:
        return contains(grants[role].write_scope, path)

    for path in ("tests/test_a.py", "src/a.test.ts", "test/deep/x", "src/__tests__/b.js"):
        assert may("tester", path)
        assert may("executor", path)
        assert not may("reviewer", path)
    for path in ("src/a.py", "contest.py", "latest/x.py"):
        assert not may("tester", path)


async def test_executor_spawns_a_reviewer(opened: Opened, project: Path) -> None:
    model = ScriptedModel(
        {
            "You are an executor": [
                call("write_file", path="a.py", content="x = 1\n"),
                call("spawn_agent", task="Review a.py", role="reviewer"),
                say("Done, and reviewed."),
            ],
            "You are a reviewer": [call("read_file", path="a.py"), say("It is fine.")],
        }
    )
    seen: list[Event] = []
    async with opened(model=model, mode="auto", on_event=seen.append) as rt:
        result = await rt.spawn("executor", "Write a.py")
    assert result.ok
    assert (project / "a.py").exists()
    made = [(e.fact.path, e.fact.depth) for e in seen if isinstance(e.fact, AgentCreated)]
    assert made == [
        ("root", 0),
        ("root/executor.1", 1),
        ("root/executor.1/reviewer.1", 2),
    ]
    view = retinue.fold(seen)
    assert view.agents["a2"].parent_id == "a1"
    # What a grandchild may do is inside of what its parent may.
    employs = next(tool for r in model.requests for tool in r.tools if tool.name == "spawn_agent")
    assert b'"enum":["reviewer"]' in bytes(employs.parameters)


async def test_executor_reads_the_rest_of_a_report_that_was_cut(opened: Opened) -> None:
    report = "\n".join(f"{number}. It is fine." for number in range(2_000))
    model = ScriptedModel(
        {
            "You are an executor": [
                call("spawn_agent", task="Review it", role="reviewer"),
                call("agent_result", id="a2", start=30_000),
                say("Reviewed."),
            ],
            "You are a reviewer": [say(report), fail(ProviderError("Gone."))],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        assert (await rt.spawn("executor", "Do it")).ok
    cut, rest = (m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage))
    assert 'agent_result {"id": "a2", "start": ' in cut
    assert "1999. It is fine." not in cut
    assert "1999. It is fine." in rest


async def test_background_child_of_a_role_that_cannot_wait_is_waited_for(opened: Opened) -> None:
    model = ScriptedModel(
        {
            "You are an executor": [
                call("spawn_agent", task="Review it", role="reviewer", background=True),
                say("Reviewed."),
            ],
            "You are a reviewer": [say("It is fine.")],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        assert (await rt.spawn("executor", "Do it")).ok
    spawn = next(tool for tool in model.requests[0].tools if tool.name == "spawn_agent")
    assert b'"background"' not in bytes(spawn.parameters)
    (answer,) = (m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage))
    assert answer.startswith("[completed] a2 reviewer")
    assert "It is fine." in answer


@pytest.mark.parametrize("where", ["settings", "file"])
async def test_a_list_of_tools_may_name_further_delegation_tools(
    opened: Opened, settings: Settings, project: Path, where: str
) -> None:
    if where == "settings":
        settings(
            '[profiles.boss]\nsystem_prompt = "You are a boss."\n'
            'tools = ["read_file", "spawn_await", "delegate_task"]\nspawns = ["reviewer"]\n'
        )
    else:
        (project / ".retinue" / "agents").mkdir(parents=True)
        (project / ".retinue" / "agents" / "boss.md").write_text(
            "---\ndescription: Leads.\ntools: read_file, spawn_await, delegate_task\n"
            "spawns: reviewer\n---\nYou are a boss.\n"
        )
    model = ScriptedModel(
        {
            "You are a boss": [
                call("spawn_agent", task="Review it", role="reviewer", background=True),
                call("spawn_await"),
                say("Reviewed."),
            ],
            "You are a reviewer": [say("It is fine.")],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        assert (await rt.spawn("boss", "Do it")).ok
        assert rt.roles["boss"].problems == ()
    shown = {tool.name: bytes(tool.parameters) for tool in model.requests[0].tools}
    assert {*shown} == {"agent_result", "delegate_task", "read_file", "spawn_agent", "spawn_await"}
    assert b'"background"' in shown["spawn_agent"]
    started, ended = (m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage))
    assert started.startswith("a2 started in the background; spawn_await gets its report.")
    assert ended == "[a2: OK]\nIt is fine."


@pytest.mark.parametrize("role", ["researcher", "planner", "reviewer"])
async def test_other_roles_spawn_nothing(opened: Opened, role: str) -> None:
    model = ScriptedModel([call("spawn_agent", task="x", role="reviewer"), say("Alone then.")])
    seen: list[Event] = []
    async with opened(model=model, mode="auto", on_event=seen.append) as rt:
        result = await rt.spawn(role, "Go.")
    assert result.ok
    assert result.usage.tool_calls == 1
    assert [m.content for m in model.requests[1].messages if isinstance(m, ToolMessage)] == [
        "[DENIED] You may not delegate: do the work with the tools you have."
    ]
    assert [e.type for e in seen].count("agent.subagent_created") == 2
    assert "tool.denied" in [e.type for e in seen], "and it is on record"


async def test_executor_spawns_only_reviewers(opened: Opened) -> None:
    model = ScriptedModel([call("spawn_agent", task="x", role="executor"), say("Alone then.")])
    async with opened(model=model, mode="auto") as rt:
        await rt.spawn("executor", "Go.")
    assert model.requests[1].messages[-1].content == (
        "[ERROR] This agent may not spawn 'executor'; it may spawn: reviewer."
    )


async def test_a_role_is_overridden_and_added_in_the_settings(
    opened: Opened, settings: Settings, contracts: Contracts
) -> None:
    settings(
        """
        [roles.researcher.budget]
        max_tool_calls = 4

        [roles.poet]
        description = "Writes verse."
        instructions = "You are a poet."
        tools = ["read_file"]
        """
    )
    model = ScriptedModel({"": [say("ok")]})
    async with opened(model=model) as rt:
        await rt.fan_out([("researcher", "a"), ("poet", "b")])
    found = {c.execution.role: c for c in (await contracts()).values()}
    assert found["researcher"].execution.max_tool_calls == 4
    assert found["researcher"].execution.instructions.startswith("You are a researcher.")
    assert found["poet"].permissions.allowed_tools == ("read_file",)
    assert found["poet"].execution.instructions == "You are a poet."


async def test_an_agent_file_of_the_project_is_a_role(
    opened: Opened, project: Path, contracts: Contracts
) -> None:
    folder = project / ".retinue" / "agents"
    folder.mkdir(parents=True)
    (folder / "poet.md").write_text(
        "---\nname: poet\ndescription: Writes verse.\ntools: [read_file]\n---\nYou are a poet.\n"
    )
    async with opened(model=ScriptedModel([say("Roses.")])) as rt:
        assert (await rt.spawn("poet", "Go.")).response == "Roses."
    assert (await contracts())["a1"].permissions.allowed_tools == ("read_file",)


async def test_role_with_an_unknown_spawn_role_still_works(
    opened: Opened, settings: Settings, contracts: Contracts
) -> None:
    settings('[roles.boss]\ninstructions = "You are a boss."\nspawns = ["nobody", "reviewer"]\n')
    async with opened(model=ScriptedModel([say("ok")]), mode="auto") as rt:
        assert (await rt.spawn("boss", "Go.")).ok
    assert (await contracts())["a1"].permissions.spawn_roles == ("reviewer",)


# A place to work in


async def test_a_child_works_in_its_directory(
    opened: Opened, project: Path, contracts: Contracts
) -> None:
    (project / "web").mkdir()
    (project / "web" / "page.html").write_text("<p>")
    (project / "secret.txt").write_text("hush")
    model = ScriptedModel(
        [
            call("list_dir"),
            call("read_file", path="../secret.txt"),
            call("write_file", path="new.html", content="x"),
            say("ok"),
        ]
    )
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("executor", "Look.", directory="web", timeout_s=60)
        with pytest.raises(UsageError, match="is no directory inside"):
            await rt.spawn("executor", "Look.", directory="..")
    answers = [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert "page.html" in answers[0]
    assert "hush" not in answers[1]
    assert answers[1].startswith("[ERROR]")
    assert (project / "web" / "new.html").exists()
    # Whoever reads the result works in the project.
    assert [file.path for file in result.files_modified] == ["web/new.html"]
    assert f"Directory: {project / 'web'}" in model.requests[0].messages[1].content
    assert result.ok
    execution = (await contracts())["a1"].execution
    assert execution.working_directory == str(project / "web")
    assert execution.attempt_timeout_ms == 60_000


async def test_changes_of_a_child_are_seen_by_its_parent(opened: Opened, project: Path) -> None:
    model = ScriptedModel(
        {
            "at work in the user's project": [
                call("spawn_agent", task="Write it", role="executor"),
                call("read_file", path="made.txt"),
                say("ok"),
            ],
            "Write it": [call("write_file", path="made.txt", content="by a child"), say("Done.")],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Go.")
    assert model.requests[-1].messages[-1].content.startswith("by a child")
