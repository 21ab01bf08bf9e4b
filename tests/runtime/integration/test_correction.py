"""A failed check is retried in the same copy and conversation, with the output of the check."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.events import AttemptStarted, CheckFinished, Event
from retinue.domain.messages import AssistantMessage, UserMessage
from retinue.errors import EndpointUnusable, RunSuspended
from retinue.models.scripted.model import ScriptedModel, Step, call, fail, say
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


async def test_a_check_that_succeeds_runs_once(checked: Any, project: Path, workspace: Any) -> None:
    seen: list[Event] = []
    count = f"echo x >> {project.parent / 'runs.txt'}"
    async with checked(ScriptedModel({"Write": GOOD}), on_event=seen.append) as rt:
        result = await rt.spawn("executor", "Write a.", checks=[count], workspace=workspace)
    assert (result.ok, result.attempts) == (True, 1)
    assert (project.parent / "runs.txt").read_text() == "x\n"
    # It is on record for the work itself, and for the merge.
    assert [type(e.fact) for e in seen].count(CheckFinished) == 2


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
