"""A failed check is retried in the same copy and conversation, with the output of the check."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.events import AttemptStarted, CheckFinished, Event, WorktreeCreated
from retinue.domain.messages import AssistantMessage, Request, UserMessage
from retinue.errors import EndpointUnusable, RunSuspended
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say
from retinue.runtime.delegation.task import Task
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
CHECK = "cat a.txt; grep -q good a.txt"
BAD: list[Step] = [call("write_file", path="a.txt", content="bad\n"), say("Done.")]
GOOD: list[Step] = [call("write_file", path="a.txt", content="good\n"), say("Now it is good.")]


@pytest.fixture
def checked(opened: Opened) -> Callable[..., Any]:
    """A runtime whose checks run without a sandbox."""

    def open_checked(model: ScriptedModel, **options: Any) -> Any:
        return opened(model=model, mode="auto", unsafe_no_sandbox=True, shell=True, **options)

    return open_checked


@pytest.fixture
def repository(project: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    return project


@pytest.fixture(params=["worktree", "shared"])
def workspace(request: pytest.FixtureRequest, repository: Path) -> str:
    return str(request.param)


async def test_the_work_is_corrected_in_the_same_conversation(
    checked: Any, project: Path, workspace: Any
) -> None:
    seen: list[Event] = []
    model = ScriptedModel({"Write": [*BAD, *GOOD]})
    async with checked(model, on_event=seen.append) as rt:
        result = await rt.spawn("executor", "Write a.", checks=[CHECK], workspace=workspace)
    assert result.ok, result.error
    assert (result.attempts, result.response) == (2, "Now it is good.")
    assert [change.path for change in result.files_modified] == ["a.txt"]
    assert (project / "a.txt").read_text() == "good\n"
    assert [(check.ok, check.command) for check in result.checks] == [(True, CHECK)]
    *before, answer, correction = model.requests[2].messages
    assert tuple(before) == model.requests[1].messages
    assert answer == AssistantMessage("Done.")
    assert isinstance(correction, UserMessage)
    assert correction.content.startswith("Your work is not accepted: a check failed: ")
    assert "\nbad\n" in correction.content
    attempts = [event.fact for event in seen if isinstance(event.fact, AttemptStarted)]
    assert [(one.number, one.continued) for one in attempts] == [(1, False), (2, True)]
    assert attempts[1].because.startswith("a check failed")
    # Nothing was merged meanwhile, so the copy is not brought up to date.
    copies = [event for event in seen if isinstance(event.fact, WorktreeCreated)]
    assert len(copies) == (workspace == "worktree")


async def test_a_child_that_corrects_its_work_reads_messages(
    checked: Any, project: Path, repository: Path
) -> None:
    def correct(_: Request) -> Step:
        rt.tell("a1", "Keep it short.")
        return GOOD[0]

    model = ScriptedModel({"Write": [*BAD, correct, GOOD[1]]})
    async with checked(model) as rt:
        result = await rt.spawn("executor", "Write a.", checks=[CHECK])
    assert (result.ok, result.attempts) == (True, 2)
    assert "Keep it short." in str(model.requests[-1].messages[-1])


async def test_the_correction_is_about_the_check_that_failed(
    checked: Any, project: Path, workspace: Any
) -> None:
    model = ScriptedModel({"Write": [*BAD, *GOOD]})
    async with checked(model) as rt:
        result = await rt.spawn(
            "executor", "Write a.", checks=["echo fine", CHECK], workspace=workspace
        )
    assert (result.ok, result.attempts) == (True, 2)
    correction = model.requests[2].messages[-1].content
    assert CHECK in correction
    assert "fine" not in correction


async def test_a_check_that_succeeds_runs_once(checked: Any, project: Path, workspace: Any) -> None:
    seen: list[Event] = []
    count = f"echo x >> {project.parent / 'runs.txt'}"
    async with checked(ScriptedModel({"Write": GOOD}), on_event=seen.append) as rt:
        result = await rt.spawn("executor", "Write a.", checks=[count], workspace=workspace)
    assert (result.ok, result.attempts) == (True, 1)
    assert (project.parent / "runs.txt").read_text() == "x\n"
    # It is on record for the work itself, and for the merge.
    assert [type(e.fact) for e in seen].count(CheckFinished) == 2


async def test_a_check_says_which_it_is_and_how_long_it_took(
    checked: Any, project: Path, repository: Path
) -> None:
    heard: list[str] = []

    def listen(run_id: str, agent_id: str, tool: str, text: str) -> None:
        heard.append(f"{agent_id} {tool}{text}")

    other: list[Step] = [call("write_file", path="b.txt", content="b"), say("Done.")]
    model = ScriptedModel({"Write a": GOOD, "Write b": other})
    async with checked(model, on_progress=listen) as rt:
        for name in ("a", "b"):
            await rt.spawn("executor", f"Write {name}.", checks=["true", CHECK])
    texts = [text for text in heard if "check" in text]
    assert texts[:2] == ["a1 check 1 of 2: true", f"a1 check 2 of 2: {CHECK}"]
    assert "a2 check 1 of 2 (took 0s last time): true" in texts[2:]


async def test_without_retries_the_first_failure_counts(
    checked: Any, project: Path, workspace: Any
) -> None:
    model = ScriptedModel({"Write": BAD})
    async with checked(model) as rt:
        result = await rt.spawn(
            "executor", "Write a.", checks=[CHECK], max_retries=0, workspace=workspace
        )
    assert (result.status, result.attempts) == ("error", 1)
    assert str(result.error).startswith("a check failed")


async def test_a_check_that_fails_in_every_attempt_fails_the_child(
    checked: Any, project: Path, repository: Path
) -> None:
    model = ScriptedModel({"Write": [*BAD, say("It is good enough.")]})
    async with checked(model) as rt:
        result = await rt.spawn("executor", "Write a.", checks=[CHECK])
        again = await rt.diff(result.run_id, result.agent_id)
    assert (result.status, result.attempts, result.kept) == ("error", 2, True)
    assert [check.ok for check in result.checks] == [False]
    assert not (project / "a.txt").exists()
    assert [change.state for change in again] == ["kept"]


async def test_a_child_that_was_cancelled_meanwhile_corrects_nothing(
    checked: Any, project: Path, repository: Path
) -> None:
    def listen(event: Event) -> None:
        if isinstance(event.fact, CheckFinished):
            rt.cancel("a1")

    async with checked(ScriptedModel({"Write": BAD}), on_event=listen) as rt:
        result = await rt.spawn("executor", "Write a.", checks=[CHECK])
    assert (result.status, result.attempts, result.kept) == ("cancelled", 1, True)
    assert result.response == "Done."


async def test_the_root_corrects_its_own_work(checked: Any, project: Path) -> None:
    model = ScriptedModel([*BAD, *GOOD])
    async with checked(model, checks=[CHECK], limits={"max_retries": 1}) as rt:
        result = await rt.run("Write a.")
    assert (result.status, result.attempts) == ("completed", 2)


async def test_a_correction_that_was_interrupted_is_resumed(
    checked: Any, project: Path, repository: Path
) -> None:
    gone: Step = fail(EndpointUnusable("The key was refused."))
    model = ScriptedModel({"Write": [*BAD, GOOD[0], gone]}, strict=False)
    async with checked(model) as rt:
        with pytest.raises(RunSuspended) as error:
            await rt.spawn("executor", "Write a.", checks=[CHECK])
    back = ScriptedModel({"Write": [*BAD, *GOOD]}, strict=False)
    async with checked(back) as rt:
        resumed = await rt.resume(error.value.run_id)
    (result,) = resumed.results
    assert (result.status, result.attempts) == ("completed", 2)
    assert [r.messages for r in back.requests] == [model.requests[-1].messages]
    assert (project / "a.txt").read_text() == "good\n"


# It fails where the work of both children is, unless the second has taken notice of the first.
TOGETHER = "test ! -e a.txt || test ! -e b.txt || grep -q both b.txt"
A = call("write_file", path="a.txt", content="a\n")
B = call("write_file", path="b.txt", content="b\n")
BOTH = call("write_file", path="b.txt", content="both\n")
TASKS = [Task(role="executor", task=f"Write {n}.", scope=(f"{n}.txt",)) for n in "ab"]


@pytest.mark.parametrize("led", ["by a program", "by a model"])
async def test_work_that_fails_beside_that_of_siblings_is_corrected(
    checked: Any, project: Path, repository: Path, led: str
) -> None:
    """The first child ends when the second is checked, so that only their merge fails."""
    gate = asyncio.Event()
    seen: list[Event] = []

    def listen(event: Event) -> None:
        seen.append(event)
        if isinstance(event.fact, CheckFinished) and event.fact.check.ok:
            gate.set()

    second = [B, say("B."), call("read_file", path="a.txt"), BOTH, say("Both.")]
    spawned = [
        call("spawn_agent", role=each.role, task=each.task, scope=each.scope) for each in TASKS
    ]
    model = ScriptedModel(
        {
            "in the user's project": [calls(*spawned), say("Done.")],
            "Write a": [A, hold(gate, say("A."))],
            "Write b": second,
        },
        strict=led == "by a model",
    )
    async with checked(model, checks=[TOGETHER], on_event=listen) as rt:
        if led == "by a model":
            run = await rt.run("Go.")
            assert (run.status, run.failures) == ("completed", ())
        else:
            results = await rt.fan_out(TASKS)
            assert [(r.status, r.attempts) for r in results] == [("completed", 1), ("completed", 2)]
            assert [change.path for change in results[1].files_modified] == ["b.txt"]
    assert (project / "a.txt").read_text() == "a\n"
    assert (project / "b.txt").read_text() == "both\n"
    request = next(r for r in model.requests if "is not accepted" in r.messages[-1].content)
    assert (
        "; your copy now has what others changed meanwhile: a.txt. Correct it.\n"
        in request.messages[-1].content
    )
    moves = [e.fact.because for e in seen if isinstance(e.fact, AttemptStarted) and e.fact.because]
    assert len(moves) == 1


async def test_a_child_does_not_correct_a_conflict(
    checked: Any, project: Path, repository: Path
) -> None:
    """The user edits what the child changes. A child that is made after that takes note of it."""
    (project / "a.txt").write_text("old\n")
    gate, edited = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(
        {
            "Write a": [call("write_file", path="a.txt", content="good\n"), hold(gate, say("A."))],
            "Write b": [B, say("B.")],
        }
    )

    def listen(event: Event) -> None:
        if event.agent_id == "a1" and event.type == "tool.finished":
            edited.set()

    async with checked(model, on_event=listen) as rt:
        job = await rt.start("executor", "Write a.", write=["a.txt"], checks=[CHECK])
        await edited.wait()
        (project / "a.txt").write_text("the user's\n")
        assert (await rt.spawn("executor", "Write b.", write=["b.txt"])).ok
        gate.set()
        result = await job.result()
    assert (result.status, result.attempts, result.kept) == ("conflict", 1, True)
    assert result.error == "conflict in a.txt (also changed by the user)"
    assert (project / "a.txt").read_text() == "the user's\n"


async def test_others_are_merged_while_a_child_corrects_its_work(
    checked: Any, project: Path, repository: Path
) -> None:
    gate, correcting, corrected = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def listen(event: Event) -> None:
        if isinstance(event.fact, CheckFinished) and event.fact.check.ok:
            gate.set()

    def correct(request: Request) -> Step:
        correcting.set()
        return hold(corrected, BOTH)

    model = ScriptedModel(
        {
            "Write a": [A, hold(gate, say("A."))],
            "Write b": [B, say("B."), correct, say("Both.")],
            "Write c": [call("write_file", path="c.md", content="c\n"), say("C.")],
        }
    )
    async with checked(model, checks=[TOGETHER], on_event=listen) as rt:
        work = asyncio.create_task(rt.fan_out(TASKS))
        await correcting.wait()
        job = await rt.start("executor", "Write c.", write=("c.md",))
        try:
            async with asyncio.timeout(20):
                assert (await job.result()).ok
        finally:
            corrected.set()
        assert [result.ok for result in await work] == [True, True]


async def test_an_interrupted_correction_keeps_the_work_of_siblings(
    checked: Any, project: Path, repository: Path
) -> None:
    gone: Step = fail(EndpointUnusable("The key was refused."))
    first = {"Write a": [A, say("A.")]}
    model = ScriptedModel({**first, "Write b": [B, say("B."), gone]}, strict=False)
    async with checked(model, checks=[TOGETHER]) as rt:
        with pytest.raises(RunSuspended) as error:
            await rt.fan_out(TASKS)
    back = ScriptedModel({"Write b": [B, say("B."), BOTH, say("Both.")]}, strict=False)
    async with checked(back) as rt:
        resumed = await rt.resume(error.value.run_id)
    assert [(r.status, r.attempts) for r in resumed.results] == [("completed", 1), ("completed", 2)]
    assert [change.path for change in resumed.results[1].files_modified] == ["b.txt"]
    assert (project / "a.txt").read_text() == "a\n"
    assert (project / "b.txt").read_text() == "both\n"


async def test_a_child_waits_for_its_turn_without_a_permit(
    checked: Any, project: Path, repository: Path
) -> None:
    """One child at a time: the second starts after the first, which waits to be merged."""
    wanted = [("a", "*.txt"), ("b", "*.txt"), ("c", "*.md")]
    spawned = [
        call("spawn_agent", role="executor", task=f"Write {n}.", scope=[scope])
        for n, scope in wanted
    ]
    write_c = call("write_file", path="c.md", content="c\n")
    model = ScriptedModel(
        {
            "in the user's project": [calls(*spawned), say("Done.")],
            "Write a": [A, say("A.")],
            "Write b": [BOTH, say("B.")],
            "Write c": [write_c, say("C.")],
        }
    )
    async with checked(model, checks=[TOGETHER], max_concurrent=1) as rt:
        run = await rt.run("Go.")
    assert (run.status, run.failures) == ("completed", ())
    assert all((project / name).exists() for name in ("a.txt", "b.txt", "c.md"))
