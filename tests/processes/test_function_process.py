"""Functions in a process of their own: limits, failures, and the end with their caller."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import venv
from pathlib import Path

import msgspec
import pytest

from retinue.processes.function_process import FunctionLimits, FunctionOutput, run_function

ROOT = Path(__file__).parents[2]
LIMITS = FunctionLimits(cpu_s=10, wall_s=30.0)


def repeat() -> None:
    """Write the input twice."""
    data = sys.stdin.buffer.read()
    sys.stdout.buffer.write(data * 2)


def write_and_fail() -> None:
    sys.stdout.write("some")
    sys.stdout.flush()
    raise ValueError


def take_memory() -> None:
    bytearray(1 << 30)


def write_pid_and_wait() -> None:
    Path(sys.stdin.read()).write_text(str(os.getpid()))
    time.sleep(60)


@pytest.fixture(autouse=True)
def _is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process imports this module by its name."""
    monkeypatch.syspath_prepend(ROOT)


async def run(function: object, data: bytes = b"", **limits: float) -> FunctionOutput:
    name = getattr(function, "__name__", "")
    return await run_function(__name__, name, data, msgspec.structs.replace(LIMITS, **limits))


async def test_input_and_output() -> None:
    assert await run(repeat, b"ab" * 200_000) == FunctionOutput(b"ab" * 400_000, True, False)


async def test_sitecustomize_of_an_editable_install_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents can write the folder that the `.pth` file of an editable install names."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python3.*/site-packages")
    (packages / "__editable__.project.pth").write_text(f"{tmp_path}\n")
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    assert (await run(repeat, b"ab")).data == b"abab"
    assert not (tmp_path / "imported").exists()


async def test_output_is_limited() -> None:
    assert await run(repeat, b"abc", output_bytes=4) == FunctionOutput(b"abca", False, False)


async def test_what_was_written_before_a_failure() -> None:
    assert await run(write_and_fail) == FunctionOutput(b"some", False, False)


async def test_memory_is_limited() -> None:
    assert await run(take_memory, memory_bytes=512 << 20) == FunctionOutput(b"", False, False)


async def test_waiting_is_limited(tmp_path: Path) -> None:
    file = str(tmp_path / "pid").encode()
    assert await run(write_pid_and_wait, file, wall_s=0.1) == FunctionOutput(b"", False, True)


async def test_the_process_ends_with_a_cancelled_caller(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    asked = asyncio.create_task(run(write_pid_and_wait, str(file).encode()))
    while not (asked.done() or (file.exists() and file.read_text())):  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # The process writes it.
    assert not asked.done()
    asked.cancel()
    await asyncio.wait([asked])
    assert not (Path("/proc") / file.read_text()).exists()
