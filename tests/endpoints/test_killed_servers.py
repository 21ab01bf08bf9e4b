"""Endpoints as processes that are killed in the middle of a reply, and come back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path

import pytest

from retinue.domain.events import Event, ModelFailed, ModelReplied
from retinue.errors import RunSuspended
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Settings = Callable[[str], None]

SERVE = Path(__file__).parent / "programs" / "serve.py"


class Server:
    """One process; `kill` is not a polite word to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self.model = f"openai:m@http://127.0.0.1:{self.port}/v1"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


Started = Callable[..., Server]


@pytest.fixture
def started() -> Iterator[Started]:
    with ExitStack() as stack:

        def start(what: str, port: int = 0) -> Server:
            process = subprocess.Popen(
                [sys.executable, str(SERVE), str(port), what],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            # Leaving closes its standard input, which ends it.
            stack.enter_context(process)
            return Server(process)

        yield start


class Heard:
    """What the runs say, and a way to wait for it."""

    def __init__(self) -> None:
        self.text = asyncio.Event()
        self.unreachable = asyncio.Event()
        self.failed: list[str] = []
        self.replied: list[str] = []

    def event(self, event: Event) -> None:
        match event.fact:
            case ModelFailed(error=error):
                self.failed.append(error)
                if "Cannot reach" in error:
                    self.unreachable.set()
            case ModelReplied(model=model):
                self.replied.append(model)


async def test_one_of_two_is_killed_and_comes_back(
    opened: Opened, settings: Settings, started: Started
) -> None:
    a, b = started("half a reply"), started("whole replies")
    settings(f'[pools.smart]\nendpoints = ["{a.model}", "{b.model}"]\nstrategy = "order"\n')
    heard = Heard()
    async with opened(
        model="smart", on_event=heard.event, on_text=lambda _: heard.text.set()
    ) as rt:
        running = asyncio.create_task(rt.run("Say something."))
        await heard.text.wait()
        a.kill()
        result = await running
        # The run went on elsewhere, and the journal says what happened.
        assert (result.response, result.attempts) == ("Whole.", 1)
        (failed,) = heard.failed
        assert failed == (
            f"The reply of http://127.0.0.1:{a.port}/v1 broke off in the middle. If it does so"
            " again, look into the server's log."
        )
        assert heard.replied == [b.model]

        # While it is gone, the other does the work. The pool tries it again after a pause.
        async with asyncio.timeout(60):
            while not any("Cannot reach" in error for error in heard.failed):
                first = len(heard.replied)
                results = await rt.fan_out(
                    [("researcher", f"Part {first + n}.") for n in range(20)]
                )
                assert all(result.ok for result in results)
        assert set(heard.replied) == {b.model}

        # When it is back, it gets work again.
        again = started("whole replies", a.port)
        assert again.model == a.model
        async with asyncio.timeout(60):
            number = 0
            while heard.replied[-1] != a.model:
                number += 1
                assert (await rt.spawn("researcher", f"More of it, {number}.")).ok
        heard.replied.clear()
        await rt.fan_out([("researcher", f"The rest, {n}.") for n in range(5)])
        assert set(heard.replied) == {a.model}


async def test_requests_wait_for_the_only_server_that_was_killed(
    opened: Opened, started: Started
) -> None:
    server = started("half a reply")
    heard = Heard()
    async with opened(
        model=server.model, on_event=heard.event, on_text=lambda _: heard.text.set()
    ) as rt:
        running = asyncio.create_task(rt.run("Say something."))
        await heard.text.wait()
        server.kill()
        jobs = [await rt.start("researcher", f"Part {n}.") for n in range(3)]
        await heard.unreachable.wait()
        started("whole replies", server.port)
        assert (await running).response == "Whole."
        assert [(await job.result()).attempts for job in jobs] == [1, 1, 1]


async def test_server_that_stays_down_is_given_up_with_advice(
    opened: Opened, settings: Settings, started: Started
) -> None:
    server = started("whole replies")
    origin = f"http://127.0.0.1:{server.port}"
    settings(f'[servers."{origin}"]\npatience_s = 1\n')
    async with opened(model=server.model) as rt:
        assert (await rt.spawn("researcher", "Before.")).ok
        server.kill()
        jobs = [await rt.start("researcher", f"After, {n}.") for n in range(8)]
        told = []
        for job in jobs:
            with pytest.raises(RunSuspended) as left:
                await job.result()
            told.append(str(left.value).partition(f" waits for {server.model}: ")[2])
    given_up = [error for error in told if error.startswith(f"{origin} has been down for ")]
    # The first two to fail may think it an accident, and try again by themselves.
    assert len(given_up) >= 6
    assert given_up[0].endswith(
        f" s: Cannot reach {origin}/v1: connection refused. Start it again, choose another model"
        " with -m, or let agents wait longer with patience_s under"
        f' [servers."{origin}"] in your settings.'
    )
