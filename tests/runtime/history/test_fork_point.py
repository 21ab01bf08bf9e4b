"""Forks: a new run starts from a moment of another one, with its conversation and files."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import pytest

from retinue.domain.budget import Limits
from retinue.domain.contract import decode_contract
from retinue.domain.events import RunStarted
from retinue.domain.messages import ToolMessage, UserMessage
from retinue.errors import ChainBroken, RecoveryError, UsageError, WorkspaceError
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, call, say
from retinue.project import open_journal
from retinue.runtime.history.audit import audit
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


def write(content: str, path: str = "state.txt") -> ScriptedReply:
    return call("write_file", path=path, content=content)


LOOK = call("grep", pattern="^", path=".")
"""Shows all lines of all files."""


def text_files(project: Path) -> list[str]:
    return sorted(path.name for path in project.glob("*.txt"))


def seen(model: ScriptedModel) -> str:
    """The files, as the last request shows them."""
    answers = [one for one in model.requests[-1].messages if isinstance(one, ToolMessage)]
    return answers[-1].content


async def test_conversation_and_files_are_those_of_the_moment(
    opened: Opened, project: Path
) -> None:
    model = ScriptedModel([write("one"), write("two"), say("Written."), LOOK, say("Seen.")])
    async with opened(model=model, mode="auto") as rt:
        first = await rt.run("Write.")
        before = [event async for event in rt.events(first.id)]
        fork = await rt.fork(first.id, at="t1", tell="What is there?")
        after = [event async for event in rt.events(first.id)]
        started = (await anext(aiter(rt.events(fork.id)))).fact
    *same, new = model.requests[3].messages
    assert tuple(same) == tuple(model.requests[1].messages)
    assert isinstance(new, UserMessage)
    assert new.content.startswith("What is there?\n")
    assert "one" in seen(model)
    assert "two" not in seen(model)
    assert (project / "state.txt").read_text() == "two"
    assert before == after
    assert isinstance(started, RunStarted)
    assert started.origin is not None
    assert started.origin.run_id == first.id
    assert started.origin.hash == next(e.hash for e in before if e.seq == started.origin.seq)
    async with open_journal(project) as store:
        assert (await audit(store, fork.id)).origin == first.id


async def test_the_work_of_a_fork_is_kept_and_can_be_applied(opened: Opened, project: Path) -> None:
    model = ScriptedModel([say("Hello."), write("forked", "new.txt"), say("Done.")])
    async with opened(model=model, mode="auto") as rt:
        first = await rt.run("Greet.")
        fork = await rt.fork(first.id)
        assert fork.ok
        assert not (project / "new.txt").exists()
        (change,) = await rt.diff(fork.id)
        assert (change.state, change.agent_id) == ("kept", "a0")
        await rt.redo(fork.id, "a0")
    assert (project / "new.txt").read_text() == "forked"


async def test_a_fork_replaces_the_work_of_its_run(opened: Opened, project: Path) -> None:
    """Also what the run had done before the moment, which `undo` takes back as well."""
    written = [write("1", "one.txt"), write("2", "two.txt"), say("Two.")]
    model = ScriptedModel([*written, write("3", "three.txt"), say("Three.")])
    async with opened(model=model, mode="auto") as rt:
        first = await rt.run("Write.")
        fork = await rt.fork(first.id, at="t1")
        await rt.redo(fork.id, "a0")
        assert text_files(project) == ["one.txt", "three.txt", "two.txt"]
        await rt.undo(fork.id, "a0")
        await rt.undo(first.id)
        assert not text_files(project)
        await rt.redo(fork.id, "a0")
    assert text_files(project) == ["one.txt", "three.txt"]


async def test_a_fork_counts_later_work_where_the_user_has_edited_the_earlier(
    opened: Opened, project: Path
) -> None:
    model = ScriptedModel([write("one"), say("One."), write("3", "three.txt"), say("Three.")])
    async with opened(model=model, mode="auto") as rt:
        first = await rt.run("Write.")
        (project / "state.txt").write_text("the user's")
        fork = await rt.fork(first.id)
        (kept,) = await rt.diff(fork.id)
    assert "three.txt" in kept.patch
    assert "state.txt" not in kept.patch


async def test_the_budget_is_what_was_left(opened: Opened) -> None:
    model = ScriptedModel([call("list_dir"), *[say("Answer.")] * 4])
    async with opened(model=model, limits={"max_turns": 9, "max_tool_calls": 7}) as rt:
        first = await rt.run("Look.")

        async def opening(**options: object) -> str:
            await rt.fork(first.id, **options)  # type: ignore[arg-type]
            return str(model.requests[-1].messages[-1].content)

        assert "Budget: 6 tool calls, 7 turns." in await opening()
        assert "Budget: 6 tool calls, 3 turns." in await opening(limits={"max_turns": 3})
        assert "Budget: 7 tool calls, 9 turns." in await opening(new_budget=True)


async def test_moments_that_cannot_be_forked(opened: Opened) -> None:
    model = ScriptedModel([write("one"), say("Written.")])
    async with opened(model=model, mode="auto") as rt:
        first = await rt.run("Write.")
        events = [event async for event in rt.events(first.id)]
        inside = next(e.seq for e in events if e.type == "tool.started")
        after = next(e.seq for e in events if e.type == "tool.finished")
        with pytest.raises(RecoveryError) as refused:
            await rt.fork(first.id, at=inside)
        assert str(refused.value).startswith(
            f"Run {first.id} cannot be forked at event {inside}: its call of write_file has no"
        )
        nearest = int(re.findall(r"--at (\d+)\.", str(refused.value))[0])
        assert nearest in (inside - 2, after)
        with pytest.raises(RecoveryError, match="cannot be forked at event 999: it has"):
            await rt.fork(first.id, at=999)
        with pytest.raises(RecoveryError, match=r"at t7; it can at: t0, t1, t2\."):
            await rt.fork(first.id, at="t7")
        with pytest.raises(UsageError, match="'soon' names no moment"):
            await rt.fork(first.id, at="soon")


async def test_why_a_moment_cannot_be_forked(opened: Opened) -> None:
    model = ScriptedModel(
        {
            "child task": [say("Looked.")],
            "": [call("spawn_agent", task="child task", background=True), LOOK, say("Done.")],
        }
    )
    async with opened(model=model, limits={"max_turns": 3}) as rt:
        run = await rt.run("Lead.")
        events = [event async for event in rt.events(run.id)]

        async def refusal(at: int) -> str:
            with pytest.raises(RecoveryError) as refused:
                await rt.fork(run.id, at=at)
            found = re.fullmatch(
                rf"Run {run.id} cannot be forked at event {at}: (.*)\. The nearest moment that can:"
                r" --at (\d+)\.",
                str(refused.value),
            )
            assert found is not None, refused.value
            await rt.fork(run.id, at=int(found[2]))
            return found[1]

        def first(kind: str, agent: str = "a0", after: int = 0) -> int:
            return next(
                e.seq for e in events if (e.type, e.agent_id) == (kind, agent) and e.seq > after
            )

        assert await refusal(1) == "it had not begun"
        asked = first("model.replied")
        assert await refusal(asked) == "its call of spawn_agent has no answer yet"
        answered = first("tool.finished")
        assert await refusal(answered) == "its child a1 is at work there"
        assert await refusal(events[-1].seq) == "it has been told that this is its last turn"


async def test_later_edits_of_the_user_that_are_in_the_way(opened: Opened, project: Path) -> None:
    model = ScriptedModel([write("one"), write("two"), say("Written.")])
    async with opened(model=model, mode="auto") as rt:
        first = await rt.run("Write.")
        (project / "state.txt").write_text("the user's")
        with pytest.raises(WorkspaceError, match=r"as they were: state\.txt changed since"):
            await rt.fork(first.id, at="t1")


async def test_a_fork_gets_no_more_than_the_run_had(opened: Opened, project: Path) -> None:
    model = ScriptedModel([say('{"n": 1}'), say('{"n": 2}')], strict=False)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    before = {"mode": "plan", "web_hosts": ["a.example", "b.example"], "checks": ["true"]}
    async with opened(model=model, **before) as rt:
        first = await rt.run("Look.", tools=["read_file", "grep"], output=schema)
    limits = Limits(max_turns=2, max_cost_usd=1.0)
    async with opened(model=model, mode="plan", web_hosts=["b.example", "c.example"]) as rt:
        tools = ["read_file", "edit_file", "web_fetch"]
        fork = await rt.fork(first.id, limits=limits, tools=tools)
    async with open_journal(project) as store:
        (root,), (forked,) = [await store.agents(run.id) for run in (first, fork)]
    had, contract = decode_contract(root.context_json), decode_contract(forked.context_json)
    assert contract.permissions.allowed_tools == ("read_file",)
    assert contract.permissions.web_hosts == ("b.example",)
    assert contract.outputs.checks == had.outputs.checks == ("true",)
    assert contract.outputs.output_schema == had.outputs.output_schema is not None
    assert (contract.execution.max_turns, contract.execution.max_cost_usd) == (2, 1.0)


async def test_a_fork_in_a_wider_mode_is_refused(opened: Opened) -> None:
    model = ScriptedModel([say("Hello.")])
    async with opened(model=model, mode="normal") as rt:
        first = await rt.run("Greet.")
    async with opened(model=model, mode="auto") as rt:
        with pytest.raises(UsageError) as refused:
            await rt.fork(first.id)
    assert str(refused.value) == f"Run {first.id} had mode normal; a fork of it cannot have auto."


async def test_current_limits_hold_for_what_was_left(opened: Opened) -> None:
    model = ScriptedModel([say("Hello."), say("Again.")], strict=False)
    async with opened(model=model, limits={"max_turns": 90, "max_tool_calls": 7}) as rt:
        first = await rt.run("Greet.")
    async with opened(model=model, limits={"max_turns": 8, "max_tool_calls": 60}) as rt:
        await rt.fork(first.id)
    assert "Budget: 7 tool calls, 8 turns." in str(model.requests[-1].messages[-1].content)


async def test_the_limits_of_a_loaded_skill_hold_in_forks(opened: Opened, tmp_path: Path) -> None:
    folder = tmp_path / ".claude/skills/look"
    folder.mkdir(parents=True)
    text = "---\nname: look\ndescription: d\nallowed-tools: Read\n---\nBody.\n"
    (folder / "SKILL.md").write_text(text)
    load = call("load_skill", name="look")
    model = ScriptedModel([load, say("Loaded."), write("x"), say("No."), write("x"), say("No.")])
    async with opened(model=model, mode="auto") as rt:
        first = await rt.run("Load.")
        fork = await rt.fork(first.id)
        assert "[DENIED] A skill that you loaded allows only: Read." in seen(model)
        await rt.fork(fork.id, at="t0")
        assert "[DENIED] A skill that you loaded allows only: Read." in seen(model)


async def test_a_journal_that_was_changed_is_refused(opened: Opened, project: Path) -> None:
    async with opened(model=ScriptedModel([say("Hello.")])) as rt:
        first = await rt.run("Greet.")
    with closing(sqlite3.connect(project / ".retinue/retinue.db")) as db, db:
        triggers = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            db.execute(f"DROP TRIGGER {name}")
        db.execute("UPDATE events SET payload = replace(payload, 'Hello', 'Bye')")
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(ChainBroken, match="is not what was written"):
            await rt.fork(first.id)


async def test_the_session_of_a_fork_continues_its_conversation(opened: Opened) -> None:
    model = ScriptedModel([say("One."), say("Two."), say("Three.")])
    async with opened(model=model) as rt:
        first = await rt.run("First.")
        fork = await rt.fork(first.id, tell="Second.")
        await rt.run("Third.", session=fork.id)
    said = [str(one.content).split("\n")[0] for one in model.requests[-1].messages[1:]]
    assert said == ["First.", "One.", "Second.", "Two.", "Third."]


async def test_a_child_of_a_fork_is_merged_into_its_copy(opened: Opened, project: Path) -> None:
    model = ScriptedModel(
        {
            "child task": [write("child", "child.txt"), say("Wrote it.")],
            "": [
                say("Hello."),
                call("spawn_agent", role="executor", task="child task"),
                LOOK,
                say("Done."),
            ],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        first = await rt.run("Greet.")
        fork = await rt.fork(first.id)
        assert "child" in seen(model)
        assert not (project / "child.txt").exists()
        second = await rt.fork(fork.id, at="t2", tell="And now?")
        events = [event async for event in rt.events(second.id)]
    assert fork.ok
    assert events[-1].type == "run.finished"
