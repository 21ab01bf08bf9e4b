"""What children's files cost in a large repository, against what git itself takes for the same."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.machine import this_machine
from retinue.config.environment import Environment
from retinue.workspace.user_file_tree import UserFileTree

FILES = 20_000
LAPS = 5


def measure_files() -> str:
    return asyncio.run(_measured())


async def _measured() -> str:
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        root = Path(scratch, "project")
        _repository(root)
        file_tree = _file_tree(root, Path(scratch))
        first = await _once(lambda: file_tree.snapshot(None))
        warm = await _median(lambda: file_tree.snapshot(None))
        edited = await _median(lambda: file_tree.snapshot(None), after=lambda: _edit(root))
        _git(root, "status", "--porcelain")
        status = await _median(_blocking(lambda: _git(root, "status", "--porcelain")))
        base = await file_tree.snapshot(None)
        copy, removed = await _copies(file_tree, base, root)
        worktree = await _median(_blocking(lambda: _worktree(root)), after=lambda: _drop(root))
        children = await _children(root, Path(scratch))
        lines = [
            f"{this_machine()}",
            f"a repository of {FILES:,} files, medians of {LAPS}, in ms",
            f"snapshot, the first              {first:8.1f}",
            f"snapshot, warm                   {warm:8.1f}   goal: at most 150",
            f"snapshot, warm, after an edit    {edited:8.1f}   goal: at most 150",
            f"  git status                     {status:8.1f}   {warm / status:.2f} times that",
            f"copy for a writing child         {copy:8.1f}   goal: at most git worktree add",
            f"  git worktree add               {worktree:8.1f}   {copy / worktree:.2f} times that",
            f"removing the copy                {removed:8.1f}",
            f"git started for a reading child  {children:8d}   goal: none",
        ]
        return "\n".join(lines)


def _repository(root: Path) -> None:
    for number in range(FILES):
        path = root / f"d{number % 200}" / f"e{number % 7}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# file {number}\n" * 20)
    _git(root, "init", "-q")
    _git(root, "add", "-A")
    _git(root, "-c", "user.name=u", "-c", "user.email=u@example.org", "commit", "-q", "-m", "x")
    (root / "d0" / "e0" / "f0.py").write_text("changed\n")
    (root / "new.py").write_text("new\n")


def _edit(root: Path) -> None:
    with (root / "d1" / "e1" / "f1.py").open("a") as file:
        file.write("edited\n")


def _file_tree(root: Path, scratch: Path) -> UserFileTree:
    state = root / ".retinue"
    state.mkdir()
    (state / ".gitignore").write_text("*\n")
    return UserFileTree(
        str(root),
        state_folder=str(state),
        worktrees=str(scratch / "worktrees"),
        home=str(scratch),
        config_home=str(scratch / "config"),
        seal=str,
    )


async def _copies(file_tree: UserFileTree, base: str, root: Path) -> tuple[float, float]:
    made, removed = [], []
    for lap in range(LAPS):
        started = time.perf_counter()
        copy = await file_tree.copy(base, name=f"c{lap}", directory=str(root))
        made.append(time.perf_counter() - started)
        started = time.perf_counter()
        await copy.remove()
        removed.append(time.perf_counter() - started)
    return statistics.median(made) * 1000, statistics.median(removed) * 1000


async def _children(root: Path, scratch: Path) -> int:
    """How often a fan-out of children that read starts git: a program in its place counts."""
    import retinue
    from retinue.models.scripted.model import ScriptedModel, call, say

    log, programs = scratch / "git.log", scratch / "bin"
    programs.mkdir()
    (programs / "git").write_text(f'#!/bin/sh\necho >> {log}\nexec {shutil.which("git")} "$@"\n')
    (programs / "git").chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{programs}:{path}"
    try:
        model = ScriptedModel({"": [call("read_file", path="new.py"), say("Read.")]})
        environment = Environment(variables={"HOME": str(scratch)})
        async with retinue.open(root, model=model, environment=environment) as rt:
            results = await rt.fan_out([("researcher", f"Read it, {n}.") for n in range(20)])
        assert all(result.ok for result in results), "they read"
    finally:
        os.environ["PATH"] = path
    return log.read_text().count("\n") if log.exists() else 0


def _worktree(root: Path) -> None:
    _git(root, "worktree", "add", "-q", "--detach", "../worktree")


def _drop(root: Path) -> None:
    _git(root, "worktree", "remove", "--force", "../worktree")


def _git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True, stdout=subprocess.DEVNULL)


def _blocking(work: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        work()

    return run


async def _once(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


async def _median(
    work: Callable[[], Awaitable[object]], after: Callable[[], None] = lambda: None
) -> float:
    laps = []
    for _ in range(LAPS):
        laps.append(await _once(work))
        after()
    return statistics.median(laps)
