"""A run whose process is killed again and again ends as if nobody had touched it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import retinue
from retinue.domain.events import (
    AgentCreated,
    Event,
    MessageReceived,
    ModelReplied,
    ToolFinished,
    ToolStarted,
)
from retinue.domain.run_state import RunState
from retinue.models.scripted.model import ScriptedReply, call, calls, say
from retinue.project import open_journal
from retinue.runtime.agent.conversation import INTERRUPTED
from retinue.runtime.history.audit import audit, read_all
from retinue.testing.server import Answering, ModelServer, Received, failing

WORK = Path(__file__).parent / "programs" / "work.py"


def spawn(task: str, role: str = "researcher", **terms: object) -> ScriptedReply:
    return call("spawn_agent", task=task, role=role, **terms)


def writer(name: str) -> list[ScriptedReply]:
    return [
        call("write_file", path=f"{name}/one.txt", content=f"{name} one\n"),
        call("note", text=name),
        call("write_file", path=f"{name}/two.txt", content=f"{name} two\n"),
        say(f"{name} is written."),
    ]


def as_text(**value: object) -> str:
    return msgspec.json.encode(value).decode()


LOOK = [calls(call("list_dir"), call("read_file", path="notes.txt")), say("Looked.")]
SCRIPTS: Mapping[str, list[ScriptedReply]] = {
    "parent:": [
        calls(
            spawn("reader: of parent, in the background", role="reviewer", background=True),
            spawn("writer: nested", role="executor", scope="nested"),
        ),
        call("spawn_await", job_ids="*"),
        say("Mine are done."),
    ],
    "reader:": LOOK,
    "writer: a": writer("a"),
    "writer: b": writer("b"),
    "writer: c": writer("c"),
    "writer: nested": writer("nested"),
    "Lead.": [
        calls(
            spawn("reader: one, in the background", background=True),
            spawn("writer: a", role="executor", scope="a", background=True),
            spawn("parent: go", role="executor", scope="nested", background=True),
        ),
        calls(
            spawn("reader: two"),
            spawn("reader: three"),
            spawn("writer: b", role="executor", scope="b"),
            spawn("writer: c", role="executor", scope="c"),
        ),
        call(
            "delegate_task",
            plan="two things",
            subtasks=[
                {"task": "reader: four", "role": "researcher"},
                {"task": "reader: five", "role": "reviewer", "depends_on": 0},
                {"task": "reader: six", "role": "researcher"},
            ],
        ),
        call("spawn_await", job_ids="*"),
        call("write_file", path="done.txt", content="done\n"),
        call("note", text="root"),
        say("All done."),
    ],
}


def step(
    name: str, task: str, *needs: str, role: str = "researcher", **more: Any
) -> dict[str, Any]:
    return {"name": name, "role": role, "task": task, "depends_on": needs, **more}


PLAN = {
    "goal": "Get it done",
    "review": True,
    "steps": [
        step("look", "reader: one"),
        step("see", "reader: two"),
        step("a", "writer: a", role="executor", writes=["a/**", "c/**"]),
        step("b", "writer: b", "look", role="executor", writes=["b/**"]),
        step("more", "parent: go", role="executor", writes=["nested/**"]),
        step("try", "doubter: go", "see", on_failure="retry"),
        step("no", "quitter: go", "a", "b", "more", "try", on_failure="replan"),
        step("never", "reader: never", "no"),
    ],
}
AROUND = [step("c", "writer: c", "a", role="executor", writes=["c/**"])]
FOUND = [{"task": "mender: a", "files": ["a/one.txt"]}]
PLANNED: Mapping[str, list[ScriptedReply]] = {
    **SCRIPTS,
    "A step of the plan": [say(as_text(summary="Another way", steps=AROUND))],
    "Review what was done": [say(as_text(summary="Seen.", findings=FOUND))],
    "doubter:": [say("Sure.")],
    "mender: a": [
        call("write_file", path="a/one.txt", content="a mended\n"),
        say("Mended."),
    ],
}
SETTINGS = """
[roles.executor]
spawns = ["reviewer", "executor"]
tools = ["list_dir", "read_file", "write_file", "note", "spawn_await"]
"""
CHILDREN, PLANNED_CHILDREN = 12, 14
WRITERS = ("a", "b", "c", "nested")
NO = failing(400, "I will not.")


class Sales:
    """Answers as the scripts say, and knows what was sold: each reply has a number of its own."""

    def __init__(self, scripts: Mapping[str, list[ScriptedReply]]) -> None:
        self._scripts = scripts
        self.asked: list[str] = []
        """What was asked for with each reply."""

    def __call__(self, request: Received) -> Answering:
        messages = request.json["messages"]
        task = messages[1]["content"]
        if task.startswith("quitter:") or (
            task.startswith("doubter:") and "An earlier try" not in task
        ):
            return NO
        number = len(self.asked)
        self.asked.append(hashlib.sha256(msgspec.json.encode(messages)).hexdigest())
        steps = self._steps(messages)
        text = f"#{number} {steps[-1].text}"
        if steps[-1].text.startswith("{"):
            text = steps[-1].text.replace('"summary":"', f'"summary":"#{number} ')
        return msgspec.structs.replace(steps[_place(messages)], text=text)

    def _steps(self, messages: list[Any]) -> list[ScriptedReply]:
        task = messages[1]["content"]
        return next(steps for key, steps in self._scripts.items() if task.startswith(key))


def _place(messages: list[Any]) -> int:
    """How far a conversation is. A call of which nobody knows whether it was done is repeated."""
    place = 0
    for message, after in zip(messages, [*messages[1:], {}], strict=True):
        if message["role"] == "assistant" and message.get("tool_calls"):
            called = message["tool_calls"][0]["function"]["name"]
            again = called in ("write_file", "run_command")
            told = after.get("content") or ""
            place += not (again and INTERRUPTED in told)
    return place


def git(project: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", project, *arguments], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    (path / "notes.txt").write_text("note\n")
    git(path, "init", "-q")
    git(path, "add", ".")
    git(path, "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "begin")
    return path


OVER = b"there is nothing to resume"
RACE_LOST = "error none of "
NOT_BEGUN = (b"ended before it had begun", b"before its plan was recorded", b"No run")


class Chaos:
    """Processes that work on one run after the other, and are killed."""

    def __init__(
        self,
        project: Path,
        home: Path,
        model: str,
        plan: object = None,
        *,
        store: str = "",
        faults: tuple[bytes, ...] = (),
    ) -> None:
        """`plan` may be a race too. `store` is that of the settings, `faults` may end a process."""
        self.project = project
        self._store = {"RETINUE_STORE": store} if store else {}
        self._faults = faults
        self.faults = 0
        self._home = home
        self._model = model
        self._plan = "-"
        if plan is not None:
            self._plan = str(home / "plan.json")
            Path(self._plan).write_bytes(msgspec.json.encode(plan))
        self.notes = home / "notes"
        self.notes.touch()
        settings = home / ".config" / "retinue" / "config.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(SETTINGS)
        self.run_id = ""
        self.kills = 0

    async def work(self, kill_at: int, later_s: float = 0) -> bool:
        """Work on the run, until an event of this process and a bit longer; True if it is done."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(WORK),
            str(self.project),
            self._model,
            str(self.notes),
            f"{kill_at}+{later_s}",
            self._plan,
            *([self.run_id] if self.run_id else []),
            env={"HOME": str(self._home), "PATH": os.environ["PATH"], **self._store},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        lines = out.decode().splitlines()
        if process.returncode == 0:
            assert lines[-1] == "completed " or lines[-1].startswith(RACE_LOST), lines
            return True
        if OVER in err:  # It was killed after its end.
            return True
        if any(words in err for words in NOT_BEGUN):
            self.run_id = ""  # Nothing of it was on record yet.
            return False
        if any(words in err for words in self._faults):
            self.faults += 1
        else:
            assert process.returncode == -9, (kill_at, err.decode())
            self.kills += 1
        if not self.run_id and lines:
            self.run_id = lines[0]
        return False

    def stray(self) -> list[str]:
        """What is left over: copies, locks, processes."""
        left = [str(path) for path in (self._home / ".cache/retinue/worktrees").glob("*")]
        left += [str(path) for path in (self.project / ".retinue/live").glob("*")]
        mark = f"HOME={self._home}".encode()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (folder / "environ").read_bytes().split(b"\0"):
                        left.append((folder / "cmdline").read_text())
        return left


def tree(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): path.read_text()
        for path in sorted(project.rglob("*"))
        if path.is_file() and not {".retinue", ".git"} & set(path.relative_to(project).parts)
    }


WRITTEN = {
    "notes.txt": "note\n",
    **{f"{name}/{n}.txt": f"{name} {n}\n" for name in WRITERS for n in ("one", "two")},
}
FINAL = {**WRITTEN, "done.txt": "done\n"}
PLANNED_FINAL = {**WRITTEN, "a/one.txt": "a mended\n"}


async def whole(project: Path) -> tuple[RunState, list[Event]]:
    async with open_journal(project) as store:
        for row in await store.runs():
            await audit(store, row.id)
        row = next(row for row in await store.runs() if row.status is not None)
        events = await read_all(store, row.id)
    return retinue.fold(events), events


def check_reports(events: list[Event], children: int) -> None:
    """The end of each child is told to its parent, unasked at most once, and answered once."""
    background, errands, told = set[str](), Counter[str](), set[str]()
    for event in events:
        match event.fact:
            case AgentCreated(origin_key=origin_key, background=is_background):
                errands[f"{event.parent_agent_id} {origin_key}"] += 1
                if is_background:
                    background.add(event.agent_id)
            case ToolFinished(about=about):
                told.update(about)
            case MessageReceived(source="staff", about=about):
                assert not told & set(about), "it knew that already"
                told.update(about)
    assert told == background
    assert len(errands) == children + 1
    assert set(errands.values()) == {1}, "nobody is employed twice for the same"


def check_calls(events: list[Event]) -> None:
    """Each call that was begun is answered once."""
    begun = Counter((e.agent_id, e.fact.call_id) for e in events if isinstance(e.fact, ToolStarted))
    ended = Counter(
        (e.agent_id, e.fact.call_id) for e in events if isinstance(e.fact, ToolFinished)
    )
    assert begun == ended


def check_sales(events: list[Event], sales: Sales) -> None:
    """What is on record was not asked for again."""
    for event in events:
        if isinstance(event.fact, ModelReplied):
            number = int(event.fact.content.partition("#")[2].split()[0])
            asked = sales.asked[number]
            assert asked not in sales.asked[number + 1 :], f"bought again: {event.summary}"


async def killed_until_it_ends(tmp_path: Path, project: Path, seed: int) -> int:
    drawn, sales = random.Random(seed), Sales(SCRIPTS)
    async with ModelServer(sales) as server:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        chaos = Chaos(project, home, f"openai:m@{server.base_url}")
        while not await chaos.work(drawn.randrange(1, 60)):
            assert chaos.kills < 200, "it does not get on"
    where = f"seed {seed}, {chaos.kills} kills"
    view, events = await whole(project)
    assert view.status == "completed", where
    assert len(view.agents) == CHILDREN + 1, where
    assert {a.status for a in view.agents.values()} == {"completed"}, where
    assert tree(project) == FINAL, where
    check(chaos, events, sales, CHILDREN, where)
    return chaos.kills


async def plan_killed_until_it_ends(
    tmp_path: Path, project: Path, seed: int, *, most: int = 60
) -> int:
    drawn, sales = random.Random(seed), Sales(PLANNED)
    async with ModelServer(sales) as server:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        chaos = Chaos(project, home, f"openai:m@{server.base_url}", PLAN)
        while not await chaos.work(drawn.randrange(1, most)):
            assert chaos.kills < 200, "it does not get on"
    where = f"plan, seed {seed}, {chaos.kills} kills"
    view, events = await whole(project)
    assert view.status == "completed", where
    failed = {a.path for a in view.agents.values() if a.status != "completed"}
    assert failed == {"root/try.1", "root/no.1"}, where
    assert len(view.agents) == PLANNED_CHILDREN + 1, where
    assert tree(project) == PLANNED_FINAL, where
    check(chaos, events, sales, PLANNED_CHILDREN, where)
    report = (project / ".retinue" / f"plan-{view.id}.md").read_text()
    steps = [line.split(" | ")[:3] for line in report.splitlines() if line.startswith("| ")]
    assert steps[1:] == PLANNED_STEPS, where
    return chaos.kills


PLANNED_STEPS = [
    ["| look", "researcher", "done"],
    ["| see", "researcher", "done"],
    ["| a", "executor", "done"],
    ["| b", "executor", "done"],
    ["| more", "executor", "done"],
    ["| try", "researcher", "done (2 tries)"],
    ["| no", "researcher", "failed"],
    ["| c", "executor", "done"],
    ["| fix-1", "executor", "done"],
]


def check(chaos: Chaos, events: list[Event], sales: Sales, children: int, where: str) -> None:
    check_reports(events, children)
    check_calls(events)
    check_sales(events, sales)
    lines = chaos.notes.read_text().splitlines()
    assert len(lines) == len(set(lines)), f"{where}: what writes was run twice"
    assert chaos.stray() == [], where


async def test_run_ends_without_interference(tmp_path: Path, project: Path) -> None:
    sales = Sales(SCRIPTS)
    async with ModelServer(sales) as server:
        chaos = Chaos(project, tmp_path, f"openai:m@{server.base_url}")
        assert await chaos.work(0)
    view, events = await whole(project)
    assert tree(project) == FINAL
    assert len(sales.asked) == sum(isinstance(e.fact, ModelReplied) for e in events)
    assert sorted(chaos.notes.read_text().splitlines()) == sorted([*WRITERS, "root"])
    assert sum(e.type == "agent.worktree_created" for e in events) == len(WRITERS) + 1
    assert len(view.agents) == CHILDREN + 1
    check(chaos, events, sales, CHILDREN, "left alone")


async def test_run_survives_kills_at_random_points(tmp_path: Path, project: Path) -> None:
    assert await killed_until_it_ends(tmp_path, project, seed=1) >= 3


async def test_plan_survives_kills_at_random_points(tmp_path: Path, project: Path) -> None:
    assert await plan_killed_until_it_ends(tmp_path, project, seed=3, most=120) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("killed", [killed_until_it_ends, plan_killed_until_it_ends])
async def test_run_survives_kills_at_two_hundred_points(
    tmp_path: Path, project: Path, killed: Callable[[Path, Path, int], Awaitable[int]]
) -> None:
    kills = seed = 0
    while kills < 200:
        seed += 1
        folder = tmp_path / str(seed)
        folder.mkdir()
        copy = folder / "project"
        shutil.copytree(project, copy)
        kills += await killed(folder, copy, seed)
