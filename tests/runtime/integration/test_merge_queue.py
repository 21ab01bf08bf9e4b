"""Children that write: copies, the order of their work, conflicts, and the user's own edits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.approval import ApprovalReason, ApprovalRequest
from retinue.domain.contract import WorkspaceKind
from retinue.domain.events import Event, WorktreeCreated, WorktreeMerged
from retinue.domain.messages import Request
from retinue.domain.result import Conflict
from retinue.errors import EndpointUnusable, ProviderError, RunSuspended, Unreachable, UsageError
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say
from retinue.project import open_journal
from retinue.runtime.delegation.task import Task
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.runtime import Runtime
from retinue.workspace.recorded_changes import list_changes

if TYPE_CHECKING:
    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
LINES = "".join(f"line {number}\n" for number in range(1, 31))


def writes(path: str, text: str, *, gate: asyncio.Event | None = None) -> list[Step]:
    """A child that writes one file and says so, when the gate is open."""
    done: Step = say(f"Wrote {path}.")
    return [call("write_file", path=path, content=text), done if gate is None else hold(gate, done)]


def edits(old: str, new: str) -> list[Step]:
    return [call("edit_file", path="shared.txt", old_text=old, new_text=new), say("Edited.")]


class Listener:
    """The events of a run, and who waits for which."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._over = False
        self._changed = asyncio.Condition()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        asyncio.get_running_loop().create_task(self._tell())

    def over(self) -> None:
        """There is nothing more to wait for."""
        self._over = True
        asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def types(self, agent_id: str) -> list[str]:
        return [event.type for event in self.events if event.agent_id == agent_id]

    async def seen(self, agent_id: str, kind: str) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._over or kind in self.types(agent_id))

    @property
    def merges(self) -> list[str]:
        facts = (event.fact for event in self.events)
        return [fact.commit for fact in facts if isinstance(fact, WorktreeMerged)]


def copies(project: Path) -> list[str]:
    folder = project.parent / ".cache" / "retinue" / "worktrees"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def test_child_works_in_a_copy_that_is_merged(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a.txt": "1\n"})
    repo.write("a.txt", "2\n")
    repo.write("untracked.txt", "u\n")
    before, gate, listener = repo.git_dir(), asyncio.Event(), Listener()
    model = ScriptedModel(
        [
            call("read_file", path="a.txt"),
            call("write_file", path="a.txt", content="3\n"),
            hold(gate, call("write_file", path="new/b.txt", content="b\n")),
            say("Done."),
        ]
    )
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        job = await rt.start("executor", "Change it.")
        await listener.seen("a1", "tool.finished")
        assert (project / "a.txt").read_text() == "2\n"
        assert len(copies(project)) == 1
        gate.set()
        result = await job.result()
    assert result.ok
    assert [str(file) for file in result.files_modified] == [
        "a.txt (+1/-1 lines)",
        "new/b.txt (+1 line, new file)",
    ]
    assert (project / "a.txt").read_text() == "3\n"
    assert (project / "new" / "b.txt").read_text() == "b\n"
    assert copies(project) == []
    assert repo.git_dir() == before
    assert listener.types("a1")[-5:] == [
        "agent.subagent_waiting_for_merge",
        "agent.files_changed",
        "agent.worktree_merged",
        "agent.subagent_completed",
        "agent.subagent_closed",
    ]
    # What the child saw was the user's tree as it was, with what is in no commit.
    assert "2" in str(model.requests[1].messages[-1])


async def test_a_reading_child_has_no_copy_and_no_git(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a.txt": "1\n"})
    model = ScriptedModel([call("read_file", path="a.txt"), say("One.")])
    async with opened(model=model, mode="auto") as rt:
        assert (await rt.spawn("researcher", "Look.")).ok
    assert not (project / ".retinue" / "git").exists()
    assert copies(project) == []


async def test_early_finisher_waits_for_earlier_siblings(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a.txt": "1\n"})
    gate, listener = asyncio.Event(), Listener()
    model = ScriptedModel(
        {
            "the first part": writes("first.txt", "1\n", gate=gate),
            "the second part": writes("second.txt", "2\n"),
        }
    )
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        work = asyncio.create_task(
            rt.fan_out(
                [
                    Task(role="executor", task="the first part", write=("first.txt",)),
                    Task(role="executor", task="the second part", write=("second.txt",)),
                ]
            )
        )
        await listener.seen("a2", "agent.subagent_waiting_for_merge")
        await listener.seen("a1", "tool.finished")
        assert not (project / "second.txt").exists()
        with pytest.raises(UsageError) as refused:
            rt.tell("a2", "Write more.")
        assert str(refused.value) == (
            "a2 has given its answer and reads no more messages; when it has ended, a new agent"
            " can continue its conversation."
        )
        gate.set()
        results = await work
    assert [result.ok for result in results] == [True, True]
    merged = [e.agent_id for e in listener.events if e.type == "agent.worktree_merged"]
    assert merged == ["a1", "a2"]


async def test_foreground_child_does_not_wait_for_a_background_job(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a.txt": "1\n"})
    gate = asyncio.Event()
    model = ScriptedModel(
        {"long": writes("long.txt", "1\n", gate=gate), "short": writes("short.txt", "2\n")}
    )
    async with opened(model=model, mode="auto") as rt:
        job = await rt.start("executor", "long", write=("long.txt",))
        assert (await rt.spawn("executor", "short", write=("short.txt",))).ok
        assert (project / "short.txt").exists()
        gate.set()
        assert (await job.result()).ok
    assert (project / "long.txt").exists()


async def finishing_in(order: list[int], opened: Opened, listener: Listener) -> list[str]:
    """The merge commits of one plan whose children finish in that order."""
    gates = [asyncio.Event() for _ in order]
    script: dict[str, list[Step]] = {
        f"part {i}.": [
            call("write_file", path=f"own/{i}/file.txt", content=f"{i}\n"),
            call("write_file", path=f"own/{i}/other.txt", content=f"{i}\n"),
            hold(gates[i], say(f"Part {i} is done.")),
        ]
        for i in order
    }
    async with opened(model=ScriptedModel(script), mode="auto", on_event=listener) as rt:
        tasks = [
            Task(role="executor", task=f"part {i}.", write=(f"own/{i}",)) for i in sorted(order)
        ]
        work = asyncio.create_task(rt.fan_out(tasks, max_concurrent=len(order)))
        for i in order:
            gates[i].set()
            await listener.seen(f"a{i + 1}", "agent.subagent_waiting_for_merge")
        results = await work
    assert {result.status for result in results} == {"completed"}
    return listener.merges


async def test_same_plan_makes_the_same_commits_in_any_timing(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES})
    some, found = random.Random(7), []
    for _ in range(4):
        order = some.sample(range(5), 5)
        found.append(await finishing_in(order, opened, Listener()))
        repo.git("clean", "-qfd", "own")
    assert found[0] == found[1] == found[2] == found[3]
    assert len(set(found[0])) == 5


@pytest.mark.parametrize("most", [pytest.param(2, marks=pytest.mark.slow), 3])
async def test_the_same_commits_with_overlapping_scopes_and_few_at_a_time(
    opened: Opened, repo: Repo, project: Path, most: int
) -> None:
    """Chance decides how long each reply takes; the commits do not tell."""
    repo.init().commit({"shared.txt": LINES})
    scopes = ["a", "b", "a/x", "c", "b", "**", "c"]
    found = []
    for seed in range(3):
        chance, listener = random.Random(seed), Listener()
        script: dict[str, list[Step]] = {
            f"part {i}.": [
                call("read_file", path="shared.txt").after(chance.random() / 50),
                call("write_file", path=f"{scope.strip('*') or 'd'}/x/{i}", content=f"{i}\n"),
                say("Done.").after(chance.random() / 20),
            ]
            for i, scope in enumerate(scopes)
        }
        async with opened(
            model=ScriptedModel(script), mode="auto", on_event=listener, clock=None
        ) as rt:
            tasks = [
                Task(role="executor", task=f"part {i}.", write=(scope,))
                for i, scope in enumerate(scopes)
            ]
            results = await rt.fan_out(tasks, max_concurrent=most)
        assert [result.status for result in results] == ["completed"] * len(scopes)
        found.append(listener.merges)
        repo.git("clean", "-qfd", "a", "b", "c", "d")
    assert found[0] == found[1] == found[2]


async def test_overlapping_writers_run_one_after_the_other(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES})
    listener = Listener()
    model = ScriptedModel(
        {
            "one.": edits("line 3\n", "line three\n"),
            "two.": edits("line three\n", "line drei\n"),
        }
    )
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        results = await rt.fan_out([("executor", "one."), ("executor", "two.")])
    # The second has found what the first has written.
    assert [result.ok for result in results] == [True, True]
    assert "line drei\n" in (project / "shared.txt").read_text()
    kinds = [(e.agent_id, e.type) for e in listener.events]
    assert kinds.index(("a1", "agent.subagent_closed")) < kinds.index(
        ("a2", "agent.subagent_started")
    )


async def test_writers_of_separate_scopes_run_at_the_same_time(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES})
    gates, listener = [asyncio.Event(), asyncio.Event()], Listener()
    model = ScriptedModel(
        {f"{i}.": writes(f"{i}/x", "1", gate=gates[i]) for i in range(2)},
    )
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        tasks = [Task(role="executor", task=f"{i}.", scope=(f"{i}/",)) for i in range(2)]
        work = asyncio.create_task(rt.fan_out(tasks))
        for agent in ("a1", "a2"):
            await listener.seen(agent, "tool.finished")
        for gate in gates:
            gate.set()
        assert [result.ok for result in await work] == [True, True]


ROOT = "You are a coding agent"


def contradiction(
    gate: asyncio.Event,
    more: Mapping[str, list[Step]] = MappingProxyType({}),
    *,
    last: Step | None = None,
    strict: bool = True,
) -> ScriptedModel:
    """A root that changes a line itself, when a child of its in the background has changed it too.

    The child began from the files as they were when it was asked for.
    """
    edit = {"path": "shared.txt", "old_text": "line 3\n"}
    return ScriptedModel(
        {
            **more,
            ROOT: [
                call("spawn_agent", task="theirs.", role="executor", background=True),
                call("edit_file", **edit, new_text="by the root\n"),
                call("spawn_await", job_ids="*"),
                say("Done."),
            ],
            "theirs.": [
                call("edit_file", **edit, new_text="by the child\n"),
                hold(gate, last or say("Edited.")),
            ],
        },
        strict=strict,
    )


async def led(opened: Opened, model: ScriptedModel, gate: asyncio.Event, **terms: Any) -> Listener:
    """A run of the model; the gate opens when the root has made its edit."""
    listener = Listener()
    async with opened(model=model, mode="auto", on_event=listener, **terms) as rt:
        run = asyncio.create_task(rt.run("Go."))
        # One that is over without it is told by what follows.
        run.add_done_callback(lambda _: listener.over())
        await listener.seen("a0", "agent.files_changed")
        await listener.seen("a1", "tool.finished")
        gate.set()
        await run
    return listener


async def test_conflict_fails_the_child_and_names_files_and_sibling(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES})
    gate = asyncio.Event()
    listener = await led(opened, contradiction(gate), gate)
    child = retinue.fold(listener.events).agents["a1"]
    assert (child.status, child.state) == ("conflict", "closed")
    assert child.error == "conflict in shared.txt (also changed by a0 (root))"
    (conflict,) = child.conflicts
    assert (conflict.path, conflict.sibling) == ("shared.txt", "a0 (root)")
    blobs = {conflict.ours, conflict.theirs}
    texts = {repo.private_git().run(["cat-file", "blob", blob]).decode() for blob in blobs}
    assert {text.splitlines()[2] for text in texts} == {"by the root", "by the child"}
    assert [str(file) for file in child.unmerged_files] == ["shared.txt (+1/-1 lines)"]
    assert "by the root" in (project / "shared.txt").read_text()
    async with open_journal(project) as store:
        await audit(store, listener.events[-1].run_id)


async def test_conflict_names_every_file(opened: Opened, repo: Repo, project: Path) -> None:
    repo.init().commit({"a.txt": "1\n", "b.txt": "1\n"})
    gate = asyncio.Event()
    model = ScriptedModel(
        {
            ROOT: [
                call("spawn_agent", task="theirs.", role="executor", background=True),
                call("run_command", command="echo 2 | tee a.txt b.txt"),
                call("spawn_await", job_ids="*"),
                say("Done."),
            ],
            "theirs.": [
                call("run_command", command="echo 3 | tee a.txt b.txt"),
                hold(gate, say("Edited.")),
            ],
        }
    )
    listener = await led(opened, model, gate, shell=True, unsafe_no_sandbox=True)
    names = [f"{name}.txt (also changed by a0 (root))" for name in "ab"]
    child = retinue.fold(listener.events).agents["a1"]
    assert child.error == f"conflict in {', '.join(names)}"


async def test_conflict_with_the_user_and_an_agent_is_left_to_the_user(
    opened: Opened, repo: Repo, project: Path
) -> None:
    """Only a change of agents alone is merged like that of a sibling."""
    repo.init().commit({"a.txt": "1\n", "b.txt": "1\n"})
    gate, listener = asyncio.Event(), Listener()
    both = [call("write_file", path=f"{name}.txt", content="child\n") for name in "ab"]
    model = ScriptedModel(
        {
            ROOT: [
                call("spawn_agent", task="theirs.", role="executor", background=True),
                call("write_file", path="a.txt", content="root\n"),
                call("spawn_await", job_ids="*"),
                say("Done."),
            ],
            "theirs.": [calls(*both), hold(gate, say("Edited."))],
        }
    )
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        run = asyncio.create_task(rt.run("Go."))
        await listener.seen("a0", "agent.files_changed")
        await listener.seen("a1", "tool.finished")
        repo.write("b.txt", "mine\n")
        gate.set()
        await run
    error = retinue.fold(listener.events).agents["a1"].error
    assert error is not None
    assert error.startswith("changed in the project meanwhile: a.txt, b.txt; nothing was applied.")


async def test_conflict_after_a_resume_names_the_author(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES})
    gate = asyncio.Event()
    gone = fail(EndpointUnusable("The key was refused."))
    with pytest.raises(RunSuspended) as error:
        await led(opened, contradiction(gate, last=gone, strict=False), gate)
    async with opened(model=contradiction(gate, strict=False), mode="auto") as rt:
        await rt.resume(error.value.run_id)
    async with open_journal(project) as store:
        state = retinue.fold(await read_all(store, error.value.run_id))
    assert state.agents["a1"].error == "conflict in shared.txt (also changed by a0 (root))"


RESOLVED = LINES.replace("line 3\n", "by both\n")


def resolving(*steps: Step) -> dict[str, list[Step]]:
    return {"Two changes contradict each other in: shared.txt.": list(steps)}


async def test_another_child_resolves_a_conflict_and_checks_decide(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES})
    gate = asyncio.Event()
    settle = resolving(
        call("read_file", path="shared.txt"),
        call("write_file", path="shared.txt", content=RESOLVED),
        say("Both are in."),
    )
    model = contradiction(gate, settle)
    listener = await led(
        opened,
        model,
        gate,
        on_conflict="resolve",
        unsafe_no_sandbox=True,
        checks=["test -e shared.txt"],
    )
    view = retinue.fold(listener.events)
    assert (project / "shared.txt").read_text() == RESOLVED
    assert [agent.status for agent in view.agents.values()] == ["completed"] * 3
    assert [check.ok for check in view.agents["a1"].checks] == [True]
    asked = [r for r in model.requests if "Two changes contradict" in str(r.messages[1])]
    shown = str(asked[1].messages[-1])
    assert "<<<<<<<" in shown
    assert "by the root" in shown
    assert "by the child" in shown


async def test_work_that_is_refused_after_its_conflict_was_resolved_has_none(
    opened: Opened, repo: Repo, project: Path, settings: Callable[[str], None]
) -> None:
    # The hook refuses what it sees a second time: the resolved work.
    command = f"[ -e {project.parent}/seen ] && exit 2; touch {project.parent}/seen"
    settings(f'[[hooks.PreMerge]]\nhooks = [{{ type = "command", command = "{command}" }}]\n')
    repo.init().commit({"shared.txt": LINES})
    gate = asyncio.Event()
    settle = resolving(call("write_file", path="shared.txt", content=RESOLVED), say("Both are in."))
    listener = await led(opened, contradiction(gate, settle), gate, on_conflict="resolve")
    child, resolver = [retinue.fold(listener.events).agents[id] for id in ("a1", "a2")]
    assert (child.status, child.conflicts) == ("rejected", ())
    assert resolver.status == "completed"
    assert "by the root" in (project / "shared.txt").read_text()


async def test_unresolved_conflict_fails_the_child(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES})
    gate = asyncio.Event()
    tries = resolving(call("write_file", path="other", content="x"), say("Too hard."))
    listener = await led(opened, contradiction(gate, tries), gate, on_conflict="resolve")
    view = retinue.fold(listener.events)
    assert view.agents["a1"].status == "conflict"
    assert view.agents["a2"].error == "there are conflict markers left in shared.txt"
    assert "by the root" in (project / "shared.txt").read_text()
    assert not (project / "other").exists()


async def test_cancelling_a_child_cancels_its_conflict_resolver(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES})
    gate, settling, never = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def under_way(_: Request) -> Step:
        settling.set()
        return hold(never, say("never"))

    edit = {"path": "shared.txt", "old_text": "line 3\n"}
    model = ScriptedModel(
        {
            **resolving(under_way),
            ROOT: [
                call("spawn_agent", task="theirs.", role="executor", background=True),
                call("edit_file", **edit, new_text="by the root\n"),
                hold(settling, call("agent_cancel", id="a1")),
                call("list_dir"),
                say("Done."),
            ],
            "theirs.": [
                call("edit_file", **edit, new_text="by the child\n"),
                hold(gate, say("Edited.")),
            ],
        }
    )
    listener = await led(opened, model, gate, on_conflict="resolve")
    closed = [e.agent_id for e in listener.events if e.type == "agent.subagent_closed"]
    assert closed == ["a2", "a1", "a0"], "whoever works for it is closed before it is"
    view = retinue.fold(listener.events)
    assert view.agents["a2"].close_reason == "cancelled by its parent"
    looked = next(
        e.seq for e in listener.events if e.type == "tool.started" and "list_dir" in str(e.fact)
    )
    assert all(e.seq < looked for e in listener.events if e.agent_id == "a2")


async def test_conflict_without_markers_needs_a_change(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES})
    gate = asyncio.Event()
    edit = {"path": "shared.txt", "old_text": "line 3\n", "new_text": "by the root\n"}
    model = ScriptedModel(
        {
            **resolving(say("It is fine.")),
            ROOT: [
                call("spawn_agent", task="theirs.", role="executor", background=True),
                call("edit_file", **edit),
                call("spawn_await", job_ids="*"),
                say("Done."),
            ],
            "theirs.": [
                call("run_command", command="rm shared.txt"),
                hold(gate, say("Removed.")),
            ],
        }
    )
    listener = await led(
        opened, model, gate, on_conflict="resolve", shell=True, unsafe_no_sandbox=True
    )
    view = retinue.fold(listener.events)
    assert view.agents["a1"].status == "conflict"
    assert view.agents["a2"].error == (
        "nothing was changed in shared.txt, which has the version of one side only"
    )
    assert "by the root" in (project / "shared.txt").read_text()


INNER = "git init -q inner && git -C inner -c user.name=x -c user.email=x@y commit -qm x"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("rm shared.txt", ""),
        ("echo both > shared.txt; echo x > other", "it changed more than the conflicts: other"),
        (f"{INNER} --allow-empty", "'inner' is a repository inside the copy"),
    ],
)
async def test_what_a_resolver_has_done_is_verified(
    opened: Opened, repo: Repo, project: Path, command: str, error: str
) -> None:
    repo.init().commit({"shared.txt": LINES})
    gate = asyncio.Event()
    settle = resolving(call("run_command", command=command), say("Settled."))
    listener = await led(
        opened,
        contradiction(gate, settle),
        gate,
        on_conflict="resolve",
        shell=True,
        unsafe_no_sandbox=True,
    )
    view = retinue.fold(listener.events)
    assert (view.agents["a2"].error, view.agents["a2"].unmerged_files) == (error, ())
    assert view.agents["a1"].status == ("conflict" if error else "completed")
    if error:
        assert "by the root" in (project / "shared.txt").read_text()
    assert [(project / name).exists() for name in ("shared.txt", "other", "inner")] == [
        bool(error), False, False
    ]  # fmt: skip


async def test_user_edit_is_kept_and_the_refusal_says_what_to_do(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES, "b.txt": "1\n"})
    gate, listener = asyncio.Event(), Listener()
    model = ScriptedModel(
        [
            calls(
                call("edit_file", path="shared.txt", old_text="line 3\n", new_text="theirs\n"),
                call("write_file", path="b.txt", content="theirs\n"),
            ),
            hold(gate, say("Edited.")),
        ]
    )
    mine = LINES.replace("line 3\n", "mine\n")
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        job = await rt.start("executor", "Edit.")
        await listener.seen("a1", "tool.finished")
        repo.write("shared.txt", mine)
        gate.set()
        result = await job.result()
    assert result.status == "conflict"
    assert "agent.worktree_merged" not in listener.types("a1")
    assert result.error == (
        "changed in the project meanwhile: shared.txt; nothing was applied. Finish your own edits,"
        f" then: retinue redo {result.run_id} a1"
    )
    assert result.conflicts == (Conflict(path="shared.txt", sibling="the user"),)
    assert result.kept
    assert (project / "shared.txt").read_text() == mine
    assert (project / "b.txt").read_text() == "1\n"


async def test_user_edit_is_not_taken_for_the_earlier_one_of_a_sibling(
    opened: Opened, repo: Repo, project: Path
) -> None:
    """The second child started from the work of the first, so that is no reason for a conflict."""
    repo.init().commit({"shared.txt": LINES})
    gate, listener = asyncio.Event(), Listener()
    model = ScriptedModel(
        {
            "first.": edits("line 3\n", "first\n"),
            "second.": [edits("first\n", "second\n")[0], hold(gate, say("Edited."))],
        }
    )
    mine = LINES.replace("line 3\n", "mine\n")
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        assert (await rt.spawn("executor", "first.")).ok
        job = await rt.start("executor", "second.")
        await listener.seen("a2", "tool.finished")
        repo.write("shared.txt", mine)
        gate.set()
        result = await job.result()
    assert result.conflicts == (Conflict(path="shared.txt", sibling="the user"),)
    assert (project / "shared.txt").read_text() == mine


async def test_rule_that_came_before_the_merge_is_obeyed(
    opened: Opened, repo: Repo, project: Path
) -> None:
    """The second child is done and waits for the first, which waits for its server."""
    repo.init().commit({"a": "1\n"})
    gone = fail(Unreachable("The server is gone."))
    second = Task(role="executor", task="two.", write=("2",))
    tasks = [Task(role="executor", task="one.", write=("1",)), second]
    model = ScriptedModel({"one.": [gone], "two.": writes("2", "2")}, strict=False)
    async with opened(model=model, mode="auto") as rt:
        with pytest.raises(RunSuspended) as left:
            await rt.fan_out(tasks)
    config = project.parent / ".config" / "retinue" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text('deny = ["write_file(2)"]\n')
    model = ScriptedModel({"one.": writes("1", "1")}, strict=False)
    async with opened(model=model, mode="auto") as rt:
        one, two = (await rt.resume(left.value.run_id)).results
    assert (one.ok, two.status, two.kept) == (True, "error", True)
    assert str(two.error).endswith(
        f"; nothing was applied. When that is mended: retinue redo {two.run_id} a2"
    )
    assert [(project / name).exists() for name in "12"] == [True, False]
    assert copies(project) == []


async def test_user_edit_elsewhere_is_kept_beside_the_merge(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES})
    gate, listener = asyncio.Event(), Listener()
    model = ScriptedModel(
        [
            call("edit_file", path="shared.txt", old_text="line 3\n", new_text="theirs\n"),
            hold(gate, say("Edited.")),
        ]
    )
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        job = await rt.start("executor", "Edit.")
        await listener.seen("a1", "tool.finished")
        repo.write("shared.txt", LINES.replace("line 20\n", "mine\n"))
        gate.set()
        assert (await job.result()).ok
    both = LINES.replace("line 3\n", "theirs\n").replace("line 20\n", "mine\n")
    assert (project / "shared.txt").read_text() == both


async def test_command_that_writes_outside_the_scope_fails_the_child(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"src/a": "1\n", "docs/b": "1\n"})
    model = ScriptedModel(
        [call("run_command", command="echo 2 > src/a; echo 2 > docs/b"), say("Done.")]
    )
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        result = await rt.spawn("executor", "Change src.", write=("src/**",))
    assert (result.status, result.kept) == ("error", True)
    assert result.error == "it changed what its contract does not let it write: docs/b"
    assert result.response == "Done."
    (receipt,) = result.receipts
    assert [str(file) for file in receipt.changed] == [
        "docs/b (+1/-1 lines)",
        "src/a (+1/-1 lines)",
    ]
    assert all(file.before_sha256 != file.after_sha256 for file in receipt.changed)
    assert (project / "src" / "a").read_text() == "1\n"


async def test_a_child_whose_only_work_cannot_be_merged_fails(
    opened: Opened, repo: Repo, project: Path
) -> None:
    """A repository inside the copy is no change of files, and it is not dropped silently."""
    repo.init().commit({"a.txt": "a\n"})
    make = "git init -q inner && cd inner && echo x > f && git add f && git -c user.name=x"
    model = ScriptedModel(
        {"": [call("run_command", command=f"{make} -c user.email=x@y commit -qm x"), say("Made.")]}
    )
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        result = await rt.spawn("executor", "Make a repository.")
    assert (str(result.status), result.error) == (
        "error",
        "'inner' is a repository inside the copy",
    )
    assert not (project / "inner").exists()


async def test_change_outside_the_scope_in_place_is_reported_and_left(
    opened: Opened, project: Path
) -> None:
    (project / "docs").mkdir()
    (project / "docs" / "b").write_text("1\n")
    model = ScriptedModel(
        [call("run_command", command="echo 2 > docs/b; echo 2 > a"), say("Done.")]
    )
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        result = await rt.spawn("executor", "Change a.", write=("a",))
    assert result.notes == (
        "works in the project itself, one writer at a time: the project is no git repository",
    )
    assert result.status == "error"
    # It may as well have been the user: nobody takes that back for them.
    assert result.error == (
        "it changed what its contract does not let it write: docs/b; unless that was you, take it"
        f" back: retinue undo {result.run_id} {result.agent_id}"
    )
    assert (project / "docs" / "b").read_text() == "2\n"
    assert (project / "a").read_text() == "2\n"


@pytest.mark.parametrize("versioned", [True, False])
async def test_unconfined_reviewer_that_writes_fails(
    opened: Opened, repo: Repo, project: Path, versioned: bool
) -> None:
    repo.write("a", "1\n")
    if versioned:
        repo.init().commit()
    model = ScriptedModel([call("run_command", command="echo 2 > a"), say("Looks fine.")])
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        result = await rt.spawn("reviewer", "Review.")
    assert result.status == "error"
    assert result.error == (
        "it changed what its contract does not let it write: a; unless that was you, take it back:"
        f" retinue undo {result.run_id} {result.agent_id}"
    )


async def test_without_a_repository_writers_take_turns_in_the_project_itself(
    opened: Opened, project: Path
) -> None:
    gate, listener = asyncio.Event(), Listener()
    model = ScriptedModel({"one.": writes("one", "1", gate=gate), "two.": writes("two", "2")})
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        work = asyncio.create_task(
            rt.fan_out(
                [
                    Task(role="executor", task="one.", write=("one",)),
                    Task(role="executor", task="two.", write=("two",)),
                ]
            )
        )
        await listener.seen("a1", "agent.files_changed")
        assert (project / "one").read_text() == "1"
        assert listener.types("a2") in ([], ["agent.subagent_created"])
        gate.set()
        assert [result.ok for result in await work] == [True, True]
    assert (project / "two").read_text() == "2"


async def test_shared_workspace_on_request(opened: Opened, repo: Repo, project: Path) -> None:
    repo.init().commit({"a": "1"})
    gate, listener = asyncio.Event(), Listener()
    model = ScriptedModel(writes("b", "2", gate=gate))
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        job = await rt.start("executor", "Write b.", workspace="shared")
        await listener.seen("a1", "agent.files_changed")
        assert (project / "b").read_text() == "2"
        gate.set()
        assert (await job.result()).ok
    assert copies(project) == []


async def test_copy_after_a_shared_sibling_has_its_work(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1"})
    gate, listener = asyncio.Event(), Listener()
    write, said = writes("b", "2")
    model = ScriptedModel(
        {
            "in place.": [hold(gate, write), said],
            "copy.": [call("read_file", path="b"), *writes("c", "3")],
        }
    )
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        tasks = [
            Task(role="executor", task="in place.", workspace=WorkspaceKind.SHARED),
            Task(role="executor", task="copy."),
        ]
        work = asyncio.create_task(rt.fan_out(tasks))
        # The files that the second child would start from are known before the first one writes.
        await listener.seen("a2", "agent.subagent_created")
        gate.set()
        assert [result.ok for result in await work] == [True, True]
    asked = [r for r in model.requests if "copy." in str(r.messages[1])]
    assert "2" in str(asked[1].messages[-1])


async def test_readonly_workspace_on_request(opened: Opened, repo: Repo, project: Path) -> None:
    repo.init().commit({"a": "1"})
    model = ScriptedModel(writes("b", "2"))
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("executor", "Write b.", workspace="readonly")
    assert result.ok
    assert not (project / "b").exists()
    assert "does not let you write 'b'" in str(model.requests[1].messages[-1])


async def test_reviewer_of_a_child_sees_its_copy(opened: Opened, repo: Repo, project: Path) -> None:
    repo.init().commit({"a": "1"})
    model = ScriptedModel(
        {
            "review it.": [call("read_file", path="b"), say("I saw it.")],
            "write it.": [
                call("write_file", path="b", content="fresh"),
                call("spawn_agent", task="review it.", role="reviewer", context_files=["b"]),
                say("Reviewed."),
            ],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        assert (await rt.spawn("executor", "write it.")).ok
    seen = [str(r.messages) for r in model.requests if "review it." in str(r.messages[1])]
    assert [text.count("fresh") for text in seen] == [1, 2]


async def test_work_of_a_grandchild_is_merged_into_the_child(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1", "retinue.toml": '[roles.executor]\nspawns = ["executor"]\n'})
    listener = Listener()
    model = ScriptedModel(
        {
            "inner.": writes("inner", "i"),
            "outer.": [
                call("write_file", path="outer", content="o"),
                call("spawn_agent", task="inner.", role="executor", mode="auto"),
                call("read_file", path="inner"),
                say("Both."),
            ],
        }
    )
    async with opened(model=model, mode="auto", on_event=listener, trust=True) as rt:
        result = await rt.spawn("executor", "outer.")
    assert sorted(file.path for file in result.files_modified) == ["inner", "outer"]
    assert (project / "inner").read_text() == "i"
    assert listener.types("a2")[-4:] == [
        "agent.subagent_waiting_for_merge",
        "agent.worktree_merged",
        "agent.subagent_completed",
        "agent.subagent_closed",
    ]
    assert listener.types("a1").count("agent.files_changed") == 1
    assert copies(project) == []


async def test_subtasks_build_on_each_other(opened: Opened, repo: Repo, project: Path) -> None:
    repo.init().commit({"a": "1\n"})
    model = ScriptedModel(
        {
            ROOT: [
                call(
                    "delegate_task",
                    plan="two",
                    subtasks=[
                        {"task": "first.", "role": "executor", "scope": "x"},
                        {"task": "second.", "role": "executor", "scope": "y"},
                    ],
                ),
                say("Done."),
            ],
            "first.": writes("x/1", "one"),
            "second.": [call("read_file", path="x/1"), *writes("y/2", "two")],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        assert (await rt.run("Go.")).ok
    second = [r for r in model.requests if "second." in str(r.messages[1])]
    assert "one" in str(second[1].messages[-1])


async def test_jobs_after_a_delivered_result_start_from_newer_files(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1\n"})
    model = ScriptedModel(
        {
            "first.": writes("x/1", "one"),
            "second.": [call("read_file", path="x/1"), *writes("y/2", "two")],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        first = await rt.start("executor", "first.", write=("x",))
        assert (await first.result()).ok
        second = await rt.start("executor", "second.", write=("y",))
        assert (await second.result()).ok
    asked = [r for r in model.requests if "second." in str(r.messages[1])]
    assert "one" in str(asked[1].messages[-1])


async def test_child_starts_from_the_work_of_a_job_that_it_waited_for(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1\n"})
    gate, listener = asyncio.Event(), Listener()
    model = ScriptedModel(
        {
            "first.": writes("x/1", "one", gate=gate),
            "second.": [call("read_file", path="x/1"), *writes("x/2", "two")],
        }
    )
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        first = await rt.start("executor", "first.", write=("x",))
        second = asyncio.create_task(rt.spawn("executor", "second.", write=("x",)))
        await listener.seen("a2", "agent.subagent_created")
        gate.set()
        assert [(await first.result()).ok, (await second).ok] == [True, True]
    asked = [r for r in model.requests if "second." in str(r.messages[1])]
    assert "one" in str(asked[1].messages[-1])


async def test_child_made_during_a_merge_starts_from_its_work(
    opened: Opened, repo: Repo, project: Path
) -> None:
    """The user has edited another file since the merge began, so the files were read anew."""
    repo.init().commit({"a": "1\n"})
    merging, listener = asyncio.Event(), Listener()

    async def approve(request: ApprovalRequest) -> bool:
        if request.why is ApprovalReason.MERGE and not merging.is_set():
            merging.set()
            await listener.seen("a2", "agent.subagent_created")
        return True

    model = ScriptedModel(
        {
            "first.": writes("x/1", "one"),
            "second.": [call("read_file", path="x/1"), *writes("x/2", "two")],
        }
    )
    async with opened(model=model, approve=approve, on_event=listener) as rt:
        first = await rt.start("executor", "first.", write=("x",))
        await merging.wait()
        repo.write("a", "2\n")
        second = await rt.spawn("executor", "second.", write=("x",))
        assert [(await first.result()).ok, second.ok] == [True, True]
    asked = [r for r in model.requests if "second." in str(r.messages[1])]
    assert "one" in str(asked[1].messages[-1])
    assert [(project / name).read_text() for name in ("a", "x/1", "x/2")] == ["2\n", "one", "two"]


async def test_work_of_a_failed_child_is_kept(opened: Opened, repo: Repo, project: Path) -> None:
    repo.init().commit({"a": "1"})
    model = ScriptedModel([call("write_file", path="b", content="half"), say("Not done.")])
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("executor", "Write.", max_turns=2)
    assert (result.status, result.kept) == ("budget_exceeded", True)
    assert not (project / "b").exists()
    assert [(one.run_id, one.kind, one.name) for one in list_changes(repo.private_git())] == [
        (result.run_id, "kept", "a1")
    ]


async def test_cancelled_child_leaves_no_copy_and_its_work_is_kept(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1"})
    listener = Listener()
    model = ScriptedModel(writes("b", "half", gate=asyncio.Event()), strict=False)
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        job = await rt.start("executor", "Write.")
        await listener.seen("a1", "tool.finished")
        job.cancel()
        result = await job.result()
        assert (result.status, result.kept) == ("cancelled", True)
    assert copies(project) == []
    assert listener.types("a1")[-3:] == [
        "agent.work_kept",
        "agent.subagent_failed",
        "agent.subagent_closed",
    ]


async def test_child_stopped_while_waiting_to_merge(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1"})
    gate, listener = asyncio.Event(), Listener()
    model = ScriptedModel({"one.": writes("1", "1", gate=gate), "two.": writes("2", "2")})
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        tasks = [
            Task(role="executor", task="one.", write=("1",)),
            Task(role="executor", task="two.", write=("2",)),
        ]
        work = asyncio.create_task(rt.fan_out(tasks))
        await listener.seen("a2", "agent.subagent_waiting_for_merge")
        rt.cancel("a2")
        gate.set()
        first, second = await work
    assert first.ok
    assert (second.status, second.error, second.kept) == (
        "cancelled",
        "stopped by the user",
        True,
    )
    assert not (project / "2").exists()


async def test_work_of_a_child_that_is_cancelled_while_it_waits_to_merge_is_kept_once(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1"})
    gate, listener = asyncio.Event(), Listener()
    model = ScriptedModel({"one.": writes("1", "1", gate=gate), "two.": writes("2", "2")})
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        first = await rt.start("executor", "one.", write=("1",))
        second = await rt.start("executor", "two.", write=("2",))
        await listener.seen("a2", "agent.subagent_waiting_for_merge")
        second.cancel()
        result = await second.result()
        gate.set()
        assert (await first.result()).ok
    assert (result.status, result.kept) == ("cancelled", True)
    assert listener.types("a2").count("agent.work_kept") == 1
    assert [(project / name).exists() for name in "12"] == [True, False]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_copy_that_cannot_be_committed_is_left_to_the_user(
    opened: Opened, repo: Repo, project: Path, cancelled: bool
) -> None:
    repo.init().commit({"a": "1"})
    gate, listener = asyncio.Event(), Listener()
    filled = "echo work > b; for n in $(seq 20); do truncate -s 64M $n; done"
    steps: list[Step] = [call("run_command", command=filled), hold(gate, say("Done."))]
    model = ScriptedModel(steps, strict=False)
    async with opened(
        model=model, mode="auto", shell=True, unsafe_no_sandbox=True, on_event=listener
    ) as rt:
        job = await rt.start("executor", "Write.")
        await listener.seen("a1", "tool.finished")
        if cancelled:
            job.cancel()
        else:
            gate.set()
        result = await job.result()
    assert (result.status, result.kept) == ("cancelled" if cancelled else "error", False)
    told, left = (result.error or "").split(" Its work is left in ")
    assert "has too many files that git does not track" in told
    assert told.startswith("cancelled by the program; ") == cancelled
    assert (project / left / "b").read_text() == "work\n"


async def test_child_fails_when_its_copy_cannot_be_made(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1"})
    (project.parent / ".cache").write_text("in the way")
    model = ScriptedModel({"": [say("never asked")]}, strict=False)
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("executor", "Write.")
    assert result.status == "error"
    assert "cannot be made (Not a directory)" in (result.error or "")
    assert model.requests == []


async def test_the_project_may_be_a_folder_of_a_repository(repo: Repo, project: Path) -> None:
    repo.init().commit({"packages/api/a": "1", "top": "1"})
    api = project / "packages" / "api"
    model = ScriptedModel([call("read_file", path=f"{api}/a"), *writes("b", "2")])
    environment = Environment(variables={"HOME": str(project.parent)})
    async with retinue.open(api, model=model, mode="auto", environment=environment) as rt:
        result = await rt.spawn("executor", "Write b.")
    assert [file.path for file in result.files_modified] == ["b"]
    assert (api / "b").read_text() == "2"


async def test_project_path_inside_a_copy_is_held_to_the_scope(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1"})
    model = ScriptedModel(
        [
            calls(
                call("write_file", path=f"{project}/out", content="x"),
                call("write_file", path=f"{project}/in/x", content="x"),
            ),
            say("Done."),
        ]
    )
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("executor", "Write.", write=("in",))
    assert result.ok
    assert [file.path for file in result.files_modified] == ["in/x"]
    assert "does not let you write 'out'" in str(model.requests[1].messages)


async def test_check_runs_once_per_directory(opened: Opened, repo: Repo, project: Path) -> None:
    repo.init().commit({"one/here": "1", "two/there": "1"})
    model = ScriptedModel([say("Done."), say("Done.")])
    async with opened(model=model, mode="auto", unsafe_no_sandbox=True) as rt:
        results = [
            await rt.spawn("executor", "x", checks=("test -e here",), directory=str(project / name))
            for name in ("one", "two")
        ]
    assert [result.ok for result in results] == [True, False]


async def test_without_changes_only_own_checks_run(opened: Opened, repo: Repo) -> None:
    repo.init().commit({"a": "1"})
    model = ScriptedModel({"": [say("It is fine as it is.")] * 4})
    terms: dict[str, Any] = {"mode": "auto", "checks": ["false"], "unsafe_no_sandbox": True}
    async with opened(model=model, **terms) as rt:
        root = await rt.run("Look at it.")
        child = await rt.spawn("executor", "Look at it.")
        held = await rt.spawn("executor", "Make it work.", checks=("exit 3",))
    async with opened(model=model, mode="auto", unsafe_no_sandbox=True) as rt:
        said = await rt.spawn("executor", "Try.", checks=("echo a; echo no; exit 3",))
    assert (root.ok, root.checks, child.ok, child.checks) == (True, (), True, ())
    assert held.error == "a check failed: false: failed (exit code 1)"
    assert said.error == "a check failed: echo a; echo no; exit 3: failed (exit code 3): no"


async def test_child_made_after_siblings_starts_from_their_work(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"shared.txt": LINES})
    model = ScriptedModel(
        {"one.": edits("line 3\n", "three\n"), "two.": edits("three\n", "THREE\n")}
    )
    async with opened(model=model, mode="auto") as rt:
        tasks = [("executor", "one."), ("executor", "two.")]
        results = await rt.fan_out(tasks, max_concurrent=1)
    assert [result.error for result in results] == [None, None]
    assert "THREE" in (project / "shared.txt").read_text()


async def test_checks_of_a_reading_agent_run_on_the_current_files(
    opened: Opened, repo: Repo
) -> None:
    repo.init().commit({"a": "1"})
    model = ScriptedModel({"": [say("Looked at it.")] * 3})
    terms: dict[str, Any] = {"mode": "auto", "checks": ["exit 9"], "unsafe_no_sandbox": True}
    async with opened(model=model, **terms) as rt:
        assert (await rt.spawn("reviewer", "Look at it.")).checks == ()
    async with opened(model=model, mode="auto", unsafe_no_sandbox=True) as rt:
        good = await rt.spawn("reviewer", "Is it one?", checks=("grep -q 1 a",))
        bad = await rt.spawn("reviewer", "Is it two?", checks=("grep -q 2 a",))
    assert [str(check) for check in good.checks] == ["grep -q 1 a: passed"]
    assert bad.error == "a check failed: grep -q 2 a: failed (exit code 1)"


async def test_failed_child_without_changes_has_no_kept_work(opened: Opened, repo: Repo) -> None:
    repo.init().commit({"a": "1\n"})
    listener = Listener()
    model = ScriptedModel([call("read_file", path="a"), fail(ProviderError("It broke."))])
    async with opened(model=model, mode="auto", on_event=listener) as rt:
        child = await rt.spawn("executor", "Look.", max_retries=0)
    assert (child.status, child.kept) == ("error", False)
    assert "agent.worktree_created" in listener.types("a1")
    assert "agent.work_kept" not in listener.types("a1")


@pytest.mark.parametrize("shell", ["", "unconfined", "confined"])
async def test_child_in_a_copy_is_told_where_its_commands_run(
    opened: Opened, repo: Repo, project: Path, shell: str
) -> None:
    """In its copy; if the sandbox shows the copy at the path of the project, there."""
    repo.init().commit({"a": "1\n"})
    model = ScriptedModel({"": [say("Done.")]}, strict=False)
    settings = {"shell": bool(shell), "unsafe_no_sandbox": shell == "unconfined"}
    listener = Listener()
    async with opened(model=model, mode="auto", on_event=listener, **settings) as rt:
        if shell == "confined" and (rt.sandbox is None or not rt.sandbox.relocates):
            pytest.skip("no sandbox here shows a copy at another path")
        await rt.spawn("executor", "Look.")
    (made,) = [e.fact for e in listener.events if isinstance(e.fact, WorktreeCreated)]
    told = str(model.requests[0].messages[1].content)
    assert made.directory != str(project)
    where = made.directory if shell == "unconfined" else str(project)
    assert f"\nDirectory: {where}\n" in told
