"""Taking back what a run has done to the files, and making it again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

from retinue.config.environment import Environment
from retinue.domain.events import ChangesUndone, Event
from retinue.domain.run_state import fold
from retinue.errors import RunError, UsageError
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, Step, call, hold, say
from retinue.project import open_journal, open_run_undo
from retinue.runtime.delegation.task import Task
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.runtime import Runtime
from retinue.workspace.recorded_changes import FileState as File
from retinue.workspace.recorded_changes import change_ref, record_files

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
LINES = "".join(f"line {number}\n" for number in range(1, 21))


def edit(old: str, new: str) -> ScriptedReply:
    return call("edit_file", path="shared.txt", old_text=old, new_text=new)


@pytest.mark.parametrize("versioned", [True, False])
async def test_undo_and_redo_one_child(
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


async def test_conflicting_edits_are_named_and_nothing_is_undone(
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


async def test_undo_to_a_step(opened: Opened, repo: Repo, project: Path) -> None:
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


async def test_redo_applies_kept_work_of_a_failed_child(
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


async def test_agent_at_work_cannot_be_undone(opened: Opened, repo: Repo) -> None:
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


async def test_undo_and_redo_are_recorded(opened: Opened, repo: Repo, project: Path) -> None:
    repo.init().commit({"a": "1\n"})
    writes = [call("write_file", path="a", content="2\n"), say("Done.")]
    async with opened(model=ScriptedModel(writes), mode="auto") as rt:
        run = await rt.run("Write.")
        await rt.undo(run.id)
        await rt.redo(run.id)
        await rt.undo(run.id, "a0")
    async with open_journal(project) as store:
        # The chain goes on behind the end, and nothing else about the run has changed.
        assert (await audit(store, run.id)).events == (await store.run(run.id)).head_seq
        events = await read_all(store, run.id)
        assert [event.summary for event in events[-4:]] == [
            "run completed",
            "undone: a (+1/-1 lines)",
            "redone: a (+1/-1 lines)",
            "undone of a0: a (+1/-1 lines)",
        ]
        fact = events[-1].fact
        assert isinstance(fact, ChangesUndone)
        assert (fact.numbers, fact.agent) == ((1,), "a0")
        assert fact.files[0].after_sha256 == hashlib.sha256(b"1\n").hexdigest()
        view = fold(events)
        assert [what for _, what in view.undo_history] == [event.summary for event in events[-3:]]
        assert view.finished_at == (await store.run(run.id)).finished_at
    model = ScriptedModel([say("I see.")])
    async with opened(model=model, mode="auto") as rt:
        assert (await rt.run("And now?", session=run.id)).ok
    *_, undone, task = model.requests[-1].messages
    assert "undone of a0: a (+1/-1 lines)" in str(undone)
    assert "And now?" in str(task)


async def test_closed_agent_can_be_undone_while_others_work(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1\n"})
    gate = asyncio.Event()
    model = ScriptedModel(
        {
            "one.": [call("write_file", path="a", content="2\n"), say("Done.")],
            "two.": [hold(gate, call("write_file", path="b", content="2\n")), say("Done.")],
        }
    )
    ended, run_id = asyncio.Event(), ""

    def listen(event: Event) -> None:
        nonlocal run_id
        run_id = event.run_id
        if (event.agent_id, event.type) == ("a1", "agent.subagent_closed"):
            ended.set()

    async with opened(model=model, mode="auto", on_event=listen) as rt:
        tasks = [
            Task(role="executor", task="one.", write=("a",)),
            Task(role="executor", task="two.", write=("b",)),
        ]
        work = asyncio.create_task(rt.fan_out(tasks))
        await ended.wait()
        user = Environment(variables={"HOME": str(project.parent)})
        with pytest.raises(RunError, match="Another process works on run"):
            async with open_run_undo(project, run_id, agent="a1", environment=user):
                pass
        assert (await rt.undo(run_id, "a1")).ok
        assert (project / "a").read_text() == "1\n"
        gate.set()
        assert all(result.ok for result in await work)
    async with open_journal(project) as store:
        await audit(store, run_id)
        types = [event.type for event in await read_all(store, run_id)]
    assert types.index("run.steps_undone") < types.index("run.finished")


async def test_change_number_is_never_reused(opened: Opened, repo: Repo, project: Path) -> None:
    repo.init().commit({"a": "0\n"})
    gate, reached, run_id = asyncio.Event(), asyncio.Event(), ""

    def listen(event: Event) -> None:
        nonlocal run_id
        run_id = event.run_id
        if event.type == "turn.started" and event.summary.startswith("turn 2/"):
            reached.set()

    script: list[Step] = [
        call("write_file", path="a", content="1\n"),
        hold(gate, call("write_file", path="b", content="1\n")),
        say("Done."),
    ]
    model = ScriptedModel({"": script}, strict=False)
    async with opened(model=model, mode="auto", on_event=listen) as rt:
        work = asyncio.create_task(rt.run("Write."))
        await reached.wait()
        rt.suspend("the user has left")
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert (await rt.undo(run_id)).ok
        # As by a process that was killed before it could say what it has done.
        file = File("c", 0o100644, b"1\n")
        record_files(repo.private_git(), change_ref(run_id, 2), [], [file], "write c")
    gate.set()
    async with opened(model=model, mode="auto") as rt:
        assert (await rt.resume(run_id)).ok
        steps = [(one.number, one.state, one.title) for one in await rt.diff(run_id)]
    assert steps == [(1, "undone", "write a"), (2, "made", "write c"), (3, "made", "write b")]


@pytest.mark.parametrize("autocrlf", ["true", "input", "false"])
@pytest.mark.parametrize("committed", ["\n", "\r\n"])
async def test_line_ends_that_git_normalizes_are_no_conflict(
    opened: Opened, repo: Repo, project: Path, autocrlf: str, committed: str
) -> None:
    repo.init()
    repo.commit({"a": f"1{committed}2{committed}3{committed}"})
    repo.git("config", "core.autocrlf", autocrlf)
    repo.write("a", "1\r\n2\r\n3\r\n")
    edit = call("edit_file", path="a", old_text="2", new_text="two")
    async with opened(model=ScriptedModel([edit, say("Done.")]), mode="auto") as rt:
        run = await rt.run("Edit.")
        assert (project / "a").read_bytes() == b"1\r\ntwo\r\n3\r\n"
        repo.write("a", "1\r\ntwo\r\n3\r\n4\r\n5\r\n")
        undone = await rt.undo(run.id)
        assert undone.refused == ()
        mended = autocrlf == "input" and committed == "\n"
        end = b"\n" if mended else b"\r\n"
        assert (project / "a").read_bytes() == end.join([b"1", b"2", b"3", b"4", b"5", b""])
        assert (await rt.redo(run.id)).refused == ()
        assert (project / "a").read_bytes() == end.join([b"1", b"two", b"3", b"4", b"5", b""])


async def test_redo_of_a_line_end_change(opened: Opened, repo: Repo, project: Path) -> None:
    repo.init().commit({"a": "1\n"})
    write = call("write_file", path="a", content="1\r\n2\n")
    async with opened(model=ScriptedModel([write, say("Done.")]), mode="auto") as rt:
        run = await rt.run("Write.")
        assert (await rt.undo(run.id)).refused == ()
        assert (await rt.redo(run.id)).refused == ()
    assert (project / "a").read_bytes() == b"1\r\n2\n"
