"""Forks: a new run starts from a moment of another one, with its conversation and files."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import retinue
from retinue.config.environment import Environment
from retinue.domain.budget import Limits
from retinue.domain.contract import decode_contract
from retinue.domain.events import Event, FilesChanged, RunStarted, ToolFinished, ToolStarted
from retinue.domain.messages import Message, Request, ToolMessage, UserMessage
from retinue.errors import ChainBroken, RecoveryError, UsageError, WorkspaceError
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, Step, call, calls, say
from retinue.project import open_journal
from retinue.runtime.agent.conversation import SUMMARIZE
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
            f"Run {first.id} cannot be forked at event {inside}: a call or a child is at work"
        )
        nearest = int(re.findall(r"--at (\d+)\.", str(refused.value))[0])
        assert nearest in (inside - 2, after)
        with pytest.raises(RecoveryError, match="cannot be forked at event 999: it has"):
            await rt.fork(first.id, at=999)
        with pytest.raises(RecoveryError, match=r"at t7; it can at: t0, t1, t2\."):
            await rt.fork(first.id, at="t7")
        with pytest.raises(UsageError, match="'soon' names no moment"):
            await rt.fork(first.id, at="soon")


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


KINDS = ["write", "look", "both", "child", "background", "page", "pages"]
WINDOW = 6_000
CHANGES = ("agent.told", "agent.context_compacted", "tool.finished", "tool.denied")
"""Events of an agent that change its next request."""


@retinue.tool(effect="read")
async def page() -> str:
    """A long page."""
    return "word " * 800


@settings(max_examples=3, deadline=None)
@example(kinds=["write", "background", "pages", "write"])
@example(kinds=["page", "child", "page", "page", "page"])
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
def test_fork_at_every_event(kinds: list[str]) -> None:
    with tempfile.TemporaryDirectory() as project, tempfile.TemporaryDirectory() as home:
        subprocess.run(["git", "init", "-q"], cwd=project, check=True)
        asyncio.run(_fork_at_every_event(kinds, project, home))


def _step(kind: str, number: int) -> ScriptedReply:
    match kind:
        case "write":
            return write(f"number {number}")
        case "both":
            return calls(write(f"number {number}"), call("list_dir"))
        case "child" | "background":
            background = kind == "background"
            return call(
                "spawn_agent", role="executor", task=f"{kind} task {number}", background=background
            )
        case "page":
            return call("page")
        case "pages":
            return calls(*[call("page")] * 4)
        case _:
            return call("list_dir")


def _scripted(kinds: Sequence[str]) -> ScriptedModel:
    """The root takes a step of each kind, and sums up when it is asked to."""
    steps = iter([*(_step(kind, number) for number, kind in enumerate(kinds)), say("End.")])

    def next_step(request: Request) -> Step:
        if request.messages[-1].content == SUMMARIZE:
            return say("So far, so good.")
        return next(steps, say("End."))

    def child(request: Request) -> Step:
        kind, number = re.findall(r"(child|background) task (\d)", str(request.messages[1]))[0]
        return write(f"by {kind} {number}", f"{kind}{number}.txt")

    work: list[Step] = [child, say("Wrote.")]
    script: dict[str, list[Step]] = {
        "child task": work,
        "background task": work,
        "": [next_step] * 20,
    }
    return ScriptedModel(script, strict=False)


async def _fork_at_every_event(kinds: list[str], project: str, home: str) -> None:
    """Fork a run at all its events, and each fork once more; compare with what was recorded."""
    model = _scripted(kinds)
    environment = Environment(variables={"PATH": "/usr/bin:/bin", "HOME": home})

    def open_with(model: ScriptedModel, window: int) -> AbstractAsyncContextManager[Runtime]:
        return retinue.open(
            project, model=model, mode="auto", cache=False, environment=environment,
            tools=[page], limits={"max_context_tokens": window},
        )  # fmt: skip

    async with open_with(model, WINDOW) as rt:
        run = await rt.run("Work.")
        events = [event async for event in rt.events(run.id)]
    if "pages" in kinds:
        assert "agent.context_compacted" in {event.type for event in events}
    requests = [one.messages for one in model.requests if "Work." in str(one.messages[1])]
    async with open_journal(project, environment) as store:
        audited = await audit(store, run.id)
    forked = 0
    for event in events:
        again = ScriptedModel([LOOK, say("Seen."), LOOK, say("Seen.")], strict=False)
        async with open_with(again, 10 * WINDOW) as rt:
            try:
                fork = await rt.fork(run.id, at=event.seq, new_budget=True)
            except RecoveryError:
                continue
            forked += 1
            files = seen(again)
            _check_conversation(again.requests[0].messages, requests, events, event.seq)
            second = await rt.fork(fork.id, at="t0", new_budget=True)
            assert seen(again) == files
        _check_files(files, [e for e in events if e.seq <= event.seq])
        async with open_journal(project, environment) as store:
            assert await audit(store, run.id) == audited
            assert (await audit(store, second.id)).origin == fork.id
    assert forked > 1


def _check_conversation(
    forked: Sequence[Message],
    requests: Sequence[Sequence[Message]],
    events: Sequence[Event],
    seq: int,
) -> None:
    """The fork's first request begins with the request that followed in the original.

    If something was added or removed before that request, it begins with the one before.
    """
    own = [event for event in events if event.agent_id == "a0"]
    replies = [event.seq for event in own if event.type == "model.replied" and event.seq <= seq]
    turns = (e.seq for e in own if e.seq > seq and e.type == "turn.started")
    end, begin = next(turns, events[-1].seq), max(replies, default=0)
    changes = [e for e in own if seq < e.seq < end and e.type in CHANGES]
    if len(replies) < len(requests) and not changes:
        assert list(forked[:-1]) == list(requests[len(replies)])
    elif not any(e.type == "agent.context_compacted" for e in own if begin < e.seq <= seq):
        before = list(requests[len(replies) - 1]) if replies else []
        assert list(forked[: len(before)]) == before


def _check_files(files: str, taken: Sequence[Event]) -> None:
    """The fork sees what the run had written at that moment, and nothing else."""
    facts = [event.fact for event in taken if event.agent_id == "a0"]
    arguments = {fact.call_id: fact.arguments for fact in facts if isinstance(fact, ToolStarted)}
    done = [fact for fact in facts if isinstance(fact, ToolFinished)]
    written = [json.loads(arguments[f.call_id]) for f in done if f.tool == "write_file"]
    assert re.findall(r"number \d", files) == [one["content"] for one in written[-1:]]
    changes = [event.fact for event in taken if isinstance(event.fact, FilesChanged)]
    merged = {file.path for fact in changes for file in fact.files} - {"state.txt"}
    by_children = re.findall(r"by (child|background) (\d)", files)
    assert {f"{kind}{number}.txt" for kind, number in by_children} == merged
