"""Work under way as plain lines: what happened, one after the other, for logs and pipes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import click

from retinue.domain.events import AgentCreated, Event, ModelFailed
from retinue.domain.run_state import RunState
from retinue.interfaces.view.formatting import lines_of
from retinue.interfaces.view.result_blocks import agent_block, paused_blocks, plain
from retinue.interfaces.view.task_lines import about, has_block
from retinue.runtime.core.task_group import TaskGroup

QUIET_S = 30.0
MOST_AT_WORK = 3
WIDTH = 100
SHOWN = {
    "agent.subagent_attempt",
    "agent.subagent_closed",
    "agent.subagent_created",
    "agent.limit_reached",
    "agent.breaker",
    "agent.cached",
    "agent.silent",
    "model.failed",
    "tool.started",
    "tool.denied",
}


class Lines:
    """A line for each event that matters. After a long silence it is said who is still at work."""

    def __init__(self, *, err: bool = True, quiet_s: float = QUIET_S) -> None:
        self._err = err
        self._quiet_s = quiet_s
        self._view = RunState()
        self._failures: dict[str, str] = {}
        self._last = time.monotonic()

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        async with TaskGroup() as nursery:
            waiting = nursery.create_task(self._break_silences())
            try:
                yield
            finally:
                waiting.cancel()

    def finish(self) -> None:
        """Nothing more will come."""

    def aside(self) -> AbstractContextManager[None]:
        """While inside, somebody else writes to the terminal."""
        return nullcontext()

    def hear(self, agent_id: str, text: str) -> None:
        """Words that an agent's model has just said; a log gets them when they are whole."""

    def wait(self, what: str) -> None:
        self._say(f"  {what}")

    def recall(self, event: Event) -> None:
        self._view.apply(event)

    def listen(self, event: Event) -> None:
        if event.type == "run.started":
            self._view = RunState()
        self._view.apply(event)
        fact = event.fact
        if isinstance(fact, AgentCreated):
            for note in fact.notes:
                self._line(event, f"note: {note}")
        if event.type == "run.suspended" and (said := paused_blocks(self._view, width=WIDTH)):
            self._say(plain(said))
        if event.type not in SHOWN or (event.parent_agent_id is None and event.attempt == 0):
            return
        if event.type == "agent.subagent_attempt" and event.attempt == 1:
            return
        if event.type == "agent.subagent_closed":
            self._closed(event)
            return
        if isinstance(fact, ModelFailed):
            # Once in full: the same sentence four times over would hide that it is one problem.
            again = self._failures.get(event.agent_id) == fact.error
            self._failures[event.agent_id] = fact.error
            if fact.retry_in_s is None:
                return
            if again:
                self._line(event, f"the same again; once more in {fact.retry_in_s:.1f}s")
                return
        self._line(event, event.summary)

    def _closed(self, event: Event) -> None:
        agent = self._view.agents[event.agent_id]
        if has_block(self._view, agent):
            self._say(plain(agent_block(agent, width=WIDTH)))
        elif agent.parent_id is not None:  # How the root ended is said at the end.
            self._line(event, event.summary)

    def _line(self, event: Event, text: str) -> None:
        path = self._view.agents[event.agent_id].path
        if text.startswith(path):
            text = text[len(path) :].lstrip()
        self._say(f"  {path}: {text}")

    async def _break_silences(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._last + self._quiet_s - time.monotonic()))
            if time.monotonic() >= self._last + self._quiet_s:
                self._last = time.monotonic()
                for line in self._at_work():
                    self._say(f"  {line}")

    def _at_work(self) -> Iterator[str]:
        working = [a for a in self._view.agents.values() if a.started_at and not a.closed_at]
        for agent in working[-MOST_AT_WORK:]:
            yield f"{agent.path}: {about(agent, time.time())}"
        if len(working) > MOST_AT_WORK:
            yield f"and {len(working) - MOST_AT_WORK:,} more at work"

    def _say(self, text: str) -> None:
        self._last = time.monotonic()
        stream = sys.stderr if self._err else sys.stdout
        if stream.isatty():
            text = "\n".join(lines_of(text))
        click.echo(click.style(text, dim=True), err=self._err)
