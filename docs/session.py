"""Records the session that `retinue demo` plays back, into the file that is named.

    script/record

The command `retinue` works for real, on a copy of the demo's repository: contracts, copies, merges,
budgets and journal. Only the words of the model were written beforehand, in this file; a server on
this machine gives them as any other would. While a child is at work the process is killed, as by
`kill -9`, and `retinue resume` goes on. What is kept is the journal, as `retinue export` writes it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from retinue.interfaces.cli.commands.demo import copy_tree, demo_files
from retinue.models.scripted.model import ScriptedReply, Step, call, calls, say
from retinue.testing.server import ModelServer, Received, Response, streamed

TASK = "Make short codes longer, and have the README tell the truth about how long links stay."
CODES = "How are codes made, and who relies on their length?"
EXPIRY = "Does anything remove links after 30 days?"
LONGER = "Give codes six characters."
HONEST = "Say in the README that links stay."
TESTED = "Test that a link is found again."
TEST = """from snip.links import Links


def test_a_link_is_found_again(tmp_path):
    links = Links(tmp_path / "links.json")
    code = links.add("https://example.com")
    assert Links(tmp_path / "links.json").get(code) == "https://example.com"
"""
# What the user does meanwhile, to the line that a child changes.
EDIT = ("30 days", "60 days")


def child(role: str, task: str, **terms: Any) -> ScriptedReply:
    return call("spawn_agent", role=role, task=task, **terms)


SAYS: dict[str, list[ScriptedReply]] = {
    TASK: [
        calls(
            child("researcher", CODES),
            child("researcher", EXPIRY),
            text="Two questions first.",
        ).after(0.8),
        calls(
            child("executor", LONGER, mode="auto", scope="snip/codes.py"),
            child("executor", HONEST, mode="auto", scope="README.md"),
            child("tester", TESTED, mode="auto"),
            text="Both are clear. Three children write, each its own files.",
        ).after(1.0),
        say(
            "Codes have six characters, and a test finds a link again. The README was not changed:"
            " you edited the same line meanwhile, and it is yours to settle."
        ).after(1.0),
        # It is reminded of the conflict.
        say(
            "Codes have six characters, and a test finds a link again. The README keeps your edit;"
            " what a4 wrote about the same line is kept for you."
        ).after(1.0),
    ],
    CODES: [
        call("read_file", path="snip/codes.py").after(0.7),
        call("search_files", pattern="LENGTH|new_code|is_code", glob="*.py").after(0.8),
        say(
            "new_code() draws LENGTH characters (snip/codes.py:10), and is_code() compares with"
            " LENGTH too. Nothing else relies on it."
        ).after(0.9),
    ],
    EXPIRY: [
        call("read_file", path="snip/links.py").after(0.9),
        call("search_files", pattern="expire|days", glob="*").after(0.7),
        say("No. Links are added and looked up; only the README speaks of 30 days.").after(0.8),
    ],
    LONGER: [
        call("edit_file", path="snip/codes.py", old_text="LENGTH = 4", new_text="LENGTH = 6").after(
            0.9
        ),
        say("Codes have six characters now.").after(0.6),
    ],
    HONEST: [
        call(
            "edit_file",
            path="README.md",
            old_text="Links expire after 30 days.",
            new_text="Links stay.",
        ).after(0.8),
        say("The README says that links stay.").after(0.9),
    ],
    TESTED: [
        call("read_file", path="snip/links.py").after(0.8),
        call("write_file", path="tests/test_links.py", content=TEST).after(1.0),
        say("tests/test_links.py adds a link and finds it again in a second `Links`.").after(0.8),
    ],
}


def step(request: Received) -> tuple[str, int]:
    """Whose request it is, by its task, and how often that one was answered before."""
    messages = request.json["messages"]
    asked = next(message["content"] for message in messages if message["role"] == "user")
    [task] = [task for task in SAYS if task in asked]
    return task, sum(message["role"] == "assistant" for message in messages)


class Session:
    """A project, a server, and the command that works with both."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "snip"
        self.home = folder / "home"
        self.waiting, self.killed = asyncio.Event(), asyncio.Event()
        self.server = ModelServer(self.answer)

    def answer(self, request: Received) -> Step | Response:
        task, turn = step(request)
        if (task, turn) == (HONEST, 1):
            readme = self.project / "README.md"
            readme.write_text(readme.read_text("utf-8").replace(*EDIT), "utf-8")
        if (task, turn) == (TESTED, 2):
            self.waiting.set()
            # The process is killed before this one has come.
            return msgspec.structs.replace(streamed(SAYS[task][turn]), gate=self.killed)
        return SAYS[task][turn]

    def prepare(self) -> None:
        self.home.mkdir()
        copy_tree(demo_files() / "snip", self.project)
        who = ["-c", "user.name=demo", "-c", "user.email=demo"]
        for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "snip"]):
            subprocess.run(["git", *who, *arguments], cwd=self.project, check=True)

    async def record(self, target: Path) -> None:
        async with self.server:
            model = f"openai:scripted@{self.server.base_url}"
            first = await self.start("run", "--json", "--mode", "auto", "-m", model, TASK)
            run = await self.until_two_writers_are_done(first)
            first.send_signal(signal.SIGKILL)
            await first.wait()
            self.killed.set()
            second = await self.start("resume", "--json", run)
            assert second.stdout is not None
            await second.stdout.read()
            assert await second.wait() == 0
            third = await self.start("export", run, "-o", str(target))
            assert await third.wait() == 0

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        program = "from retinue.interfaces.cli.main import main; main()"
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            *arguments,
            cwd=self.project,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )

    async def until_two_writers_are_done(self, process: asyncio.subprocess.Process) -> str:
        """Until the tester alone is at work, and waits for its model; the run's id."""
        closed = 0
        assert process.stdout is not None
        async for line in process.stdout:
            event = msgspec.json.decode(line)
            closed += event["type"] == "agent.subagent_closed"
            if closed == 4:
                await self.waiting.wait()
                return str(event["run_id"])
        raise AssertionError("The run ended before it could be killed.")


def main() -> None:
    [target] = map(Path, sys.argv[1:])
    # The same name every time, since prompts and events have it.
    folder = Path(tempfile.gettempdir()) / "retinue-session"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    target.unlink(missing_ok=True)
    session = Session(folder)
    session.prepare()
    try:
        asyncio.run(session.record(target.absolute()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(target)


if __name__ == "__main__":
    main()
