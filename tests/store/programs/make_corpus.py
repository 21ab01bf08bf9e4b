"""Write the projects of `corpus/`: what is left of runs that were suspended, killed or finished.

make_corpus.py FOLDER           makes every one, as FOLDER/NAME.tar.gz
make_corpus.py FOLDER NAME …    makes these

An archive is a project with its `.retinue`, and the home of the user who began the runs: their key
and the copies that children work in. A journal names the project by its full path, so the archive
belongs at `PLACE/NAME`. `home/case.json` in it has the ids of the runs, and the script of the
model. Each step of the script with a `delay_s` was never answered: without the delays, the script
leads the run to its end.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec

import retinue

PLACE = Path("/tmp/retinue-corpus")
LINES = "one\ntwo\nthree\nfour\nfive\n"
FOREVER_S = 3000
FLUSHED_S = 0.5  # Ten times as long as an event waits to be written.

Json = dict[str, Any]
Rules = dict[str, list[Json]]

CLOSED = "agent.subagent_closed"


def say(text: str, **more: Any) -> Json:
    return {"say": text, **more}


def never(text: str) -> Json:
    return say(text, delay_s=FOREVER_S)


def call(tool: str, **args: Any) -> Json:
    return {"call": tool, "args": args}


def calls(*each: Json) -> Json:
    return {"calls": list(each)}


def spawn(task: str, role: str, **terms: Any) -> Json:
    return call("spawn_agent", task=task, role=role, **terms)


def write(path: str, text: str = "done\n") -> Json:
    return call("write_file", path=path, content=text)


@retinue.tool(effect="read")
async def look_out() -> str:
    """Look out."""
    await looked_out.wait()
    return "Nobody is there."


looked_out = asyncio.Event()


@retinue.tool(effect="read")
async def stall() -> str:
    """Keep everybody from work."""
    time.sleep(6)  # noqa: ASYNC251 - that is what it is for
    return "Over."


class Case:
    """A project that is open for one run after the other, with a model that plays `rules`."""

    def __init__(self, name: str, rules: Rules) -> None:
        self.home, self.project = PLACE / name / "home", PLACE / name / "project"
        self.script = {"rules": [{"match": m, "steps": steps} for m, steps in rules.items()]}
        self.stalls = name == "facts"
        self.events: list[retinue.Event] = []
        self._heard = asyncio.Event()

    def open(
        self,
        *,
        mode: str = "auto",
        shell: bool = False,
        unsafe_no_sandbox: bool = False,
        cache: bool = False,
        limits: retinue.Limits | None = None,
    ) -> AbstractAsyncContextManager[retinue.Runtime]:
        return retinue.open(
            self.project,
            model=retinue.ScriptedModel.from_text(msgspec.json.encode(self.script).decode()),
            mode=mode,
            tools=[stall if self.stalls else look_out],
            shell=shell,
            unsafe_no_sandbox=unsafe_no_sandbox,
            cache=cache,
            limits=limits,
            person=retinue.Person(approve=self.approve),
            listeners=retinue.Listeners(on_event=self.hear),
        )

    def hear(self, event: retinue.Event) -> None:
        self.events.append(event)
        self._heard.set()
        runs = list(dict.fromkeys(event.run_id for event in self.events))
        case = msgspec.json.encode({"runs": runs, "script": self.script})
        (self.home / "case.json").write_bytes(case)

    async def approve(self, question: object) -> bool:
        """A person who wants no second file."""
        return "b.txt" not in str(question)

    async def seen(self, *wanted: str) -> None:
        """Wait for events, each an agent and a type, with a number if not the first of them."""
        async with asyncio.timeout(30):
            while not all(map(self._has_happened, wanted)):
                self._heard.clear()
                await self._heard.wait()

    def _has_happened(self, wanted: str) -> bool:
        agent, kind, *number = wanted.split()
        happened = [(event.agent_id, event.type) for event in self.events].count((agent, kind))
        return happened >= int(number[0] if number else 1)

    async def killed(self, *wanted: str) -> None:
        """End this process when these are on the disk, as `kill -9` does."""
        await self.seen(*wanted)
        await asyncio.sleep(FLUSHED_S)
        os.kill(os.getpid(), signal.SIGKILL)


async def led() -> None:
    """Suspended: the root between two turns, two children done, one in the background at work."""
    case = Case(
        "led",
        {
            "reader:": [call("list_dir"), say("Read.")],
            "writer:": [write("out/child.txt"), say("Written.")],
            "slow:": [call("read_file", path="notes.txt"), never("Slowly read.")],
            "": [
                calls(
                    spawn("slow: notes", "researcher", background=True),
                    spawn("reader: all", "researcher"),
                    spawn("writer: out", "executor", scope="out"),
                ),
                write("root.txt"),
                call("look_out"),
                say("Two of three are done."),
                call("spawn_await", job_ids="*"),
                say("All done."),
            ],
        },
    )
    async with case.open() as rt:
        work = asyncio.create_task(rt.run("Lead."))
        await case.seen("a1 turn.started 2", "a0 tool.started 5")
        rt.suspend("the user has left")
        looked_out.set()
        await case.seen("a0 model.replied 4")
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def killed() -> None:
    """Killed: a command of a child and a child in the background were under way; of three calls of
    the root one was answered, and one not begun."""
    case = Case(
        "killed",
        {
            "reader:": [call("list_dir"), say("Read.")],
            "slow:": [call("read_file", path="notes.txt"), never("Slowly read.")],
            "writer:": [
                write("out/child.txt"),
                call("run_command", command="sleep 5; echo late >> out/child.txt"),
                say("Written, but for the command."),
            ],
            "": [
                spawn("slow: notes", "researcher", background=True),
                calls(
                    spawn("reader: all", "researcher"),
                    spawn("writer: out", "executor", scope="out"),
                    call("look_out"),
                ),
                call("spawn_await", job_ids="*"),
                say("All done."),
            ],
        },
    )
    async with case.open(mode="dangerous", shell=True, unsafe_no_sandbox=True) as rt:
        work = asyncio.create_task(rt.run("Lead."))
        await case.killed("a1 turn.started 2", f"a2 {CLOSED}", "a3 tool.started 2")
        await work


async def fan_out() -> None:
    """Suspended: of six tasks of a program two are done, two under way, and two not begun."""
    case = Case(
        "fan_out",
        {
            "number 0": [call("list_dir"), say("Done 0.")],
            "number 1": [write("out/1.txt"), say("Done 1.")],
            "number 2": [call("list_dir"), never("Done 2.")],
            "number 3": [write("out/3.txt"), never("Done 3.")],
            "number 4": [say('{"n": 4}')],
            "number 5": [write("out/5.txt"), say("Done 5.")],
        },
    )
    shape = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tasks = [
        retinue.Task(role="researcher", task="number 0", context="Some words.", scope=("out",)),
        retinue.Task(role="executor", task="number 1", write=("out/1.txt",)),
        retinue.Task(role="researcher", task="number 2", context_files=("notes.txt",)),
        retinue.Task(role="executor", task="number 3", write=("out/3.txt",)),
        retinue.Task(
            role="researcher",
            task="number 4",
            tools=("read_file",),
            success_criteria=("It is a number.",),
            output=shape,
            max_turns=3,
            timeout_s=60,
        ),
        retinue.Task(
            role="executor",
            task="number 5",
            write=("out/5.txt",),
            checks=("test -e out/5.txt",),
            max_retries=1,
        ),
    ]
    with suppress(asyncio.CancelledError):
        async with case.open(unsafe_no_sandbox=True) as rt:
            work = asyncio.create_task(rt.fan_out(tasks, max_concurrent=2))
            done = [f"a{number} {CLOSED}" for number in (1, 2)]
            await case.seen(*done, "a3 turn.started 2", "a4 turn.started 2")
            rt.suspend("the user has left")
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise asyncio.CancelledError


async def plan() -> None:
    """Killed: of five steps of a plan two are done, one is under way, and two wait for it."""
    case = Case(
        "plan",
        {
            "look:": [call("list_dir"), say("Looked.")],
            "first:": [write("out/first.txt"), say("Wrote the first.")],
            "slow:": [call("read_file", path="notes.txt"), never("Slowly read.")],
            "second:": [write("out/second.txt"), say("Wrote the second.")],
            "tell:": [say("Told.")],
        },
    )
    writes = {"role": "executor", "writes": ["out/**"], "checks": ["test -d out"]}
    steps = [
        {"name": "look", "role": "researcher", "task": "look: around"},
        {"name": "first", "task": "first: it", "depends_on": ["look"], "title": "One", **writes},
        {
            "name": "slow",
            "role": "researcher",
            "task": "slow: notes",
            "depends_on": ["first"],
            "context_files": ["notes.txt"],
            "success_criteria": ["It is read."],
            "on_failure": "retry",
            "expect_s": 5.0,
            "budget": {"max_turns": 9},
        },
        {"name": "second", "task": "second: it", "depends_on": ["slow"], **writes},
        {
            "name": "tell",
            "role": "reviewer",
            "task": "tell: it",
            "depends_on": ["second"],
            "on_failure": "continue",
        },
    ]
    planned = {"goal": "Two files", "summary": "Look, then write.", "steps": steps}
    async with case.open(unsafe_no_sandbox=True) as rt:
        work = asyncio.create_task(
            rt.execute({**planned, "budget": {"max_tokens": 900_000}}, max_concurrent=2)
        )
        await case.killed(f"a2 {CLOSED}", "a3 turn.started 2")
        await work


async def planning() -> None:
    """Killed: a planner that has looked around, and has not yet written its plan."""
    step = {"name": "look", "role": "researcher", "task": "Look."}
    answer = msgspec.json.encode({"steps": [step]}).decode()
    case = Case("planning", {"": [call("list_dir"), never(answer)]})
    async with case.open() as rt:
        work = asyncio.create_task(rt.plan("Know it"))
        await case.killed("a1 turn.started 2")
        await work


async def conflict() -> None:
    """Finished: root and child have changed the same line, and the child's work was kept."""
    case = Case(
        "conflict",
        {
            "editor:": [
                call("edit_file", path="shared.txt", old_text="three", new_text="by the child"),
                say("Edited.", delay_s=1),
            ],
            "": [
                spawn("editor: three", "executor", background=True),
                say("Wait for it.", delay_s=0.3) | call("list_dir"),
                call("edit_file", path="shared.txt", old_text="three", new_text="by the root"),
                call("spawn_await", job_ids="*"),
                say("One of us."),
            ],
        },
    )
    async with case.open() as rt:
        await rt.run("Edit.")


async def background() -> None:
    """Suspended: of three jobs of a program one is done and two under way; the program raised."""
    case = Case(
        "background",
        {
            "number 0": [write("out/0.txt"), say("Done 0.")],
            "number 1": [call("list_dir"), never("Done 1.")],
            "number 2": [write("out/2.txt"), never("Done 2.")],
        },
    )
    with suppress(ZeroDivisionError):
        async with case.open() as rt:
            first = await rt.start("executor", "number 0", write=["out/0.txt"])
            await rt.start("researcher", "number 1")
            await rt.start(
                "executor",
                "number 2",
                mode="auto",
                write=["out/2.txt"],
                workspace="worktree",
                on_conflict="resolve",
            )
            await first.result()
            await case.seen("a2 turn.started 2", "a3 turn.started 2")
            raise ZeroDivisionError


async def waiting() -> None:
    """Killed: the second child waits to be integrated, since the first is still at work."""
    case = Case(
        "waiting",
        {
            "number 0": [write("out/0.txt"), never("Done 0.")],
            "number 1": [write("out/1.txt"), say("Done 1.")],
        },
    )
    tasks = [
        retinue.Task(role="executor", task=f"number {n}", write=(f"out/{n}.txt",)) for n in (0, 1)
    ]
    async with case.open() as rt:
        work = asyncio.create_task(rt.fan_out(tasks))
        await case.killed("a1 turn.started 2", "a2 agent.subagent_waiting_for_merge")
        await work


async def session() -> None:
    """Finished: two runs of one session. The first has remembered something."""
    remember = call("remember", text="The user likes tea.", kind="fact")
    case = Case(
        "session",
        {
            "reader:": [call("read_file", path="notes.txt"), say("Read.")],
            "": [remember, say("One."), spawn("reader: notes", "researcher"), say("Two.")],
        },
    )
    async with case.open(cache=True) as rt:
        first = await rt.run("Count.")
        await rt.run("And on.", session=first.session)


async def facts() -> None:
    """Finished: runs in which happens what seldom does, and one that was cleaned away."""
    case = Case(
        "facts",
        {
            "reader:": [call("read_file", path="notes.txt"), say("Read.")],
            "bad:": [{"fail": "refused"}],
            "Stall.": [call("stall"), say("Stalled.", delay_s=1)],
            "": [
                write("a.txt"),
                {"fail": "rate_limited"},
                write("b.txt"),
                call("read_file", path="nowhere.txt"),
                spawn("reader: b", "researcher", background=True),
                spawn("reader: c", "researcher"),
                spawn("reader: c", "researcher"),
                say("Slow.", delay_s=1.6) | call("list_dir"),
                say("I ran the tests, and all tests pass."),
                call("list_dir"),
                say("What I have."),
                say("All was said."),
            ],
        },
    )
    settings = case.home / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("silence_s = 1\nwarn_at_calls = 3\npause_at_calls = 5\n")
    async with case.open(mode="auto") as rt:
        await rt.run("reader: it")
    clean = ["-m", "retinue", "clean", "--older-than", "0", "-C", str(case.project)]
    await (await asyncio.create_subprocess_exec(sys.executable, *clean)).wait()
    async with case.open(mode="normal", cache=True) as rt:
        first = await rt.run("Facts.")
        await rt.undo(first.id)
        await rt.redo(first.id)
    async with case.open(limits=retinue.Limits(max_turns=2)) as rt:
        await rt.run("More facts.", session=first.id)
    async with case.open() as rt:
        await rt.compact(first.id)
        one = {"role": "researcher", "task": "bad: it"}
        steps = [
            {"name": "bad", "on_failure": "continue", **one},
            {"name": "lost", "depends_on": ["bad"], **one},
            {"name": "again", "on_failure": "retry", **one},
        ]
        await rt.execute({"goal": "Fail", "steps": steps}, max_concurrent=1)
        work, started = asyncio.create_task(rt.run("Stall.")), len(case.events)
        await case.seen("a0 run.lapsed")
        rt.suspend("the user has left")
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        await rt.resume(case.events[started].run_id)


CASES: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
    led,
    killed,
    fan_out,
    plan,
    planning,
    conflict,
    background,
    waiting,
    session,
    facts,
)
NO_REPOSITORY = ("led", "session", "facts")


def prepare(place: Path, environment: dict[str, str], *, repository: bool) -> None:
    """A user and their project, with nothing of an earlier try."""
    shutil.rmtree(place, ignore_errors=True)
    project = place / "project"
    project.mkdir(parents=True)
    (place / "home").mkdir()
    (project / "notes.txt").write_text("Some notes.\n")
    (project / "shared.txt").write_text(LINES)
    if repository:
        who = ["-c", "user.name=User", "-c", "user.email=user@example.org"]
        for what in (["init", "-q", "--template="], ["add", "-A"], ["commit", "-q", "-m", "x"]):
            subprocess.run(["git", *who, *what], cwd=project, env=environment, check=True)


def archive(place: Path, target: Path) -> None:
    """Pack all that a later version needs; nothing tells who made it, or when."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        # SQLite makes the one anew; the other says when old copies were looked for.
        if info.name.endswith((".db-shm", "/swept")):
            return None
        return info.replace(mtime=0, uid=0, gid=0, uname="", gname="", deep=False)

    with (
        open(target, "wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name in ("home", "project"):
            tar.add(place / name, name, filter=plain)


def main(folder: Path, *names: str) -> None:
    for case in CASES:
        name = case.__name__
        if names and name not in names:
            continue
        place = PLACE / name
        environment = {"HOME": str(place / "home"), "PATH": os.environ["PATH"]}
        prepare(place, environment, repository=name not in NO_REPOSITORY)
        work = [sys.executable, os.path.abspath(__file__), "--work", name]
        done = subprocess.run(work, env=environment, cwd=place)
        if done.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"{name} ended with {done.returncode}")
        archive(place, folder / f"{name}.tar.gz")
        shutil.rmtree(place)


if sys.argv[1] == "--work":
    asyncio.run(next(case() for case in CASES if case.__name__ == sys.argv[2]))
else:
    main(Path(sys.argv[1]), *sys.argv[2:])
