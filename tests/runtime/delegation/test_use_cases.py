"""What delegation is for, each as a short run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from retinue.domain.messages import ToolMessage
from retinue.models.scripted.model import ScriptedModel, call, calls, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

ROOT = "at work in the user's project"


def answers(model: ScriptedModel) -> list[str]:
    last = [r for r in model.requests if ROOT in r.messages[0].content][-1]
    return [m.content for m in last.messages if isinstance(m, ToolMessage)]


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
                call("spawn_agent", task="What does process_queue do?", background=True),
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
                call("spawn_agent", task="Title for this.", max_turns=1, max_tokens=1_000),
                say("ok"),
            ],
            "Title": [say("A door")],
        }
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    assert answers(model)[0].startswith("[completed] a1 researcher: 1 turn, 0 tool calls, ")
