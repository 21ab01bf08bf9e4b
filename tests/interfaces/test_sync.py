"""Synchronous calls: from a script, inside a running loop, in several threads, and interrupted."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

import retinue
from retinue.app import OpenOptions
from retinue.errors import RunError, UsageError
from retinue.models.scripted.model import ScriptedModel, call, say


class Count(msgspec.Struct):
    files: int


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir(exist_ok=True)
    return tmp_path / "project"


def test_all_three_calls(tmp_path: Path) -> None:
    at = project(tmp_path)
    run = retinue.run_sync("Say hi.", at, model=ScriptedModel([say("Hi.")]))
    assert run.response == "Hi."
    model = ScriptedModel([say('{"files": 3}')])
    child = retinue.spawn_sync("researcher", "How many?", at, model=model, output=Count)
    assert child.unwrap() == Count(files=3)
    model = ScriptedModel([say('{"files": 1}'), say('{"files": 1}')])
    two = retinue.Task("researcher", "b", max_turns=3)
    many = retinue.fan_out_sync([("researcher", "a"), two], at, model=model, output=Count)
    assert [result.unwrap().files for result in many] == [1, 1]


async def test_inside_a_running_loop(tmp_path: Path) -> None:
    at = project(tmp_path)
    assert asyncio.get_running_loop().is_running()
    result = retinue.spawn_sync("researcher", "Say hi.", at, model=ScriptedModel([say("Hi.")]))
    assert result.response == "Hi."


def test_from_several_threads_on_one_loop(tmp_path: Path) -> None:
    def ask(number: int) -> str:
        at = tmp_path / str(number)
        at.mkdir()
        model = ScriptedModel([say(str(number))])
        return retinue.spawn_sync("researcher", "Which?", at, model=model).response

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == ["0", "1", "2", "3"]
    assert sum(thread.name == "retinue" for thread in threading.enumerate()) == 1


def test_errors_are_raised(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="The task is empty"):
        retinue.run_sync(" ", project(tmp_path), model=ScriptedModel([]))
    model = ScriptedModel([say("")] * 2)
    with pytest.raises(RunError, match="researcher"):
        retinue.spawn_sync("researcher", "Go.", project(tmp_path), model=model).unwrap()


def test_a_tool_cannot_wait_for_its_own_loop(tmp_path: Path) -> None:
    at = project(tmp_path)

    @retinue.tool(effect="read")
    async def again() -> str:
        """Ask again."""
        return retinue.spawn_sync("researcher", "Go.", at, model=ScriptedModel([])).response

    model = ScriptedModel([call("again"), say("Done.")])
    retinue.run_sync("Go.", at, model=model, tools=[again])
    told = model.requests[-1].messages[-1].content
    assert told.startswith("[ERROR] again broke: UsageError: This runs on retinue's own loop; use")


INTERRUPTED = """
import asyncio, sys, threading, os, signal, retinue
from retinue.models.scripted.model import ScriptedModel, hold, say

def interrupt(event):
    if event.type == "turn.started":
        os.kill(os.getpid(), signal.SIGINT)

model = ScriptedModel([hold(asyncio.Event(), say("never"))], strict=False)
try:
    retinue.run_sync(
        "Wait.", sys.argv[1], model=model, listeners=retinue.Listeners(on_event=interrupt)
    )
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_cancels_the_run_and_records_it(tmp_path: Path) -> None:
    at = project(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(at)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    listed = subprocess.run(
        [sys.executable, "-m", "retinue", "runs", "-C", str(at)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cancelled" in listed.stdout


def test_options_are_those_of_open() -> None:
    parameters = inspect.signature(retinue.open).parameters
    assert list(OpenOptions.__annotations__) == [n for n in parameters if n != "directory"]
