"""`kill -9` ends `retinue race` at a named moment, and `retinue resume` ends the race."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from retinue.domain.events import ModelReplied, RaceDecided, WorktreeMerged
from retinue.models.scripted.model import call, say
from retinue.testing.server import Answering, ModelServer, Received, Response, as_json
from tests.durability import test_chaos as chaos

project = chaos.project
pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="only sandboxed commands die with their runtime"
)
LINES = {"long": 4, "short": 1, "wrong": 0}
"""How many lines each model writes. The checks want one, and fewer lines win."""
EDITED = "edited\n"
HOOKS = ("PreMerge", "PostMerge")
HOOK = """
import sys, urllib.request
sys.stdin.read()
urllib.request.urlopen("{url}", timeout=60).read()
"""
IN_CHECK = "during a check"


class Answers:
    """Answers of three models. At the `moment`, and from then on, nothing is answered."""

    def __init__(self, moment: str) -> None:
        self.asked: list[bytes] = []
        """The conversation for which each reply was given."""
        self._moment = moment
        self.reached = asyncio.Event()

    def go_on(self) -> None:
        self._moment = ""
        self.reached.clear()

    def __call__(self, request: Received) -> Answering:
        name, messages = request.json["model"], request.json["messages"]
        place = chaos._place(messages)
        if self._is_over(f"request {place + 1} of {name}"):
            return Response(gate=asyncio.Event())
        content = "fixed\n" * LINES[name] or "no\n"
        steps = [call("write_file", path="a.txt", content=content)]
        steps += [call("read_file", path="a.txt"), say(f"{name} is done.")]
        reply = steps[min(place, 2)]
        self.asked.append(msgspec.json.encode([name, messages]))
        return msgspec.structs.replace(reply, text=f"#{len(self.asked) - 1} {reply.text}")

    def to_hook(self, visit: Received) -> Answering:
        if self._is_over(visit.target.rpartition("/")[2]):
            return Response(gate=asyncio.Event())
        return as_json("go on")

    def _is_over(self, now: str) -> bool:
        if now == self._moment:
            self.reached.set()
        return self.reached.is_set()


class Command:
    """`retinue`, with a home of its own. Its hooks ask the server whether to go on."""

    def __init__(self, project: Path, home: Path, server: ModelServer) -> None:
        self.project, self.home = project, home
        self.waits = f"sleep 600.{server.port}"
        """What a check does until it is killed. The number tells the tests apart."""
        lines = ["[models]"]
        lines += [f'{name} = "openai:{name}@{server.base_url}"' for name in LINES]
        settings = home / ".config" / "retinue" / "config.toml"
        settings.parent.mkdir(parents=True)
        for event in HOOKS:
            script = home / f"{event}.py"
            script.write_text(HOOK.format(url=f"{server.base_url}/{event}"))
            command = f'{{type = "command", command = "{sys.executable} {script}"}}'
            lines += [f"[[hooks.{event}]]", f"hooks = [{command}]"]
        settings.write_text("\n".join(lines))

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "retinue", *arguments),
            cwd=self.project,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def left(self) -> list[str]:
        """Copies, locks and processes."""
        left = [str(path) for path in (self.home / ".cache/retinue/worktrees").glob("*")]
        left += [str(path) for path in (self.project / ".retinue/live").glob("*")]
        return left + self.processes()

    def processes(self) -> list[str]:
        mark = f"HOME={self.home}".encode()
        found = [told for _, told, environment in processes() if mark in environment]
        return found + [str(number) for number in self.checks()]

    def checks(self) -> list[int]:
        return [number for number, told, _ in processes() if told == f"{self.waits} "]

    async def end_checks(self) -> None:
        while True:
            for number in self.checks():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGTERM)
            await asyncio.sleep(0.02)


def processes() -> Iterator[tuple[int, str, list[bytes]]]:
    """The number, the command line and the environment of each."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                told = (folder / "cmdline").read_text().replace("\0", " ")
                yield int(folder.name), told, (folder / "environ").read_bytes().split(b"\0")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is another process that changes it
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("first", [False, True], ids=["best", "first"])
@pytest.mark.parametrize(
    "moment",
    [
        "request 1 of short",
        "request 2 of short",
        IN_CHECK,
        "PreMerge",  # The decision is on record.
        "PostMerge",
    ],
)
async def test_race_is_killed(tmp_path: Path, project: Path, moment: str, *, first: bool) -> None:
    answers = Answers(moment)
    pages = {f"/v1/{name}": answers.to_hook for name in HOOKS}
    async with ModelServer(answers, pages=pages) as server:
        command = Command(project, tmp_path / "home", server)
        options = ["--mode", "auto", "--yes", "--with", ",".join(LINES), *(["--first"] * first)]
        check = "grep -q fixed a.txt"
        if moment == IN_CHECK:
            check = f"{command.waits}; {check}"
        killed = await command.start("race", *options, "--check", check, "Fix it.")
        if moment == IN_CHECK:
            await until(command.checks)
        else:
            await asyncio.wait_for(answers.reached.wait(), 60)
        killed.kill()
        _, err = await killed.communicate()
        assert killed.returncode == -signal.SIGKILL, err.decode()
        if moment not in HOOKS:  # A hook is a program of the user, and ends by itself.
            await until(lambda: not command.processes())
        if moment == "PostMerge":
            (project / "a.txt").write_text(EDITED)  # The user goes on with what was merged.
        answers.go_on()
        ends = asyncio.create_task(command.end_checks())
        resumed = await command.start("resume")
        out, err = await resumed.communicate()
        ends.cancel()
    told = f"{out.decode()}\n{err.decode()}"
    assert resumed.returncode == 0, told
    assert "To choose another: retinue undo " in told
    view, events = await chaos.whole(project)
    decided = [event.fact.winner for event in events if isinstance(event.fact, RaceDecided)]
    assert len(decided) == 1, told
    merged = [event.agent_id for event in events if isinstance(event.fact, WorktreeMerged)]
    assert merged == decided
    winner = list(LINES)[int(decided[0].removeprefix("a")) - 1]
    assert winner in (["long", "short"] if first else ["short"])
    fixed = EDITED if moment == "PostMerge" else "fixed\n" * LINES[winner]
    assert chaos.tree(project) == {"notes.txt": "note\n", "a.txt": fixed}, told
    assert {agent.state for agent in view.agents.values()} == {"closed"}
    for event in events:
        if isinstance(event.fact, ModelReplied):
            number = int(event.fact.content.partition("#")[2].split()[0])
            asked = answers.asked[number]
            assert asked not in answers.asked[number + 1 :], f"asked again: {event.summary}"
    # The killed run's hook ends when the server does not answer it any more.
    await until(lambda: not command.processes())
    assert command.left() == []
