"""`run_tests` through the runtime: who runs what, where, and by whose leave."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.domain.messages import ToolMessage
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.runtime.runtime import Runtime

if TYPE_CHECKING:
    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

# Leaves a trace, and shows what it was asked for.
SUITE = "echo ran > trace; echo suite $*; grep -q right a.txt"


@pytest.fixture
def project(repo: Repo) -> Path:
    repo.init().commit({"a.txt": "right\n", "suite.sh": SUITE})
    return repo.root


def answers(model: ScriptedModel) -> list[str]:
    return [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]


async def test_reviewer_runs_tests_in_a_copy_without_asking(
    opened: Opened, settings: Callable[[str], None], project: Path
) -> None:
    settings('test = "sh suite.sh"\n')
    (project / "a.txt").write_text("right, not committed\n")
    model = ScriptedModel([call("run_tests", selector="one two"), say("All tests pass.")])
    async with opened(model=model, shell=True, unsafe_no_sandbox=True) as rt:
        result = await rt.spawn("reviewer", "Do the tests pass?")
    assert answers(model) == [
        "The tests passed. Exit code 0: sh suite.sh one two\nOutput:\nsuite one two"
    ]
    assert result.ok
    assert result.unverified == ""
    assert not (project / "trace").exists(), "it ran in a copy"


async def test_failing_tests_are_no_evidence(
    opened: Opened, settings: Callable[[str], None], project: Path
) -> None:
    settings('test = "sh suite.sh"\n')
    (project / "a.txt").write_text("wrong\n")
    model = ScriptedModel([call("test"), say("All tests pass.")])
    async with opened(model=model, shell=True, unsafe_no_sandbox=True) as rt:
        result = await rt.spawn("reviewer", "Do the tests pass?")
    assert answers(model)[0].startswith("The tests failed. Exit code 1: sh suite.sh")
    assert result.unverified == "All tests pass."


async def test_executor_runs_tests_on_its_own_work(
    opened: Opened, settings: Callable[[str], None], project: Path
) -> None:
    settings('test = "sh suite.sh"\n')
    model = ScriptedModel([
        call("write_file", path="a.txt", content="wrong\n"),
        call("run_tests"),
        call("write_file", path="a.txt", content="right again\n"),
        call("run_tests"),
        say("The tests pass."),
    ])  # fmt: skip
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        result = await rt.spawn("executor", "Change a.txt")
    assert result.unverified == ""
    assert [text.split(".")[0] for text in answers(model)[1::2]] == [
        "The tests failed",
        "The tests passed",
    ]
    assert (project / "a.txt").read_text() == "right again\n"


async def test_tests_of_the_project_need_trust(opened: Opened, project: Path) -> None:
    (project / "retinue.toml").write_text('test = "sh suite.sh"\n')
    options = {"shell": True, "unsafe_no_sandbox": True}
    model = ScriptedModel([say("Looked.")])
    async with opened(model=model, **options) as rt:
        await rt.spawn("reviewer", "Look")
        assert "without run_tests: this folder is not trusted; `retinue trust` allows it" in (
            rt.notes
        )
    assert "run_tests" not in {tool.name for tool in model.requests[0].tools}
    trusting = ScriptedModel([say("Looked.")])
    async with opened(model=trusting, trust=True, **options) as rt:
        await rt.spawn("reviewer", "Look")
    assert "run_tests" in {tool.name for tool in trusting.requests[0].tools}


async def test_without_a_repository_tests_cannot_write(
    opened: Opened, settings: Callable[[str], None], tmp_path: Path, project: Path
) -> None:
    shutil.rmtree(project / ".git")
    settings('test = "grep -q right a.txt"\n')
    model = ScriptedModel([call("run_tests"), say("Done.")])
    async with opened(model=model, shell=True, unsafe_no_sandbox=True) as rt:
        await rt.spawn("reviewer", "Look")
    assert answers(model) == [
        "The tests passed. Exit code 0: grep -q right a.txt\n[The tests ran without the right to"
        " write, because the project is no git repository.]"
    ]
