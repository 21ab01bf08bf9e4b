"""Progress as plain lines, for logs, pipes and dumb terminals."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from retinue.domain.events import AgentCreated, Event, HookFinished, ModelFailed
from retinue.domain.run_state import RunState
from retinue.interfaces.cli.terminal.output import printable_text
from retinue.interfaces.cli.terminal.progress import Progress
from retinue.interfaces.view.result_blocks import agent_block, paused_blocks
from retinue.interfaces.view.styled_text import plain_text
from retinue.interfaces.view.task_lines import has_result_block, task_summary
from retinue.runtime.core.task_group import TaskGroup

SILENCE_S = 30.0
MAX_RUNNING = 3
WIDTH = 100
SHOWN = {
    "agent.subagent_attempt", "agent.subagent_closed", "agent.subagent_created",
    "agent.limit_reached", "agent.breaker", "agent.cached", "agent.silent", "model.failed",
    "tool.started", "tool.denied", "hook.finished",
}  # fmt: skip


class Lines(Progress):
    """Prints a line per important event, and after a long silence which agents are running."""

    def __init__(self, *, err: bool = True, silence_s: float = SILENCE_S) -> None:
        self._err = err
        self._silence_s = silence_s
        self._view = RunState()
        self._waiting = ""
        self._failures: dict[str, str] = {}
        self._last = time.monotonic()

    @asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        async with TaskGroup() as tasks:
            reporting = tasks.create_task(self._report_silences())
            try:
                yield
            finally:
                reporting.cancel()

    def on_wait(self, reason: str) -> None:
        # A reason is repeated while the wait lasts.
        if reason != self._waiting:
            self._waiting = reason
            self._print(f"  {reason}")

    def on_past_event(self, event: Event) -> None:
        self._view.apply(event)

    def on_event(self, event: Event) -> None:
        if event.type == "run.started":
            self._view = RunState()
        self._view.apply(event)
        fact = event.fact
        if isinstance(fact, AgentCreated):
            for note in fact.notes:
                self._print_about(event, f"note: {note}")
        if event.type == "run.suspended" and (blocks := paused_blocks(self._view, width=WIDTH)):
            self._print(plain_text(blocks))
        if event.type not in SHOWN or (event.parent_agent_id is None and event.attempt == 0):
            return
        if event.type == "agent.subagent_attempt" and event.attempt == 1:
            return
        if isinstance(fact, HookFinished) and not fact.notable:
            return
        if event.type == "agent.subagent_closed":
            self._print_closed(event)
            return
        if isinstance(fact, ModelFailed):
            # The full error only once: four times the same sentence would look like four problems.
            repeated = self._failures.get(event.agent_id) == fact.error
            self._failures[event.agent_id] = fact.error
            if fact.retry_in_s is None:
                return
            if repeated:
                self._print_about(event, f"same error; retrying in {fact.retry_in_s:.1f}s")
                return
        self._print_about(event, event.summary)

    def _print_closed(self, event: Event) -> None:
        agent = self._view.agents[event.agent_id]
        if has_result_block(self._view, agent):
            self._print(plain_text(agent_block(agent, width=WIDTH)))
        elif agent.parent_id is not None:  # The command prints the root's outcome.
            self._print_about(event, event.summary)

    def _print_about(self, event: Event, text: str) -> None:
        path = self._view.agents[event.agent_id].path
        if text.startswith(path):
            text = text[len(path) :].lstrip()
        self._print(f"  {path}: {text}")

    async def _report_silences(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._last + self._silence_s - time.monotonic()))
            if time.monotonic() >= self._last + self._silence_s:
                self._last = time.monotonic()
                self._print_running()

    def _print_running(self) -> None:
        running = [a for a in self._view.agents.values() if a.started_at and not a.closed_at]
        for agent in running[-MAX_RUNNING:]:
            self._print(f"  {agent.path}: {task_summary(agent, time.time())}")
        if len(running) > MAX_RUNNING:
            self._print(f"  and {len(running) - MAX_RUNNING:,} more running")

    def _print(self, text: str) -> None:
        self._last = time.monotonic()
        stream = sys.stderr if self._err else sys.stdout
        click.secho(printable_text(text, stream), dim=True, err=self._err)
