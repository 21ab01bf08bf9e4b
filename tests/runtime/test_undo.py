"""Taking back what a run has done to the files, and making it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

from retinue.errors import RunError, UsageError
from retinue.models.scripted import Answer, ScriptedModel, call, hold, say
from retinue.runtime.facade import Runtime
from retinue.runtime.task import Task

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
LINES = "".join(f"line {number}\n" for number in range(1, 21))


def edit(old: str, new: str) -> Answer:
    return call("edit_file", path="shared.txt", old_text=old, new_text=new)


@pytest.mark.parametrize("versioned", [True, False])
async def test_one_child_alone_its_commands_included_and_again(
    opened: Opened, repo: Repo, project: Path, versioned: bool
) -> None:
    repo.write("shared.txt", LINES)
    repo.write("gone", "g\n")
    if versioned:
        repo.init().commit()
    model = ScriptedModel(
        {
            "one.": [
                edit("line 3\n", "three\n"),
                call("run_command", command="rm gone; mkdir -p d; printf '1\\n' > d/new; echo x"),
                say("Done."),
            ],
            "two.": [edit("line 17\n", "seventeen\n"), say("Done.")],
        }
    )
    before = repo.git_dir()
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        one, two = await rt.fan_out([("executor", "one."), ("executor", "two.")])
        assert (one.ok, two.ok) == (True, True)
        after = repo.files()
        # The user goes on, in the same file and beside it.
        text = (project / "shared.txt").read_text()
        repo.write("shared.txt", text.replace("line 10\n", "ten\n"))
        repo.write("mine", "m\n")
        undone = await rt.undo(one.run_id, one.agent_id)
        assert undone.ok
        assert sorted(map(str, undone.files)) == [
            "d/new (-1 line, removed)",
            "gone (+1 line, new file)",
            "shared.txt (+1/-1 lines)",
        ]
        expected = LINES.replace("line 17\n", "seventeen\n").replace("line 10\n", "ten\n")
        assert (project / "shared.txt").read_text() == expected
        assert (project / "gone").read_text() == "g\n"
        assert not (project / "d").exists()
        assert (project / "mine").read_text() == "m\n"
        with pytest.raises(RunError, match=f"There is nothing to undo of a1 in run {one.run_id}"):
            await rt.undo(one.run_id, "a1")
        assert {change.state for change in await rt.diff(one.run_id, "a1")} == {"undone"}
        assert (await rt.redo(one.run_id, "a1")).ok
        with pytest.raises(RunError, match="There is nothing to redo of a1"):
            await rt.redo(one.run_id, "a1")
        (project / "mine").unlink()
        text = (project / "shared.txt").read_text()
        repo.write("shared.txt", text.replace("ten\n", "line 10\n"))
        assert repo.files() == after
    assert repo.git_dir() == before


async def test_edits_in_the_way_are_named_and_nothing_is_undone(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES, "other": "1\n"})
    model = ScriptedModel(
        {
            "one.": [
                edit("line 3\n", "three\n"),
                call("write_file", path="other", content="2\n"),
                say("Done."),
            ],
            "two.": [edit("three\n", "THREE\n"), say("Done.")],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        one, _ = await rt.fan_out([("executor", "one."), ("executor", "two.")])
        refused = await rt.undo(one.run_id, "a1")
        assert refused.refused == ("shared.txt (changed since by a2)",)
        assert (await rt.undo(one.run_id, "root/executor.2")).ok
        repo.write("other", "mine\n")
        refused = await rt.undo(one.run_id, "a1")
        assert refused.refused == ("other",)
        assert "three" in (project / "shared.txt").read_text()
        assert (project / "other").read_text() == "mine\n"
        repo.write("other", "2\n")
        assert (await rt.undo(one.run_id, "a1")).ok
        assert (project / "shared.txt").read_text() == LINES
        with pytest.raises(UsageError, match="No agent 'a9' in run"):
            await rt.diff(one.run_id, "a9")


async def test_back_to_a_step_of_the_root(opened: Opened, repo: Repo, project: Path) -> None:
    repo.init().commit({"a": "0\n"})
    writes = [call("write_file", path="a", content=f"{number}\n") for number in range(1, 4)]
    async with opened(model=ScriptedModel([*writes, say("Done.")]), mode="auto") as rt:
        run = await rt.run("Count.")
        steps = await rt.diff(run.id)
        assert [(step.number, step.agent_id, step.title) for step in steps] == [
            (number, "a0", "write a") for number in (1, 2, 3)
        ]
        assert "-0\n+1\n" in steps[0].patch
        assert (await rt.undo(run.id, to=1)).ok
        assert (project / "a").read_text() == "1\n"
        assert (await rt.undo(run.id)).ok
        assert (project / "a").read_text() == "0\n"
        assert (await rt.redo(run.id)).ok
        assert (project / "a").read_text() == "3\n"


async def test_the_work_of_a_child_that_failed_can_be_brought_in(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1\n"})
    model = ScriptedModel([call("write_file", path="a", content="2\n"), say("Done.")])
    task = Task(role="executor", task="x", checks=("false",))
    async with opened(model=model, mode="auto", unsafe_no_sandbox=True) as rt:
        (child,) = await rt.fan_out([task])
        assert (child.ok, child.kept) == (False, True)
        (kept,) = await rt.diff(child.run_id)
        assert (kept.state, kept.agent_id, kept.number) == ("kept", "a1", None)
        assert (await rt.redo(child.run_id, "a1")).ok
        assert (project / "a").read_text() == "2\n"
        assert (await rt.undo(child.run_id, "a1")).ok
        assert (project / "a").read_text() == "1\n"
        (kept,) = await rt.diff(child.run_id)
        assert kept.state == "kept"


async def test_who_is_still_at_work_cannot_be_undone(opened: Opened, repo: Repo) -> None:
    repo.init().commit({"a": "1\n"})
    gate = asyncio.Event()
    model = ScriptedModel([hold(gate, say("Done."))])
    async with opened(model=model, mode="auto") as rt:
        job = await rt.start("executor", "x")
        for agent in (None, "a1"):
            with pytest.raises(RunError, match=f"Run {job.run_id} is still at work; wait for it,"):
                await rt.undo(job.run_id, agent)
        gate.set()
        assert (await job.result()).ok
