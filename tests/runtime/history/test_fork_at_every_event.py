"""Forks at every event of random runs, compared with what the model was sent and the files on disk.

Each request of the original notes the files of all copies, and of the project, as they are on disk.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import (
    AgentClosed,
    AgentCreated,
    ContextCompacted,
    Event,
    MessageReceived,
    TurnStarted,
    WorktreeCreated,
)
from retinue.domain.messages import Message, Request
from retinue.errors import RecoveryError
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, Step, call, calls, say
from retinue.project import open_journal
from retinue.runtime.agent.conversation import SUMMARIZE, SUMMARIZING
from retinue.runtime.history.audit import audit
from retinue.runtime.runtime import Runtime

Files = Mapping[str, str]
"""The content of each file, by its path."""

KINDS = [
    "write", "look", "both", "child", "background", "reader", "nested", "page", "pages", "children",
]  # fmt: skip
WINDOW = 6_000
CHANGES = ("agent.told", "agent.context_compacted", "tool.finished", "tool.denied")
"""Events of an agent that change its next request."""
FILE_CHANGES = (
    "agent.files_changed", "agent.worktree_merged", "agent.worktree_created", "tool.finished",
)  # fmt: skip
SETTINGS = """
[roles.executor]
spawns = ["executor"]
tools = ["write_file", "list_dir", "page", "spawn_agent", "agent_result"]
"""
TASK = re.compile(r"task (\d+)\b")


@retinue.tool(effect="read")
async def page() -> str:
    """A long page."""
    return "word " * 800


class Seen(msgspec.Struct, frozen=True):
    """A request of a model, and what was on disk when it arrived."""

    task: str
    """The number of the agent's task."""
    messages: Sequence[Message]
    disk: Mapping[str, Files]
    """The files of the project as "", and of copies by the names of their folders."""


class Observer:
    """Notes each request, with the files on disk."""

    def __init__(self, project: Path, home: Path) -> None:
        self._project = project
        self._home = home
        self.seen: list[Seen] = []

    def note(self, request: Request) -> None:
        opening = next(m for m in request.messages if TASK.search(str(m.content)))
        found = TASK.search(str(opening.content))
        assert found is not None, "each agent has a task with a number"
        disk = {"": _files(self._project)}
        for copy in self._home.glob(".cache/retinue/worktrees/*/copy/*"):
            disk[copy.parents[1].name] = _files(copy)
        self.seen.append(Seen(found[1], tuple(request.messages), disk))


def _files(folder: Path) -> Files:
    paths = (p for p in folder.rglob("*") if not {".git", ".retinue"} & set(p.parts))
    return {str(p.relative_to(folder)): p.read_text() for p in paths if p.is_file()}


class Script:
    """Scripts a run: each agent takes a step for each of its kinds, and sums up when asked to."""

    def __init__(self, observer: Observer, kinds: Sequence[str]) -> None:
        self._observer = observer
        self._numbers = itertools.count(1)
        self._steps: dict[str, Iterator[ScriptedReply]] = {"0": self._work(kinds, "0", "")}
        self.model = ScriptedModel({"": [self._next] * 60}, strict=False)

    def add(self, kinds: Sequence[str], folder: str) -> str:
        """A task, whose agent will take these steps, and write in the folder."""
        number = str(next(self._numbers))
        self._steps[number] = self._work(kinds, number, folder)
        return f"Do task {number} now."

    def _next(self, request: Request) -> Step:
        self._observer.note(request)
        if request.messages[-1].content == SUMMARIZE:
            return say("So far, so good.")
        return next(self._steps[self._observer.seen[-1].task], say("End."))

    def _work(self, kinds: Sequence[str], task: str, folder: str) -> Iterator[ScriptedReply]:
        for step, kind in enumerate(kinds):
            write = call("write_file", path=f"{folder}of{task}.txt", content=f"step {step}")
            yield self._step(kind, write, folder)

    def _step(self, kind: str, write: ScriptedReply, folder: str) -> ScriptedReply:
        match kind:
            case "write":
                return write
            case "both":
                return calls(write, call("list_dir"))
            case "page":
                return call("page")
            case "pages":
                return calls(*[call("page")] * 4)
            case "child" | "background":
                task = self.add(["write", "look", "both"], folder)
                return _spawn(task, background=kind == "background")
            case "reader":
                return call("spawn_agent", role="researcher", task=self.add(["look", "look"], ""))
            case "nested":
                return _spawn(self.add(["write", "child", "pages", "write"], folder))
            case "children":
                return calls(*[_spawn(self.add(["write", "write"], folder)) for _ in range(2)])
            case _:
                return call("list_dir")


def _spawn(task: str, *, background: bool = False) -> ScriptedReply:
    return call("spawn_agent", role="executor", task=task, background=background)


@settings(max_examples=2, deadline=None)
@example(kinds=["write", "background", "pages", "write"])
@example(kinds=["nested", "page", "page", "page", "reader", "page"])
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
def test_fork_at_every_event(kinds: list[str]) -> None:
    _in_a_project(kinds, [])


@settings(max_examples=1, deadline=None)
@example(steps=[["write", "child"], ["look", "write"], ["pages", "write"]])
@given(steps=st.lists(st.lists(st.sampled_from(KINDS), max_size=2), min_size=1, max_size=3))
def test_fork_at_every_event_of_a_plan(steps: list[list[str]]) -> None:
    _in_a_project([], steps)


def _in_a_project(kinds: list[str], steps: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as project, tempfile.TemporaryDirectory() as home:
        subprocess.run(["git", "init", "-q"], cwd=project, check=True)
        config = Path(home, ".config/retinue/config.toml")
        config.parent.mkdir(parents=True)
        config.write_text(SETTINGS)
        asyncio.run(Forks(Path(project), Path(home)).check(kinds, steps))


class Forks:
    """Forks a run at all its events, and each fork once more; compares with what was observed."""

    def __init__(self, project: Path, home: Path) -> None:
        self._project = project
        self._home = home
        self._environment = Environment(variables={"PATH": "/usr/bin:/bin", "HOME": str(home)})

    def _open(
        self, model: ScriptedModel, window: int = 10 * WINDOW
    ) -> AbstractAsyncContextManager[Runtime]:
        return retinue.open(
            self._project, model=model, mode="auto", cache=False, environment=self._environment,
            tools=[page], limits={"max_context_tokens": window},
        )  # fmt: skip

    async def check(self, kinds: Sequence[str], steps: Sequence[Sequence[str]]) -> None:
        observer = Observer(self._project, self._home)
        script = Script(observer, kinds)
        async with self._open(script.model, WINDOW) as rt:
            if steps:
                plan = [
                    {"name": f"s{n}", "role": "executor", "task": script.add(one, f"s{n}/"),
                     "writes": [f"s{n}/**"], "budget": {"max_context_tokens": WINDOW},
                     "depends_on": ["s0"] if n == 2 else []}
                    for n, one in enumerate(steps)
                ]  # fmt: skip
                run_id = (await rt.execute({"goal": "Work", "steps": plan})).run_id
            else:
                run_id = (await rt.run("Do task 0 now.")).id
            events = [event async for event in rt.events(run_id)]
        if "pages" in [*kinds, *itertools.chain(*steps)]:
            assert any(isinstance(event.fact, ContextCompacted) for event in events)
        async with open_journal(self._project, self._environment) as store:
            audited = await audit(store, run_id)
        forked: dict[str, int] = {}
        compared = 0
        again = Observer(self._project, self._home)

        def answer(request: Request) -> Step:
            again.note(request)
            return say("Seen.")

        async with self._open(ScriptedModel({"": [answer] * 200}, strict=False)) as rt:
            for event in events:
                for agent in dict.fromkeys((event.agent_id, "a0")):
                    first = len(again.seen)
                    try:
                        fork = await rt.fork(run_id, agent, at=event.seq, new_budget=True)
                    except RecoveryError:
                        assert not _is_asked_alone(event, agent, events)
                        continue
                    forked[agent] = forked.get(agent, 0) + 1
                    second = await rt.fork(fork.id, at="t0", new_budget=True)
                    one, other = again.seen[first:]
                    files = one.disk[f"{fork.id}-a0"]
                    assert other.disk[f"{second.id}-a0"] == files
                    assert other.messages[:-1] == one.messages
                    own = [seen for seen in observer.seen if seen.task == _task(events, agent)]
                    _check_conversation(one.messages, own, events, agent, event.seq)
                    compared += _check_files(files, own, events, agent, event.seq)
            async with open_journal(self._project, self._environment) as store:
                assert await audit(store, run_id) == audited
                last, last_but_one, *_ = await store.runs()
                assert (await audit(store, last.id)).origin == last_but_one.id
            assert events == [event async for event in rt.events(run_id)]
        begun = {event.agent_id for event in events if event.type == "agent.subagent_attempt"}
        assert forked.keys() == begun
        assert min(forked.values()) > 1
        assert compared >= sum(forked.values()) // 3


def _task(events: Sequence[Event], agent: str) -> str:
    """The number of an agent's task."""
    created = (event.fact for event in events if event.agent_id == agent)
    title = next(fact.title for fact in created if isinstance(fact, AgentCreated))
    found = TASK.search(title)
    assert found is not None, "each agent has a task with a number"
    return found[1]


def _is_asked_alone(event: Event, agent: str, events: Sequence[Event]) -> bool:
    """Whether the agent asks its model, for more than its last words, while no child is at work."""
    fact = event.fact
    if event.agent_id != agent or not isinstance(fact, TurnStarted) or fact.last:
        return False
    before = [one for one in events if one.seq < event.seq]
    told = [
        one.fact
        for one in before
        if one.agent_id == agent and isinstance(one.fact, MessageReceived)
    ]
    sums_up = bool(told) and told[-1].source == SUMMARIZING and fact.without_tools
    parents = {one.agent_id: one.parent_agent_id for one in before}
    closed = {one.agent_id for one in before if isinstance(one.fact, AgentClosed)}
    open_parents = {parent for one, parent in parents.items() if one not in closed}
    return not sums_up and agent not in open_parents


def _check_conversation(
    forked: Sequence[Message],
    requests: Sequence[Seen],
    events: Sequence[Event],
    agent: str,
    seq: int,
) -> None:
    """The fork's first request begins with the request that followed in the original.

    If something was added or removed before that request, it begins with the one before.
    """
    own = [event for event in events if event.agent_id == agent]
    replies = [event.seq for event in own if event.type == "model.replied" and event.seq <= seq]
    turns = (e.seq for e in own if e.seq > seq and e.type == "turn.started")
    end, begin = next(turns, events[-1].seq), max(replies, default=0)
    changes = [e for e in own if seq < e.seq < end and e.type in CHANGES]
    if len(replies) < len(requests) and not changes:
        assert list(forked[:-1]) == list(requests[len(replies)].messages)
    elif not any(e.type == "agent.context_compacted" for e in own if begin < e.seq <= seq):
        before = list(requests[len(replies) - 1].messages) if replies else []
        assert list(forked[: len(before)]) == before


def _check_files(
    files: Files, requests: Sequence[Seen], events: Sequence[Event], agent: str, seq: int
) -> bool:
    """The fork has the files that were on disk at a request of the agent.

    Return whether there was one, without a change of files between it and the moment.
    """
    place = _place(events, agent, seq)
    turns = [e.seq for e in events if e.agent_id == agent and e.type == "turn.started"]
    # An agent that is cancelled in the moment of its request has one turn more.
    for turn, request in zip(turns, requests, strict=False):
        between = sorted((turn, seq))
        changed = [e for e in events if between[0] < e.seq <= between[1] and e.type in FILE_CHANGES]
        if not changed:
            assert files == request.disk[place]
            return True
    return False


def _place(events: Sequence[Event], agent: str, seq: int) -> str:
    """Where an agent works: the name of the folder of a copy, or "" for the project."""
    copies = {e.agent_id for e in events if e.seq <= seq and isinstance(e.fact, WorktreeCreated)}
    parents = {e.agent_id: e.parent_agent_id for e in events}
    place: str | None = agent
    while place is not None and place not in copies:
        place = parents[place]
    return "" if place is None else f"{events[0].run_id}-{place}"
