"""The walkthroughs of the seed "delegation for local models" (004).

What is drawn while a child runs (16d) is tested in `tests/interfaces/view`, and `/tasks` in
`tests/interfaces/chat`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from retinue.domain.contract import Contract
from retinue.domain.messages import ToolMessage, estimate_tokens
from retinue.models.scripted.model import ScriptedModel, call, calls, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]
Settings = Callable[[str], None]

ROOT = "at work in the user's project"


def answers(model: ScriptedModel) -> list[str]:
    last = [r for r in model.requests if ROOT in r.messages[0].content][-1]
    return [m.content for m in last.messages if isinstance(m, ToolMessage)]


# 16a: spawning


async def test_16a_spawn_task(opened: Opened, project: Path, contracts: Contracts) -> None:
    (project / "auth.py").write_text("def login(): ...\n")
    spawn = call(
        "spawn_task",
        task="Document auth.py",
        context_files=["auth.py"],
        model="small",
        max_iterations=10,
    )
    write = call("write_file", path="auth.md", content="login\n")
    small = ScriptedModel([write, say("Documented.")], name="small")
    root = ScriptedModel([spawn, call("read_file", path="auth.md"), say("Good.")])
    async with opened(model=root, models={"small": small}, mode="auto") as rt:
        result = await rt.run("A long conversation.")
        undone = await rt.undo(result.run_id, "a1")
    child = small.requests[0]
    assert "def login(): ..." in child.messages[1].content
    assert "A long conversation." not in child.messages[1].content
    names = {tool.name for tool in child.tools}
    assert {"read_file", "edit_file"} <= names, "all standard tools"
    assert "spawn_agent" not in names, "no recursive spawning"
    contract = (await contracts())["a1"]
    assert (contract.permissions.mode, contract.execution.max_turns) == ("auto", 10)
    spawned, read = (m for m in root.requests[-1].messages if isinstance(m, ToolMessage))
    assert "Documented." in spawned.content
    assert "Files modified: auth.md (+1 line, new file)" in spawned.content
    assert "login" in read.content, "the same file system"
    assert undone.ok, "its edits are in the store of the run"
    assert not (project / "auth.md").exists()


async def test_16a_default_of_50_turns(opened: Opened, contracts: Contracts) -> None:
    async with opened(model=ScriptedModel([say("ok")])) as rt:
        await rt.spawn("researcher", "x")
    assert (await contracts())["a1"].execution.max_turns == 50


# 16b: use cases


async def test_test_generation(opened: Opened, project: Path) -> None:
    (project / "auth.py").write_text("def login(): ...\n")
    model = ScriptedModel(
        {
            ROOT: [
                call("edit_file", path="auth.py", old_text="login", new_text="sign_in"),
                call("spawn_agent", task="Write unit tests for auth.py", role="tester"),
                say("Refactored, with tests."),
            ],
            "You are a tester": [
                call("read_file", path="auth.py"),
                call("write_file", path="auth.py", content="broken"),
                call("write_file", path="tests/test_auth.py", content="def test(): ...\n"),
                say("One test case."),
            ],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        result = await rt.run("Rename login.")
    assert result.ok
    assert (project / "auth.py").read_text() == "def sign_in(): ...\n"
    assert (project / "tests" / "test_auth.py").exists()
    assert "Files modified: tests/test_auth.py (+1 line, new file)" in answers(model)[1]


async def test_a_review_with_another_prompt(opened: Opened, project: Path) -> None:
    (project / "change.diff").write_text("-a\n+b\n")
    model = ScriptedModel(
        {
            ROOT: [
                call(
                    "spawn_agent",
                    task="Review this diff for bugs",
                    role="reviewer",
                    system_prompt="You care for security above all.",
                    context_files=["change.diff"],
                ),
                say("No bugs."),
            ],
            "security above all": [say("It is safe.")],
        }
    )
    async with opened(model=model) as rt:
        assert (await rt.run("Check the diff.")).response == "No bugs."
    assert "-a\n+b" in model.requests[1].messages[1].content
    assert "It is safe." in answers(model)[0]


async def test_the_same_over_many_files(opened: Opened, project: Path) -> None:
    names = [f"f{n}.py" for n in range(12)]
    for name in names:
        (project / name).write_text("old()\n")
    rules = {
        f"in {name}.": [
            call("edit_file", path=name, old_text="old", new_text="new"),
            say("Fixed."),
        ]
        for name in names
    }
    spawns = calls(
        *(
            call("spawn_agent", task=f"Fix it in {name}.", role="executor", scope=name)
            for name in names
        )
    )
    model = ScriptedModel({ROOT: [spawns, say("All fixed.")], **rules})
    async with opened(model=model, mode="auto") as rt:
        result = await rt.run("Fix the deprecation.")
    assert (result.ok, result.children, result.usage.tool_calls) == (True, 12, 12)
    assert {(project / name).read_text() for name in names} == {"new()\n"}
    assert [answer.split()[1] for answer in answers(model)] == [f"a{n}" for n in range(1, 13)]


async def test_a_batch_from_python(opened: Opened) -> None:
    model = ScriptedModel({f"File {n:02d}": [say(f"done {n:02d}")] for n in range(12)})
    async with opened(model=model) as rt:
        results = await rt.fan_out(
            [("researcher", f"File {n:02d}") for n in reversed(range(12))], max_concurrent=4
        )
    assert [r.response for r in results] == [f"done {n:02d}" for n in reversed(range(12))]


async def test_background_research(opened: Opened, project: Path) -> None:
    (project / "queue.py").write_text("def process_queue(): ...\n")
    model = ScriptedModel(
        {
            ROOT: [
                call(
                    "spawn_agent",
                    role="researcher",
                    task="What does process_queue do?",
                    background=True,
                ),
                call("list_dir"),
                call("spawn_await", job_ids="a1"),
                say("It drains the queue."),
            ],
            "process_queue": [
                call("search_files", pattern="process_queue"),
                call("read_file", path="queue.py"),
                say("It drains the queue."),
            ],
        }
    )
    async with opened(model=model) as rt:
        result = await rt.run("Explain.")
    assert result.ok
    assert "[a1: OK]\nIt drains the queue." in "\n".join(
        message.content for message in model.requests[-1].messages
    )


async def test_a_one_line_title(opened: Opened) -> None:
    model = ScriptedModel([say("Paint the door red")])
    async with opened(model=model) as rt:
        result = await rt.spawn(
            "researcher",
            "A one-line commit message for: the door is red now.",
            tools=(),
            max_turns=1,
            max_tokens=1_000,
        )
    assert (result.status, result.response) == ("completed", "Paint the door red")
    (request,) = model.requests
    assert request.tools == ()
    assert request.max_output_tokens is not None
    assert request.max_output_tokens < 1_000


async def test_a_title_by_a_models_call(opened: Opened) -> None:
    model = ScriptedModel(
        {
            ROOT: [
                call(
                    "spawn_agent",
                    role="researcher",
                    task="Title for this.",
                    max_turns=1,
                    max_tokens=1_000,
                ),
                say("ok"),
            ],
            "Title": [say("A door")],
        }
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    assert answers(model)[0].startswith("[completed] a1 researcher: 1 turn, 0 tool calls, ")


async def test_a_title_with_a_small_output_limit(opened: Opened) -> None:
    model = ScriptedModel([say("Paint the door red")])
    sampling = {"max_output_tokens": 16}
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "A title.", tools=(), sampling=sampling)
    assert (result.response, model.requests[0].max_output_tokens) == ("Paint the door red", 16)


# 16c: configuration


async def test_16c_defaults_of_sub_agents(
    opened: Opened, settings: Settings, project: Path, contracts: Contracts
) -> None:
    (project / "AGENTS.md").write_text("Use tabs.")
    settings(
        "[sub_agents]\nsystem_prompt = 'You are a focused coding assistant.'\n"
        "budget = { max_turns = 9, max_tokens = 16384 }\n"
    )
    model = ScriptedModel([say("ok")])
    async with opened(model=model) as rt:
        await rt.spawn("researcher", "x")
    prompt = model.requests[0].messages[0].content
    assert prompt.startswith("Use tabs.\n\nYou are a focused coding assistant.")
    execution = (await contracts())["a1"].execution
    assert (execution.max_turns, execution.max_tokens) == (9, 16_384)


async def test_16c_memory_is_shared_and_marked(opened: Opened) -> None:
    note = call("remember", text="The door is red.")
    async with opened(model=ScriptedModel([note, say("ok")])) as rt:
        await rt.spawn("researcher", "x")
    reader = ScriptedModel([call("recall", query="door"), say("ok")])
    async with opened(model=reader) as rt:
        await rt.spawn("researcher", "y")
    recalled = reader.requests[1].messages[-1].content
    assert "The door is red." in recalled
    assert "sub_agent_result" in recalled


# 16f: token discipline


async def test_16f_prompt_and_report_are_short(opened: Opened, contracts: Contracts) -> None:
    novel = "A very long sentence about doors.\n" * 1_000
    model = ScriptedModel(
        {
            ROOT: [call("spawn_agent", task="Write a novel", role="researcher"), say("ok")],
            "Write a novel": [say(novel)],
        }
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    child = model.requests[1]
    assert estimate_tokens("".join(m.content for m in child.messages)) < 130
    assert estimate_tokens(answers(model)[0]) < 2_100
    assert "agent_result" in answers(model)[0], "what is cut stays readable"
    assert (await contracts())["a1"].execution.max_tokens == 65_536
