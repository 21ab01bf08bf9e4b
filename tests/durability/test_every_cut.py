"""A journal that is cut off after any event is gone on with, and comes to the same end."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import pytest

import retinue
from retinue.domain.events import (
    AgentCreated,
    AgentTold,
    Event,
    ModelReplied,
    ToolFinished,
    ToolStarted,
)
from retinue.domain.messages import Request
from retinue.domain.projection import RunView
from retinue.errors import RunError
from retinue.models.scripted import Answer, ScriptedModel, Step, call, calls, say
from retinue.project import open_journal
from retinue.runtime.audit import audit, read_all
from retinue.runtime.facade import Runtime
from retinue.runtime.toolbox import INTERRUPTED

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


def small(answer: Answer) -> Answer:
    return answer.using(200, 20)


def spawn(task: str, **terms: object) -> Answer:
    return call("spawn_agent", task=task, **terms)


def family(asked: Counter[str]) -> ScriptedModel:
    """A root with children of every kind; `asked` counts who was asked with how many messages."""

    def counted(steps: list[Answer]) -> list[Step]:
        def of(step: Answer) -> Step:
            def answer(request: Request) -> Step:
                asked[f"{request.asker} {len(request.messages)}"] += 1
                return small(step)

            return answer

        return [of(step) for step in steps]

    root = [
        calls(
            spawn("reader: b", role="researcher", background=True),
            spawn("parent: c", role="executor", background=True),
            spawn("reader: d", role="researcher"),
            spawn("writer: e", role="executor", scope="out"),
        ),
        call(
            "delegate_task",
            plan="two things",
            subtasks=[
                {"task": "reader: g", "role": "researcher"},
                {"task": "reader: h", "role": "reviewer", "depends_on": 0},
            ],
        ),
        call("spawn_await", job_ids="*"),
        call("write_file", path="out/root.txt", content="root\n"),
        say("All done."),
    ]
    look = calls(call("list_dir"), call("read_file", path="notes.txt"))
    return ScriptedModel(
        {
            "parent:": counted(
                [
                    calls(
                        spawn("reader: i", role="reviewer", background=True),
                        spawn("reader: j", role="reviewer"),
                    ),
                    call("spawn_await", job_ids="*"),
                    say("Mine are done."),
                ]
            ),
            "writer:": counted(
                [
                    call("write_file", path="out/e.txt", content="e\n"),
                    call("write_file", path="out/f.txt", content="f\n"),
                    say("Written."),
                ]
            ),
            "reader:": counted([look, say("Read.")]),
            "": counted(root),
        },
        strict=False,
    )


def opened_family(
    opened: Opened, asked: Counter[str], heard: list[Event]
) -> AbstractAsyncContextManager[Runtime]:
    return opened(model=family(asked), mode="auto", cache=False, on_event=heard.append)


def cut(path: Path, seq: int) -> None:
    """Make the journal what it was when that event was its last."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        kept = triggers.fetchall()
        for name, _ in kept:
            db.execute(f"DROP TRIGGER {name}")
        db.execute("DELETE FROM events WHERE seq > ?", (seq,))
        db.execute(
            "DELETE FROM sub_agents WHERE id NOT IN"
            " (SELECT agent_id FROM events WHERE type = 'agent.subagent_created')"
        )
        db.execute(
            "UPDATE sub_agents SET state = coalesce((SELECT CASE type"
            " WHEN 'agent.subagent_started' THEN 'running'"
            " WHEN 'agent.subagent_waiting_for_merge' THEN 'waiting_for_merge'"
            " WHEN 'agent.subagent_completed' THEN 'completed'"
            " WHEN 'agent.subagent_failed' THEN 'failed'"
            " WHEN 'agent.subagent_closed' THEN 'closed' END FROM events"
            " WHERE events.agent_id = sub_agents.id AND type IN"
            " ('agent.subagent_started', 'agent.subagent_waiting_for_merge',"
            " 'agent.subagent_completed', 'agent.subagent_failed', 'agent.subagent_closed')"
            " ORDER BY seq DESC LIMIT 1), 'created')"
        )
        db.execute(
            "UPDATE runs SET status = NULL, finished_at = NULL, (head_seq, head_hash, epoch) ="
            " (SELECT seq, hash, epoch FROM events ORDER BY seq DESC LIMIT 1)"
        )
        for _, sql in kept:
            db.execute(sql)


async def whole(project: Path) -> tuple[RunView, list[Event]]:
    async with open_journal(project) as store:
        (row,) = await store.runs()
        await audit(store, row.id)
        events = await read_all(store, row.id)
    return retinue.fold(events), events


def told_of(events: list[Event]) -> set[str]:
    """The background children whose end was told to their parent, unasked at most once."""
    told: set[str] = set()
    for event in events:
        fact = event.fact
        if isinstance(fact, ToolFinished):
            told.update(fact.about)
        elif isinstance(fact, AgentTold) and fact.source == "staff":
            assert not told & set(fact.about), "it knew that already"
            told.update(fact.about)
    return told


def tree(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): path.read_text()
        for path in sorted(project.rglob("*"))
        if path.is_file() and ".retinue" not in path.parts and ".git" not in path.parts
    }


@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.slow), pytest.param(9, id="some")]
)
async def test_every_cut(opened: Opened, project: Path, tmp_path: Path, every: int) -> None:
    (project / "notes.txt").write_text("note\n")
    asked: Counter[str] = Counter()
    async with opened_family(opened, asked, []) as rt:
        first = await rt.run("Lead.")
    assert first.ok, first.error
    undisturbed, events = await whole(project)
    final = tree(project)
    assert len(final) == 4
    database = project / ".retinue" / "retinue.db"
    kept = tmp_path / "kept.db"
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(database, kept)
    for seq in range(1, len(events), every):
        shutil.copy(kept, database)
        for name in ("retinue.db-wal", "retinue.db-shm"):
            (project / ".retinue" / name).unlink(missing_ok=True)
        cut(database, seq)
        before = events[:seq]
        bought = {f"{e.agent_id} {e.fact.turn}" for e in before if isinstance(e.fact, ModelReplied)}
        asked.clear()
        heard: list[Event] = []
        async with opened_family(opened, asked, heard) as rt:
            if seq == 1:
                with pytest.raises(RunError, match="was ended before it had begun"):
                    await rt.resume(first.id)
                continue
            result = await rt.resume(first.id)
        where = f"cut behind event {seq}, {before[-1].type} of {before[-1].agent_id}"
        assert (result.status, result.response) == ("completed", "All done."), where
        view, after = await whole(project)
        assert after[:seq] == before, where
        assert {a.path: a.status for a in view.agents.values()} == {
            a.path: a.status for a in undisturbed.agents.values()
        }, where
        # Nothing is bought again.
        again = [f"{e.agent_id} {e.fact.turn}" for e in heard if isinstance(e.fact, ModelReplied)]
        assert not bought & set(again), where
        assert len(set(again)) == len(again), where
        # Every child's end is told exactly once.
        background = {
            e.agent_id for e in after if isinstance(e.fact, AgentCreated) and e.fact.background
        }
        assert len(background) == 3
        assert told_of(after) == background, where
        # What writes is begun once, and the model is told if nobody knows what became of it.
        writes = Counter(
            (e.agent_id, e.fact.call_id)
            for e in after
            if isinstance(e.fact, ToolStarted) and e.fact.tool == "write_file"
        )
        assert set(writes.values()) == {1}, where
        interrupted = [e for e in heard if e.type == "tool.finished" and INTERRUPTED in e.summary]
        under_way = isinstance(before[-1].fact, ToolStarted)
        assert len(interrupted) <= 2 if under_way else True, where
        # The bill is that of the undisturbed run.
        assert (result.total.turns, result.total.tool_calls, result.total.tokens) == (
            first.total.turns,
            first.total.tool_calls,
            first.total.tokens,
        ), where
        assert result.children == first.children
