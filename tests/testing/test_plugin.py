"""The pytest plugin, as a project with tests of its own uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = 'pytest_plugins = ["retinue.testing.plugin"]\n'
TESTS = """
import pytest
from retinue.testing import call, fail, say
from retinue.errors import ProviderError


async def test_scripted(workspace, scripted_runtime):
    (workspace / "a.txt").write_text("hello\\n")
    async with scripted_runtime(call("read_file", path="a.txt"), say("Hello.")) as rt:
        result = await rt.spawn("researcher", "What is in a.txt?")
    assert result.response == "Hello."
    assert result.files_read == ("a.txt",)


async def test_leftover_replies_fail(scripted_runtime):
    with pytest.raises(AssertionError, match="not used: step 2"):
        async with scripted_runtime(say("Hello."), say("Never.")) as rt:
            await rt.spawn("researcher", "Greet.")


async def test_clock(scripted_runtime, fake_clock):
    busy = fail(ProviderError("busy", retryable=True))
    async with scripted_runtime(busy, say("Hello."), clock=fake_clock) as rt:
        job = await rt.start("researcher", "Greet.")
        await fake_clock.asleep(0.25)  # the delay before a retry
        fake_clock.advance(0.25)
        assert (await job.result()).ok
"""
RECORDED = """
async def test_recorded(workspace, recorded_runtime):
    (workspace / "a.txt").write_text("hello\\n")
    async with recorded_runtime("greeting.jsonl") as rt:
        result = await rt.spawn("researcher", "What is in a.txt?")
    assert (result.response, result.files_read) == ("Hello.", ("a.txt",))
"""


def run_pytest(folder: Path, *arguments: str, **variables: str) -> str:
    options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", f"--rootdir={folder}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments, str(folder)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder / "me"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_scripted_runtime_and_clock(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_mine.py").write_text(TESTS)
    assert "3 passed" in (said := run_pytest(tmp_path)), said


def test_recorded_runs(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_mine.py").write_text(RECORDED)
    (tmp_path / "script.yaml").write_text(
        "steps: [{call: read_file, args: {path: a.txt}}, {say: Hello.}]"
    )
    said = run_pytest(tmp_path)
    assert "greeting.jsonl does not exist; make it with pytest --record-retinue" in said
    model = f"scripted:{tmp_path / 'script.yaml'}"
    assert "1 passed" in (said := run_pytest(tmp_path, "--record-retinue", RETINUE_MODEL=model)), (
        said
    )
    assert (tmp_path / "greeting.jsonl").exists()
    assert "1 passed" in (said := run_pytest(tmp_path)), said
