"""Runs of every command survive kills, faults of the server and outages, all at random moments.

`RETINUE_CHAOS_ROUNDS` and `RETINUE_CHAOS_CHILDREN` set how many rounds of each command, and how
many children a run has (of `spawn`: how many files its child writes). `RETINUE_CHAOS_KILL_S` is the
longest time that a process lives. With `RETINUE_CHAOS_CLUSTER=local:2` the children run in hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import retinue
from retinue.domain.events import FilesChanged, ModelReplied
from retinue.models.scripted.model import ScriptedReply, call, calls, say
from retinue.project import open_journal
from retinue.runtime.agent.conversation import INTERRUPTED
from retinue.runtime.delegation.task import Task
from retinue.runtime.history.audit import audit, read_all
from retinue.testing.server import (
    Answering,
    ModelServer,
    Received,
    Response,
    ResponseEnding,
    failing,
    streamed,
)

ROOT = Path(__file__).parents[2]
WORK = "tests.durability.programs.outage_work"
ROUNDS = int(os.environ.get("RETINUE_CHAOS_ROUNDS", "1"))
CHILDREN = int(os.environ.get("RETINUE_CHAOS_CHILDREN", "40"))
KILL_S = float(os.environ.get("RETINUE_CHAOS_KILL_S", "12"))
WRITER_SHARE = 10
"""One child in this many writes a file."""
FAULTS, OUTAGE_S, PATIENCE_S = 0.2, 3.0, 2
MAX_STARTS = 400
MAX_STEPS = 100
"""A plan has no more steps."""
MAX_MEMORY_KIB = 300 * 1024
MAX_BILLING_ERROR = 0.05


def is_writer(number: int) -> bool:
    return number % WRITER_SHARE == 0


def tasks(count: int) -> list[Task]:
    return [
        Task(role="executor", task=f"writer: {n}.", write=(f"{n}.txt",))
        if is_writer(n)
        else Task(role="researcher", task=f"reader: {n}.")
        for n in range(count)
    ]


def long_task(count: int) -> Task:
    """Of the child of `spawn`, which would be done before a kill if it wrote one file."""
    return Task(
        role="executor",
        task=f"long: {count}.",
        write=("*.txt",),
        max_turns=1_000,
        max_tool_calls=1_000,
        max_tokens=100_000_000,
    )


def plan(count: int) -> dict[str, Any]:
    steps = [
        {"name": f"s{n}", "role": task.role, "task": task.task, "writes": task.write or ()}
        for n, task in enumerate(tasks(min(count, MAX_STEPS)))
    ]
    return {"goal": "Do all", "steps": steps}


class FaultyServer:
    """Answers by the scripts. Knows what it has billed, and which requests it has answered."""

    def __init__(self, children: int, drawn: random.Random) -> None:
        self._children = children
        self._drawn = drawn
        self.billed = 0
        self.answered: list[bytes] = []
        """Requests that were answered in full; each reply has the number of its request."""

    def __call__(self, request: Received) -> Answering:
        if self._drawn.random() < FAULTS / 2:
            return failing(self._drawn.choice([500, 502, 503]), "A fault.")
        messages = request.json["messages"]
        number, tokens_in = len(self.answered), len(request.body) // 4
        self.answered.append(msgspec.json.encode(messages))
        steps = self._steps(messages[1]["content"])
        step = steps[min(_place(messages), len(steps) - 1)]
        reply = msgspec.structs.replace(step, text=f"#{number} {steps[-1].text}")
        tokens_out = len(streamed(reply).body) // 200
        response = streamed(reply.using(tokens_in, tokens_out))
        self.billed += tokens_in + tokens_out
        if self._drawn.random() < FAULTS / 2:
            # The prompt was read, so it is billed, and the reply breaks off.
            self.answered[number] = b""
            half = response.body[: len(response.body) // 2]
            return Response(body=half, ending=ResponseEnding.DROP)
        return msgspec.structs.replace(response, work_s=self._drawn.random() / 20)

    def _steps(self, task: str) -> list[ScriptedReply]:
        kind, _, rest = task.partition(": ")
        number = rest.partition(".")[0]
        if kind == "writer":
            return [_write(number), say("Written.")]
        if kind == "long":
            return [*(_write(str(n)) for n in range(int(number))), say("Written.")]
        if kind == "reader":
            return [call("list_dir"), say("Read.")]
        batch = [
            call("spawn_agent", task=one.task, role=one.role, scope=(one.write or ("",))[0])
            for one in tasks(self._children)
        ]
        groups = [batch[n : n + 20] for n in range(0, len(batch), 20)]
        return [*(calls(*group) for group in groups), say("All done.")]


def _write(name: str) -> ScriptedReply:
    return call("write_file", path=f"{name}.txt", content=f"{name}\n")


def _place(messages: list[Any]) -> int:
    """How many replies were carried out. A model repeats a call that may have been done.

    A kill can hit the repeated call too, so every interrupted reply counts, not only the last.
    """
    done: list[bool] = []
    for message in messages:
        if message["role"] == "assistant":
            done.append(True)
        elif done and (message.get("content") or "").startswith(INTERRUPTED):
            done[-1] = False
    return sum(done)


@contextlib.asynccontextmanager
async def outages(server: ModelServer, drawn: random.Random) -> AsyncIterator[None]:
    """The server is gone for some seconds, again and again."""

    async def fail() -> None:
        while True:
            await asyncio.sleep(drawn.uniform(4, 12))
            await server.__aexit__()
            await asyncio.sleep(OUTAGE_S)
            await server.__aenter__()

    task = asyncio.create_task(fail())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def work_until_done(
    project: Path, home: Path, model: str, command: str, drawn: random.Random
) -> tuple[str, Counter[str], int]:
    """Start or resume the run until it is done. Returns its id, what happened, and peak memory."""
    run_id, seen, peak = "", Counter[str](), 0
    for _ in range(MAX_STARTS):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", WORK, project, model, command, str(CHILDREN)),
            *([run_id] if run_id else []),
            cwd=ROOT,
            env={
                "HOME": str(home),
                "PATH": os.environ["PATH"],
                "RETINUE_CHAOS_CLUSTER": os.environ.get("RETINUE_CHAOS_CLUSTER", "off"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        killing = asyncio.create_task(asyncio.sleep(drawn.uniform(1.0, KILL_S)))
        killing.add_done_callback(partial(_kill, process))
        out, err = await process.communicate()
        killing.cancel()
        lines = out.decode().splitlines()
        run_id = run_id or (lines[0] if lines else "")
        if process.returncode == -9:
            seen["killed"] += 1
            if b"ended before it had begun" in err:
                run_id = ""
            continue
        if process.returncode == 1 and (b"before it had begun" in err or b"No run" in err):
            run_id = ""  # Nothing of it was on record yet.
            continue
        if b"is over (completed)" in err:  # It was killed after its end.
            return run_id, seen, peak
        assert process.returncode in (0, 75), (lines, err.decode())
        peak = max(peak, int(lines[-1]))
        if process.returncode == 0:
            assert lines[-2] == "completed", lines
            return run_id, seen, peak
        seen["suspended"] += 1
        await asyncio.sleep(drawn.uniform(0, 2))
    raise AssertionError(f"it does not get on: {seen}")


def _kill(process: asyncio.subprocess.Process, timer: asyncio.Task[None]) -> None:
    if not timer.cancelled() and process.returncode is None:
        # `process.kill` would reap a process that is just ending, and asyncio lose its exit code.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "spawn", "fan-out", "plan"])
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_every_command_survives_kills_and_outages(
    tmp_path: Path, command: str, seed: int, record_property: Any
) -> None:
    drawn = random.Random(f"{command} {seed}")
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    who = ("-c", "user.name=n", "-c", "user.email=e")
    for arguments in (("init", "-q"), (*who, "commit", "-qm", "begin", "--allow-empty")):
        subprocess.run(["git", "-C", project, *arguments], check=True)  # noqa: ASYNC221
    faulty = FaultyServer(CHILDREN, drawn)
    async with ModelServer(faulty) as server:
        settings = home / ".config" / "retinue" / "config.toml"
        settings.parent.mkdir(parents=True)
        origin = server.base_url.removesuffix("/v1")
        settings.write_text(f'[servers."{origin}"]\npatience_s = {PATIENCE_S}\n')
        model = f"openai:m@{server.base_url}"
        async with outages(server, drawn):
            run_id, seen, peak = await work_until_done(project, home, model, command, drawn)
    async with open_journal(project) as store:
        await audit(store, run_id)
        events = await read_all(store, run_id)
    view = retinue.fold(events)
    children = {"spawn": 1, "plan": min(CHILDREN, MAX_STEPS)}.get(command, CHILDREN)
    assert len(view.agents) == children + 1
    assert {agent.status for agent in view.agents.values()} == {"completed"}
    # What is on record was not asked for again.
    for event in events:
        if isinstance(event.fact, ModelReplied):
            number = int(event.fact.content.partition("#")[2].split()[0])
            asked = faulty.answered[number]
            assert asked not in faulty.answered[number + 1 :], f"bought again: {event.summary}"
    # No edit is applied twice, and none is missing.
    changed = Counter(
        file.path for e in events if isinstance(e.fact, FilesChanged) for file in e.fact.files
    )
    written = [n for n in range(CHILDREN) if command == "spawn" or (n < children and is_writer(n))]
    assert changed == {f"{n}.txt": 1 for n in written}
    assert peak < MAX_MEMORY_KIB
    ours = view.usage.tokens_in + view.usage.tokens_out
    assert abs(ours / faulty.billed - 1) < MAX_BILLING_ERROR
    figures = f"{dict(seen)}, {peak / 1024:.0f} MiB, billed {ours:,} of {faulty.billed:,}"
    print(f"{command} {seed}: {figures} ({ours / faulty.billed:.3f})")
    record_property("figures", figures)
