"""Runs that the server itself works on, because the page has started or resumed them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from retinue.app import open_runtime
from retinue.config.environment import Environment
from retinue.domain.agent_state import ROOT_ID
from retinue.domain.events import Event
from retinue.errors import RetinueError
from retinue.ports.person import Listeners, Person
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.runtime import Runtime

ORIGIN = "web"
STOPPED = "stopped from the web page"
GRACE_S = 3.0
# Events before the first attempt of the root, which waits until the run is on disk.
NOT_YET_DURABLE = ("run.started", "agent.subagent_created", "agent.subagent_started")


class PersonAtPage(Person, frozen=True, kw_only=True):
    """A person who uses the page in a browser."""

    origin: ClassVar[str] = ORIGIN


async def _wait_for_page(*_: object) -> NoReturn:
    """Wait until cancelled: the page answers by a command, as for runs of other processes."""
    await asyncio.Event().wait()
    raise AssertionError("nothing sets the event")


class HostedRuns:
    """The runs that this server works on, each in its own runtime. On exit, all are suspended."""

    def __init__(self, directory: Path, environment: Environment) -> None:
        self._directory = directory
        self._environment = environment
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._runtimes: dict[str, Runtime] = {}
        self.texts: dict[str, dict[str, str]] = {}
        """Text that models are writing now, by run and agent."""

    async def __aenter__(self) -> HostedRuns:
        self._group = TaskGroup()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        for run_id in list(self._tasks):
            self.stop(run_id)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=GRACE_S)
        for task in self._tasks.values():
            task.cancel()
        await self._group.__aexit__(*error)

    def runtime(self, run_id: str) -> Runtime | None:
        return self._runtimes.get(run_id)

    async def start(
        self, options: Mapping[str, Any], work: Callable[[Runtime], Awaitable[object]]
    ) -> str:
        """Start `work` in a new runtime, and return the id of its run once the run has begun."""
        begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._group.create_task(self._run(options, work, begun))
        return await begun

    async def _run(
        self,
        options: Mapping[str, Any],
        work: Callable[[Runtime], Awaitable[object]],
        begun: asyncio.Future[str],
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        opened: list[Runtime] = []

        def on_event(event: Event) -> None:
            if event.run_id not in self._tasks:
                self._tasks[event.run_id] = task
                self._runtimes[event.run_id] = opened[0]
                self.texts[event.run_id] = {}
            if not begun.done() and event.type not in NOT_YET_DURABLE:
                begun.set_result(event.run_id)
            if event.type == "model.replied":
                self.texts[event.run_id].pop(event.agent_id, None)

        def on_child_text(run_id: str, agent_id: str, text: str) -> None:
            written = self.texts[run_id]
            written[agent_id] = written.get(agent_id, "") + text

        try:
            async with open_runtime(
                self._directory,
                **options,
                environment=self._environment,
                person=PersonAtPage(approve=_wait_for_page, ask=_wait_for_page),
                listeners=Listeners(
                    on_event=on_event,
                    on_text=lambda text: on_child_text(begun.result(), ROOT_ID, text),
                    on_child_text=on_child_text,
                    on_stop=self.stop,
                ),
            ) as runtime:
                opened.append(runtime)
                await work(runtime)
        except (RetinueError, asyncio.CancelledError) as error:
            # Once the run has begun, its journal says how it ended.
            if not begun.done():
                begun.set_exception(error)
        finally:
            if begun.done() and begun.exception() is None:
                for known in (self._tasks, self._runtimes, self.texts):
                    known.pop(begun.result(), None)

    def stop(self, run_id: str) -> bool:
        """Suspend a run, so that it can be resumed. Returns False for an unknown run."""
        task, runtime = self._tasks.get(run_id), self._runtimes.get(run_id)
        if task is None or runtime is None:
            return False

        def cancel() -> None:
            task.cancel()

        runtime.suspend(STOPPED, cancel, run_id=run_id)
        asyncio.get_running_loop().call_later(GRACE_S, cancel)
        return True
