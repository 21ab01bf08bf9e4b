"""A journal that is cut off after any event is gone on with, and comes to the same end."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import retinue
from retinue.domain.events import (
    AgentCreated,
    Event,
    FilesChanged,
    MessageReceived,
    ModelReplied,
    RaceDecided,
    ToolFinished,
    ToolStarted,
)
from retinue.domain.messages import Request
from retinue.domain.run_state import RunState
from retinue.errors import ProviderError, RunError
from retinue.models.scripted.model import (
    ScriptedHold,
    ScriptedModel,
    ScriptedReply,
    Step,
    call,
    calls,
    fail,
    say,
)
from retinue.project import open_journal
from retinue.runtime.agent.conversation import INTERRUPTED
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.runtime import Runtime
from tests.durability.journal_cut import cut

if TYPE_CHECKING:
    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
# So that the executor with children waits for one in the background.
SETTINGS = """
[roles.executor]
tools = ["list_dir", "read_file", "write_file", "spawn_await"]
"""


def small(answer: ScriptedReply) -> ScriptedReply:
    return answer.using(200, 20)


def spawn(task: str, **terms: object) -> ScriptedReply:
    return call("spawn_agent", **{"task": task, "role": "researcher"} | terms)


def family(asked: Counter[str]) -> ScriptedModel:
    """A root with children of every kind; `asked` counts who was asked with how many messages."""

    def counted(steps: list[ScriptedReply]) -> list[Step]:
        def of(step: ScriptedReply) -> Step:
            def answer(request: Request) -> Step:
                asked[f"{request.agent_path} {len(request.messages)}"] += 1
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


async def whole(project: Path) -> tuple[RunState, list[Event]]:
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
        elif isinstance(fact, MessageReceived) and fact.source == "staff":
            assert not told & set(fact.about), "it knew that already"
            told.update(fact.about)
    return told


def tree(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): path.read_text()
        for path in sorted(project.rglob("*"))
        if path.is_file() and ".retinue" not in path.parts and ".git" not in path.parts
    }


def keep(project: Path, tmp_path: Path) -> Callable[[int], None]:
    """Keeps the journal as it is; what it answers puts it back, cut off behind an event."""
    database, kept = project / ".retinue" / "retinue.db", tmp_path / "kept.db"
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(database, kept)

    def put_back(seq: int) -> None:
        shutil.copy(kept, database)
        for name in ("retinue.db-wal", "retinue.db-shm"):
            (project / ".retinue" / name).unlink(missing_ok=True)
        cut(database, seq)

    return put_back


@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.slow), pytest.param(9, id="some")]
)
async def test_every_cut(
    opened: Opened, project: Path, settings: Callable[[str], None], tmp_path: Path, every: int
) -> None:
    settings(SETTINGS)
    (project / "notes.txt").write_text("note\n")
    asked: Counter[str] = Counter()
    async with opened_family(opened, asked, []) as rt:
        first = await rt.run("Lead.")
    assert first.ok, first.error
    undisturbed, events = await whole(project)
    final = tree(project)
    assert len(final) == 4
    put_back = keep(project, tmp_path)
    for seq in range(1, len(events), every):
        put_back(seq)
        before = events[:seq]
        bought = {f"{e.agent_id} {e.fact.turn}" for e in before if isinstance(e.fact, ModelReplied)}
        asked.clear()
        heard: list[Event] = []
        async with opened_family(opened, asked, heard) as rt:
            if seq == 1:
                with pytest.raises(RunError, match="ended before it had begun"):
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


# Plans


def planned_step(name: str, *needs: str, role: str = "researcher", **more: Any) -> dict[str, Any]:
    return {"name": name, "role": role, "task": f"Do {name}.", "depends_on": list(needs), **more}


PLAN = {
    "goal": "Get there",
    "review": True,
    "steps": [
        planned_step("look"),
        planned_step("write", "look", role="executor", writes=["out/**", "end/**"]),
        planned_step("again", on_failure="retry"),
        planned_step("dead", "again", "write", on_failure="replan"),
        planned_step("never", "dead"),
    ],
}


def as_json(**value: object) -> Step:
    return small(say(msgspec.json.encode(value).decode()))


def at_second_try(request: Request) -> Step:
    tried = "An earlier try" in request.messages[1].content
    return small(say("Fine.")) if tried else fail(ProviderError("not yet"))


def steps_of(path: str, text: str) -> list[Step]:
    return [small(call("write_file", path=path, content=text)), small(say(f"Wrote {path}."))]


def planning() -> ScriptedModel:
    """One that retries, plans anew, is reviewed and mended."""
    around: Sequence[dict[str, Any]] = (
        planned_step("around", "look"),
        planned_step("end", "around", "write", role="executor", writes=["end/**"]),
    )
    finding = {"task": "Mend it.", "files": ["out/a.txt"]}
    return ScriptedModel(
        {
            "You are a planner": [as_json(summary="Another way", steps=around)],
            "You are a reviewer": [as_json(summary="Seen.", findings=[finding])],
            "Do look.": [small(call("list_dir")), small(say("Looked."))],
            "Do write.": steps_of("out/a.txt", "a\n"),
            "Do again.": [at_second_try],
            "Do dead.": [fail(ProviderError("no way"))],
            "Do around.": [small(say("Round."))],
            "Do end.": steps_of("end/b.txt", "b\n"),
            "Mend it.": steps_of("out/a.txt", "mended\n"),
        },
        strict=False,
    )


def timeless(report: str) -> str:
    """A report of a plan, without how fast the machine was, and what was there before it wrote."""
    report = re.sub(r"txt \(.*\)", "txt", report)
    report = re.sub(r"\d+\.\d (s|\|)", r"_ \1", report)
    return re.sub(r"- Against the .*", "", report)


@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.slow), pytest.param(11, id="some")]
)
async def test_every_cut_of_a_plan(
    opened: Opened, project: Path, tmp_path: Path, every: int
) -> None:
    async with opened(model=planning(), mode="auto", cache=False) as rt:
        first = await rt.execute(PLAN, max_concurrent=2)
    assert first.ok, first.error
    undisturbed, events = await whole(project)
    final = tree(project)
    assert final == {"out/a.txt": "mended\n", "end/b.txt": "b\n"}
    put_back = keep(project, tmp_path)
    for seq in range(2, len(events), every):
        put_back(seq)
        before = events[:seq]
        where = f"cut behind event {seq}, {before[-1].type} of {before[-1].agent_id}"
        heard: list[Event] = []
        async with opened(model=planning(), mode="auto", cache=False, on_event=heard.append) as rt:
            if not any(event.type == "plan.adopted" for event in before):
                with pytest.raises(RunError, match="before its plan was recorded"):
                    await rt.resume(first.run_id)
                continue
            result = await rt.resume(first.run_id)
        assert result.ok, f"{where}: {result.error}"
        view, after = await whole(project)
        assert after[:seq] == before, where
        assert {a.path: a.status for a in view.agents.values()} == {
            a.path: a.status for a in undisturbed.agents.values()
        }, where
        assert tree(project) == final, where
        # Of a write that was cut off, nobody can say what it did.
        if not any(e.type == "tool.finished" and INTERRUPTED in e.summary for e in heard):
            assert timeless(result.response) == timeless(first.report), where
        assert result.plan is not None
        assert [o.step.name for o in result.plan.steps] == [o.step.name for o in first.steps]
        bought = Counter(
            f"{e.agent_id} {e.fact.turn}" for e in after if isinstance(e.fact, ModelReplied)
        )
        assert set(bought.values()) == {1}, where
        # Every decision is made once.
        decided = Counter(e.summary for e in after if e.type.startswith("plan."))
        assert decided == Counter(e.summary for e in events if e.type.startswith("plan.")), where
        writes = Counter(
            (e.agent_id, e.fact.call_id)
            for e in after
            if isinstance(e.fact, ToolStarted) and e.fact.tool == "write_file"
        )
        assert set(writes.values()) == {1}, where


@pytest.mark.parametrize("count", [1, 2])
async def test_change_whose_record_was_lost_is_recorded(
    opened: Opened, project: Path, count: int
) -> None:
    """The process was killed after it had written the files, and before it had recorded that.

    A single child works in the user's files; two work in copies, which are merged.
    """
    model = ScriptedModel(
        {
            f"Write {n}": [call("write_file", path=f"{n}.txt", content="a\n"), say("Written.")]
            for n in range(count)
        },
        strict=False,
    )
    heard: list[Event] = []
    tasks = [
        retinue.Task(role="executor", task=f"Write {n}.", write=(f"{n}.txt",)) for n in range(count)
    ]
    async with opened(model=model, mode="auto", on_event=heard.append) as rt:
        first, *_ = await rt.fan_out(tasks)
    changed = next(event for event in heard if isinstance(event.fact, FilesChanged))
    cut(project / ".retinue" / "retinue.db", changed.seq - 1)
    async with opened(model=model, mode="auto") as rt:
        await rt.resume(first.run_id)
        _, events = await whole(project)
        again = [event.fact for event in events if isinstance(event.fact, FilesChanged)]
        assert (len(again), again[0]) == (count, changed.fact)
        await rt.undo(first.run_id, first.agent_id)
    assert [(project / f"{n}.txt").exists() for n in range(count)] == [False, True][:count]


# Races


def raced(name: str, text: str) -> list[Step]:
    """Writes once more if nobody knows whether it was done."""
    write, done = small(call("write_file", path="out/a.txt", content=text)), small(say(f"{name}."))

    def then(request: Request) -> Step:
        return write if INTERRUPTED in request.messages[-1].content else done

    return [write, then, done]


def racers() -> ScriptedModel:
    return ScriptedModel(
        {
            "You are long.": raced("Long", "fixed\nfixed\n"),
            "You are short.": raced("Short", "fixed\n"),
            "You are wrong.": [*raced("Wrong", "no\n"), small(say("Still wrong."))],
        },
        strict=False,
    )


def copied_unchanged(folders: Sequence[Path], into: Path) -> bool:
    """Copy folders, without the journal, which comes from the end of the run.

    Return whether nothing in them has changed meanwhile.
    """
    journal = shutil.ignore_patterns("retinue.db*")

    def times() -> dict[Path, int]:
        files = [path for folder in folders for path in folder.rglob("*")]
        return {p: p.lstat().st_mtime_ns for p in files if not p.name.startswith("retinue.db")}

    try:
        before = times()
        for folder in folders:
            shutil.copytree(folder, into / folder.name, symlinks=True, ignore=journal)
        return times() == before
    except (FileNotFoundError, shutil.Error):
        into.mkdir(parents=True, exist_ok=True)
        return False


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.slow), pytest.param(7, id="some")]
)
async def test_every_cut_of_a_race(
    opened: Opened, project: Path, tmp_path: Path, repo: Repo, every: int, *, first: bool
) -> None:
    """With the files and the copies as they were at that moment."""
    cache, moments = tmp_path / "home" / ".cache", tmp_path / "moments"
    cache.mkdir()
    repo.root = project
    repo.init().commit({"notes.txt": "note\n"})

    def save(event: Event) -> None:
        if event.seq >= 5 and event.seq % every == 0:
            moment = moments / str(event.seq)
            # Threads go on with what they have begun: with a copy of files, say.
            while not copied_unchanged((project, cache), moment):
                shutil.rmtree(moment)

    options = {"mode": "auto", "cache": False, "unsafe_no_sandbox": True}
    prompts: list[retinue.TaskOptions] = [
        {"system_prompt": f"You are {name}."} for name in ("long", "wrong", "short")
    ]
    async with opened(model=racers(), on_event=save, **options) as rt:
        race = await rt.race(
            "executor", "Fix.", prompts, checks=["grep -q fixed out/a.txt"], first=first,
            max_concurrent=1,
        )  # fmt: skip
    assert race.winner is not None
    _, events = await whole(project)
    put_back = keep(project, tmp_path)
    for seq in sorted(int(moment.name) for moment in moments.iterdir()):
        if seq >= len(events):
            continue
        for folder in (project, cache):
            shutil.rmtree(folder)
            shutil.copytree(moments / str(seq) / folder.name, folder, symlinks=True)
        put_back(seq)
        before = events[:seq]
        where = f"cut behind event {seq}, {before[-1].type} of {before[-1].agent_id}"
        async with opened(model=racers(), **options) as rt:
            result = await rt.resume(race.run_id)
        assert result.ok, f"{where}: {result.error}"
        view, after = await whole(project)
        ends = [(one.agent_id, str(one.status), one.error) for one in result.results]
        where = f"{where}: {ends}, {[e.fact for e in after if isinstance(e.fact, RaceDecided)]}"
        assert after[:seq] == before, where
        assert all(agent.state == "closed" for agent in view.agents.values()), where
        decided = [e.fact.winner for e in after if isinstance(e.fact, RaceDecided)]
        earlier = [e.fact.winner for e in before if isinstance(e.fact, RaceDecided)]
        assert len(decided) == 1, where
        assert decided == earlier or not earlier, where
        winner = view.agents[decided[0]]
        assert winner.status == "completed", where
        assert not winner.unmerged_files, where
        merged = {e.agent_id for e in after if e.type == "agent.worktree_merged"}
        assert merged == {winner.id}, where
        if not first:
            assert decided == ["a3"], where
            assert [str(r.status) for r in result.results] == ["completed", "error", "completed"]
            assert result.results[0].kept, where
        text = "fixed\n" if winner.id == "a3" else "fixed\nfixed\n"
        assert (project / "out" / "a.txt").read_text() == text, where
        bought = Counter(
            f"{e.agent_id} {e.fact.turn}" for e in after if isinstance(e.fact, ModelReplied)
        )
        assert set(bought.values()) == {1}, f"{where}: bought again"
        copies = cache / "retinue" / "worktrees"
        assert not list(copies.rglob(f"{race.run_id}*")), where


async def test_child_that_waited_for_its_merge_is_cancelled_with_its_run(
    opened: Opened, project: Path, tmp_path: Path, repo: Repo
) -> None:
    cache, moment, waiting = tmp_path / "home" / ".cache", tmp_path / "moment", list[int]()
    cache.mkdir()
    repo.root = project
    repo.init().commit({"notes.txt": "note\n"})

    def save(event: Event) -> None:
        if event.agent_id == "a1" and event.type == "agent.subagent_waiting_for_merge":
            waiting.append(event.seq)
            while not copied_unchanged((project, cache), moment):
                shutil.rmtree(moment)

    model = ScriptedModel([small(call("write_file", path="a.txt", content="a\n")), small(say("A"))])
    options = {"mode": "auto", "cache": False}
    async with opened(model=model, on_event=save, **options) as rt:
        done = await rt.spawn("executor", "Write.")
    put_back = keep(project, tmp_path)
    for folder in (project, cache):
        shutil.rmtree(folder)
        shutil.copytree(moment / folder.name, folder, symlinks=True)
    put_back(waiting[0])
    async with opened(model=model, **options) as rt:
        await rt.cancel_suspended(done.run_id)
        assert not (project / "a.txt").exists()
        view, _ = await whole(project)
        assert view.agents["a1"].status == "cancelled"
        assert (await rt.redo(done.run_id, "a1")).ok, "its work is kept"
    assert (project / "a.txt").read_text() == "a\n"
    assert not list((cache / "retinue" / "worktrees").rglob(f"{done.run_id}*"))


async def test_candidate_that_was_being_checked_when_another_won_has_not_passed(
    opened: Opened, project: Path, tmp_path: Path, repo: Repo
) -> None:
    """The process is killed when the race is decided, while the check of the other still runs."""
    cache, moment, over = tmp_path / "home" / ".cache", tmp_path / "moment", tmp_path / "over"
    cache.mkdir()
    repo.root = project
    repo.init().commit({"notes.txt": "note\n"})
    checked, decided = asyncio.Event(), list[int]()

    def save(event: Event) -> None:
        if event.agent_id == "a1" and event.type == "agent.subagent_waiting_for_merge":
            checked.set()
        if isinstance(event.fact, RaceDecided):
            decided.append(event.seq)
            while not copied_unchanged((project, cache), moment):
                shutil.rmtree(moment)
            over.touch()

    check = f"grep -q fixed out/a.txt || {{ until [ -e {over} ]; do sleep 0.02; done; false; }}"
    options = {"mode": "auto", "cache": False, "unsafe_no_sandbox": True}
    prompts: list[retinue.TaskOptions] = [
        {"system_prompt": f"You are {name}."} for name in ("wrong", "short")
    ]
    wrong, short = raced("Wrong", "no\n"), raced("Short", "fixed\n")
    scripts = {"You are wrong.": wrong, "You are short.": [ScriptedHold(checked, short[0]), *short]}
    async with opened(model=ScriptedModel(scripts), on_event=save, **options) as rt:
        race = await rt.race("executor", "Fix.", prompts, checks=[check], first=True, max_retries=0)
    assert race.winner is not None
    assert [str(one.status) for one in race.results] == ["cancelled", "completed"]
    put_back = keep(project, tmp_path)
    for folder in (project, cache):
        shutil.rmtree(folder)
        shutil.copytree(moment / folder.name, folder, symlinks=True)
    put_back(decided[0])
    async with opened(model=racers(), **options) as rt:
        again = await rt.resume(race.run_id)
    assert isinstance(again, retinue.RunResult)
    assert [(str(one.status), one.error) for one in again.results] == [
        ("cancelled", "a2 passed its checks first"),
        ("completed", None),
    ]
    assert (project / "out" / "a.txt").read_text() == "fixed\n"
