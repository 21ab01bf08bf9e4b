"""A run whose model endpoint is gone is suspended with all it has, and finishes when it is back."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import (
    AttemptStarted,
    Event,
    ModelFailed,
    ModelReplied,
    WorktreeCreated,
)
from retinue.domain.messages import Request
from retinue.domain.run_state import RunState
from retinue.errors import (
    EndpointUnusable,
    ModelError,
    ModelTimeout,
    ProviderError,
    RecoveryError,
    RequestRefused,
    RunSuspended,
    Unreachable,
)
from retinue.models.scripted.model import (
    ScriptedModel,
    ScriptedReply,
    Step,
    call,
    calls,
    fail,
    hold,
    say,
)
from retinue.project import open_journal
from retinue.runtime.delegation.task import Task
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock
from retinue.testing.server import Answering, ModelServer, Received, failing
from tests.durability.journal_cut import cut

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

GONE = Unreachable("The server is gone.")
NAMES = ("a", "b", "c", "d")
PLAN = {
    "goal": "Write them",
    "steps": [
        {"name": n, "role": "executor", "task": f"writer: {n}", "writes": [f"{n}.txt"]}
        for n in NAMES
    ],
}
TASKS = [Task(role="executor", task=f"writer: {name}", write=(f"{name}.txt",)) for name in NAMES]


def writer(name: str) -> list[Step]:
    return [call("write_file", path=f"{name}.txt", content=f"{name}\n"), say(f"Wrote {name}.")]


WRITERS = {
    **{f"writer: {name}": writer(name) for name in NAMES},
    "all:": [*(writer(name)[0] for name in NAMES), say("Wrote all.")],
}


def init_repository(project: Path) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e")
    for arguments in (("init", "-q"), (*who, "commit", "-qm", "begin", "--allow-empty")):
        subprocess.run(["git", "-C", project, *arguments], check=True)


async def journal(project: Path, run_id: str) -> list[Event]:
    async with open_journal(project) as store:
        await audit(store, run_id)
        return await read_all(store, run_id)


def check_bought_once(events: list[Event]) -> None:
    bought = Counter((e.agent_id, e.fact.turn) for e in events if isinstance(e.fact, ModelReplied))
    assert set(bought.values()) == {1}


def written(project: Path) -> list[str]:
    return sorted(path.read_text().strip() for path in project.glob("*.txt"))


# Every command, and every way in which a server fails


class Outage:
    """A server that answers by the scripts of the writers, and fails after some good replies."""

    def __init__(self, failure: Answering, *, after: int) -> None:
        self._failure: Answering | None = failure
        self._left = after
        self.answered: list[object] = []

    def repair(self) -> None:
        self._failure = None

    def __call__(self, request: Received) -> Answering:
        if self._failure is not None and self._left == 0:
            return self._failure
        self._left -= 1
        messages = request.json["messages"]
        self.answered.append(messages)
        task = messages[1]["content"]
        steps = next((s for key, s in WRITERS.items() if task.startswith(key)), LEAD)
        reply = steps[sum(message["role"] == "assistant" for message in messages)]
        assert isinstance(reply, ScriptedReply)
        return reply


LEAD = [
    calls(
        *(
            call("spawn_agent", task=f"writer: {n}", role="executor", scope=f"{n}.txt")
            for n in NAMES
        )
    ),
    say("All written."),
]


STARTS: dict[str, Callable[[Runtime], Awaitable[object]]] = {
    "run": lambda rt: rt.run("Have them written."),
    "spawn": lambda rt: rt.spawn("executor", "all: write", write=("*.txt",)),
    "fan-out": lambda rt: rt.fan_out(TASKS, max_concurrent=2),
    "plan": lambda rt: rt.execute(PLAN),
}


@pytest.mark.parametrize("status", [401, 404, 500])
@pytest.mark.parametrize("command", STARTS)
async def test_every_command_resumes_after_its_server_failed(
    opened: Opened, project: Path, command: str, status: int
) -> None:
    init_repository(project)
    outage = Outage(failing(status, "No."), after=3)
    async with ModelServer(outage) as server:
        opened = partial(opened, model=f"openai:m@{server.base_url}", mode="auto")
        with pytest.raises(RunSuspended) as left:
            async with opened() as rt:
                await STARTS[command](rt)
        assert server.base_url in str(left.value), "it names the endpoint that it waits for"
        before = retinue.fold(await journal(project, left.value.run_id), detailed=True)
        assert before.suspend_reason == str(left.value)
        # The server is still down: nothing that counts changes.
        with pytest.raises(RunSuspended):
            async with opened() as rt:
                await rt.resume(left.value.run_id)
        again = retinue.fold(await journal(project, left.value.run_id), detailed=True)
        assert what_counts(again) == what_counts(before)
        outage.repair()
        async with opened() as rt:
            done = await rt.resume(left.value.run_id)
    assert done.status == "completed"
    assert written(project) == list(NAMES)
    events = await journal(project, done.id)
    check_bought_once(events)
    replies = sum(isinstance(event.fact, ModelReplied) for event in events)
    assert len(outage.answered) == replies, "no answer is asked for again"
    assert {a.status for a in retinue.fold(events).agents.values()} == {"completed"}


def what_counts(view: RunState) -> list[tuple[object, ...]]:
    """What a resumed run starts from."""
    return [
        (a.id, a.state, a.status, a.attempt, a.spent, a.usage, a.receipts, a.files_modified)
        for a in view.agents.values()
    ]


# Which failures suspend


@pytest.mark.parametrize(
    "error",
    [
        GONE,
        EndpointUnusable("The key was refused."),
        ProviderError("It failed (500).", retryable=True),
        ModelTimeout("It went silent."),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_child_waits_for_an_endpoint_that_is_gone(opened: Opened, error: ModelError) -> None:
    seen: list[Event] = []
    rules: dict[str, list[Step]] = {
        "reader: one": [call("list_dir"), *[fail(error)] * 4],
        "reader: two": [call("list_dir"), say("Two.")],
    }
    async with opened(model=ScriptedModel(rules), on_event=seen.append) as rt:
        with pytest.raises(RunSuspended) as left:
            await rt.fan_out([("researcher", "reader: one"), ("researcher", "reader: two")])
    assert [result.response for result in left.value.results] == ["Two."]
    assert str(left.value).startswith("researcher.1 waits for ")
    assert str(left.value).endswith(str(error))
    view = retinue.fold(seen)
    assert (view.status, view.suspend_reason) == (None, str(left.value))
    assert [agent.state for agent in view.agents.values()] == ["running", "running", "closed"]
    assert sum(isinstance(e.fact, AttemptStarted) for e in seen) == 2, "no attempt is used up"
    model = ScriptedModel({"reader: one": [call("list_dir"), say("One.")]}, strict=False)
    async with opened(model=model) as rt:
        done = await rt.resume(view.id)
    assert [result.response for result in done.results] == ["One.", "Two."]


async def test_child_fails_if_only_its_own_request_is_refused(opened: Opened) -> None:
    rules: dict[str, list[Step]] = {
        "reader:": [call("list_dir"), fail(RequestRefused("Too rude (400)."))],
        "": [call("spawn_agent", task="reader: look", role="researcher"), say("Without it.")],
    }
    seen: list[Event] = []
    async with opened(model=ScriptedModel(rules), on_event=seen.append) as rt:
        done = await rt.run("Lead.")
    assert done.response == "Without it."
    view = retinue.fold(seen)
    assert view.status is not None, "the run is over"
    assert (view.agents["a1"].status, view.agents["a1"].error) == ("error", "Too rude (400).")


async def test_key_that_never_worked_is_a_failure(opened: Opened) -> None:
    """Whoever chose the key or the model has to choose another; waiting does not help."""
    seen: list[Event] = []
    model = ScriptedModel([fail(EndpointUnusable("The key was refused."))])
    async with opened(model=model, on_event=seen.append) as rt:
        done = await rt.run("Lead.")
    assert (done.status, retinue.fold(seen).status) == ("error", "error")


async def test_key_that_is_refused_to_a_resumed_run_suspends_it_again(opened: Opened) -> None:
    """The model may have answered nothing yet, but somebody has started it in good faith."""
    async with opened(model=ScriptedModel([fail(GONE)])) as rt:
        with pytest.raises(RunSuspended) as left:
            await rt.run("Lead.")
    refused = ScriptedModel([fail(EndpointUnusable("The key was refused."))])
    async with opened(model=refused) as rt:
        with pytest.raises(RunSuspended, match="The key was refused"):
            await rt.resume(left.value.run_id)
    async with opened(model=ScriptedModel([say("Here.")])) as rt:
        assert (await rt.resume(left.value.run_id)).response == "Here."


# Trees


async def test_root_whose_model_is_gone_resumes(opened: Opened, project: Path) -> None:
    steps: list[Step] = [call("write_file", path="a.txt", content="a\n"), fail(GONE)]
    async with opened(model=ScriptedModel({"": steps}), mode="auto") as rt:
        with pytest.raises(RunSuspended) as left:
            await rt.run("Write.")
    steps = [call("write_file", path="never.txt", content=""), say("Written.")]
    async with opened(model=ScriptedModel({"": steps}, strict=False), mode="auto") as rt:
        done = await rt.resume(left.value.run_id)
    assert (done.status, done.response, done.total.turns) == ("completed", "Written.", 2)
    assert written(project) == ["a"]
    check_bought_once(await journal(project, done.id))


async def test_parents_of_a_waiting_child_wait_too(opened: Opened, project: Path) -> None:
    """Siblings end first: the calls of one reply, and children in the background."""
    seen: list[Event] = []
    lead = [
        call("spawn_agent", task="reader: background", role="researcher", background=True),
        calls(
            call("spawn_agent", task="parent: go", role="researcher"),
            call("spawn_agent", task="reader: sibling", role="researcher"),
        ),
        call("spawn_await", job_ids="*"),
        say("All done."),
    ]
    rules: dict[str, list[Step]] = {
        "parent:": [call("spawn_agent", task="child: go", role="reviewer"), say("Mine is done.")],
        "child:": [call("list_dir"), fail(GONE), say("Seen.")],
        "reader:": [call("list_dir"), say("Read.")],
        "": list(lead),
    }
    async with opened(
        model=ScriptedModel(rules, strict=False), on_event=seen.append, environment=spawning(opened)
    ) as rt:
        with pytest.raises(RunSuspended, match=r"reviewer\.1 waits for"):
            await rt.run("Lead.")
    view = retinue.fold(seen)
    by_path = {agent.path: agent.state for agent in view.agents.values()}
    assert by_path == {
        "root": "running",
        "root/researcher.1": "closed",
        "root/researcher.2": "running",
        "root/researcher.3": "closed",
        "root/researcher.2/reviewer.1": "running",
    }
    rules["child:"] = [call("list_dir"), say("Seen.")]
    async with opened(
        model=ScriptedModel(rules, strict=False), on_event=seen.append, environment=spawning(opened)
    ) as rt:
        done = await rt.resume(view.id)
    assert (done.status, done.response) == ("completed", "All done.")
    check_bought_once(await journal(project, done.id))


async def test_attempt_that_waits_for_its_model_does_not_time_out(
    opened: Opened, clock: FakeClock
) -> None:
    """A child in the background may take longer than is left of the attempt."""
    failed, seen = asyncio.Event(), list[Event]()

    def listen(event: Event) -> None:
        seen.append(event)
        if isinstance(event.fact, ModelFailed):
            failed.set()

    def after(seconds: float, step: ScriptedReply) -> Callable[[Request], Step]:
        def pass_time(_: Request) -> Step:
            clock.advance(seconds)
            return step

        return pass_time

    spawn = call("spawn_agent", task="reader: go", role="researcher", background=True)
    rules: dict[str, list[Step]] = {
        "reader:": [hold(failed, call("list_dir")), after(15, say("Read."))],
        "": [after(20, spawn), fail(GONE)],
    }
    model, limits = ScriptedModel(rules), {"timeout_s": 30}
    async with opened(model=model, on_event=listen, limits=limits) as rt:
        with pytest.raises(RunSuspended, match="waits for scripted: The server is gone"):
            await rt.run("Lead.")
    root, child = retinue.fold(seen).agents.values()
    assert (root.state, root.attempt, child.response) == ("running", 1, "Read.")


def spawning(opened: Any) -> Environment:
    """Settings in which a researcher may spawn reviewers."""
    environment: Environment = opened.keywords["environment"]
    folder = Path(environment.variables["HOME"]) / ".config" / "retinue"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text('[roles.researcher]\nspawns = ["reviewer"]\n')
    return environment


@pytest.mark.parametrize("command", STARTS)
async def test_suspended_run_of_every_command_is_cancelled(
    opened: Opened, project: Path, command: str
) -> None:
    """No model is asked, and what was written in working copies is kept."""
    init_repository(project)
    failing_late = {key: [*steps[:1], fail(GONE)] for key, steps in WRITERS.items()}
    rules: dict[str, list[Step]] = {**failing_late, "Have them written.": [LEAD[0]]}
    async with opened(model=ScriptedModel(rules, strict=False), mode="auto") as rt:
        with pytest.raises(RunSuspended) as left:
            await STARTS[command](rt)
    run_id = left.value.run_id
    copies = project.parent / "home" / ".cache" / "retinue" / "worktrees"
    assert list(copies.iterdir())
    async with opened(model=ScriptedModel(())) as rt:
        await rt.cancel_suspended(run_id)
        with pytest.raises(RecoveryError, match=r"is over \(cancelled\)"):
            await rt.resume(run_id)
        with pytest.raises(RecoveryError, match=r"is over \(cancelled\)"):
            await rt.cancel_suspended(run_id)
        view = retinue.fold(await journal(project, run_id))
        assert {agent.status for agent in view.agents.values()} == {"cancelled"}
        assert {agent.error for agent in view.agents.values()} == {"stopped by the user"}
        assert list(copies.iterdir()) == []
        assert written(project) == []
        kept = [agent.id for agent in view.agents.values() if agent.unmerged_files]
        assert len(kept) == len(view.agents) - 1
        for agent_id in kept:
            await rt.redo(run_id, agent_id)
    assert written(project)[:1] == ["a"]


async def test_copy_that_is_not_on_record_is_removed_with_its_cancelled_child(
    opened: Opened, project: Path
) -> None:
    """The first process was killed after it had made the copy, and before it recorded that."""
    init_repository(project)
    async with opened(model=ScriptedModel([fail(GONE)], strict=False), mode="auto") as rt:
        with pytest.raises(RunSuspended) as left:
            await rt.spawn("executor", "Write a.", write=("a.txt",))
    run_id = left.value.run_id
    events = await journal(project, run_id)
    made = next(event.seq for event in events if isinstance(event.fact, WorktreeCreated))
    cut(project / ".retinue" / "retinue.db", made - 1)
    copies = project.parent / "home" / ".cache" / "retinue" / "worktrees"
    assert list(copies.iterdir())
    async with opened(model=ScriptedModel(())) as rt:
        await rt.cancel_suspended(run_id)
    assert list(copies.iterdir()) == []


async def test_one_agent_of_a_suspended_run_is_cancelled(opened: Opened, project: Path) -> None:
    init_repository(project)
    first, *others = TASKS
    rules: dict[str, list[Step]] = {**WRITERS, first.task: [*writer("a")[:1], fail(GONE)]}
    async with opened(model=ScriptedModel(rules, strict=False), mode="auto") as rt:
        with pytest.raises(RunSuspended) as left:
            await rt.fan_out(TASKS, max_concurrent=5)
    async with opened(model=ScriptedModel(WRITERS, strict=False), mode="auto") as rt:
        await rt.cancel_suspended(left.value.run_id, "a1")
        done = await rt.resume(left.value.run_id)
    assert [result.status for result in done.results] == ["cancelled", *["completed"] * len(others)]
    assert written(project) == ["b", "c", "d"]


async def test_parent_goes_on_without_a_background_child_that_waits(opened: Opened) -> None:
    """It may cancel the child, or end without it."""
    rules: dict[str, list[Step]] = {
        "reader:": [fail(GONE)],
        "Cancel.": [
            call("spawn_agent", task="reader: look", role="researcher", background=True),
            call("list_dir"),
            call("agent_cancel", id="a1"),
            say("Done without it."),
        ],
        "End.": [
            call("spawn_agent", task="reader: look", role="researcher", background=True),
            call("list_dir"),
            say("I am done."),
            say("Done without it."),
        ],
    }
    for task in ("Cancel.", "End."):
        async with opened(model=ScriptedModel(rules, strict=False)) as rt:
            done = await rt.run(task)
        assert (done.status, done.response) == ("completed", "Done without it.")


async def test_jobs_of_a_program_wait(opened: Opened) -> None:
    rules: dict[str, list[Step]] = {"reader: one": [fail(GONE)], "reader: two": [say("Two.")]}
    async with opened(model=ScriptedModel(rules)) as rt:
        one = await rt.start("researcher", "reader: one")
        two = await rt.start("researcher", "reader: two")
        with pytest.raises(RunSuspended):
            await rt.join([one])
        assert [result.response for result in await rt.join([two])] == ["Two."]
    rules["reader: one"] = [say("One.")]
    async with opened(model=ScriptedModel(rules, strict=False)) as rt:
        done = await rt.resume(one.run_id)
    assert [result.response for result in done.results] == ["One.", "Two."]


async def test_siblings_that_merge_later_wait_for_their_turn(opened: Opened, project: Path) -> None:
    """Work is merged in the order of the tasks, so whoever is behind a waiting child waits too."""
    init_repository(project)
    (first, *_), seen = TASKS, list[Event]()
    rules: dict[str, list[Step]] = {**WRITERS, first.task: [*writer("a")[:1], fail(GONE)]}
    same = Task(role="executor", task="writer: b", write=("a.txt", "b.txt"))
    async with opened(model=ScriptedModel(rules, strict=False), mode="auto") as rt:
        with pytest.raises(RunSuspended) as left:
            await rt.fan_out([*TASKS, same], max_concurrent=5)
    assert (left.value.results, written(project)) == ((), [])
    async with opened(
        model=ScriptedModel(WRITERS, strict=False), mode="auto", on_event=seen.append
    ) as rt:
        done = await rt.resume(left.value.run_id)
    assert {result.status for result in done.results} == {"completed"}
    assert written(project) == list(NAMES)
    replies = [e.agent_id for e in seen if isinstance(e.fact, ModelReplied)]
    assert replies == ["a1", "a5", "a5"], "the others only had to be merged"
    check_bought_once(await journal(project, done.id))


async def test_job_that_is_started_behind_a_waiting_one_waits_for_its_turn_too(
    opened: Opened, project: Path
) -> None:
    init_repository(project)
    rules: dict[str, list[Step]] = {**WRITERS, "writer: a": [*writer("a")[:1], fail(GONE)]}
    async with opened(model=ScriptedModel(rules, strict=False), mode="auto") as rt:
        first = await rt.start("executor", "writer: a", write=("a.txt",))
        with pytest.raises(RunSuspended):
            await rt.join([first])
        second = await rt.start("executor", "writer: b", write=("b.txt",))
        with pytest.raises(RunSuspended):
            await rt.join([second])
        assert written(project) == []
    async with opened(model=ScriptedModel(WRITERS, strict=False), mode="auto") as rt:
        done = await rt.resume(first.run_id)
    assert [result.status for result in done.results] == ["completed", "completed"]
    assert written(project) == ["a", "b"]


async def test_tasks_do_not_use_up_a_server_that_is_gone(opened: Opened) -> None:
    model = ScriptedModel({"": [fail(GONE)] * 9}, strict=False)
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        with pytest.raises(RunSuspended):
            await rt.fan_out([("researcher", f"Look at {n}.") for n in range(9)], max_concurrent=2)
    assert len(retinue.fold(seen).agents) == 3
