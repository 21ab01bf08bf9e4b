"""`retinue tasks`: lists the tasks that children of a session were given."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import click
import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.plural import plural
from retinue.domain.run_state import RunState, fold
from retinue.errors import UnknownRun
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import (
    directory_option,
    json_objects_option,
    optional_run_argument,
)
from retinue.interfaces.cli.terminal.output import print_json, print_line, print_table
from retinue.interfaces.view.formatting import format_duration, one_line
from retinue.interfaces.view.run_status import agent_status
from retinue.ports.store import RunRow, Store
from retinue.project import open_journal, open_run_locks
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.session import latest_run


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the list. `seconds` is how long the task took, or has taken so far."""

    run_id: str
    agent_id: str
    path: str
    role: str
    status: str
    seconds: float
    turns: int
    tool_calls: int
    tokens: int
    cost_usd: float
    task: str
    error: str

    @classmethod
    def of(cls, view: RunState, agent: AgentState, *, active: bool) -> _Task:
        return cls(
            run_id=view.id,
            agent_id=agent.id,
            path=agent.path,
            role=agent.role,
            status=agent_status(view, agent, active=active),
            seconds=_seconds(agent, time.time() if active else None),
            turns=agent.turns,
            tool_calls=agent.tool_calls,
            tokens=agent.usage.tokens,
            cost_usd=agent.usage.cost_usd,
            task=agent.title,
            error=agent.error,
        )


@click.command()
@optional_run_argument
@directory_option
@json_objects_option
@async_command
async def tasks(run: str | None, directory: str, as_json: bool) -> None:
    """List the tasks of children, with their status and how long they took.

    Without RUN, list the tasks of the latest session, spawn or fan-out. With RUN, list the tasks of
    its session.

    Example: retinue tasks
    """
    is_active = open_run_locks(directory).is_held
    async with open_journal(directory) as store:
        rows = await _session_runs(store, run)
        views = [fold(await read_all(store, row.id)) for row in rows]
    found = [
        _Task.of(view, agent, active=is_active(view.id))
        for view in views
        for agent in view.agents.values()
        if agent.parent_id is not None
    ]
    if as_json:
        print_json(*found)
    else:
        _print_tasks(found, rows[0])


async def _session_runs(store: Store, run: str | None) -> Sequence[RunRow]:
    """The runs of a session, or the one run that belongs to no session."""
    if run is None:
        latest = await latest_run(store)
        if latest is None:
            raise UnknownRun("There are no runs here yet.")
        row = latest
    else:
        row = await store.run(run)
    return [row] if row.session is None else await store.session(row.id)


def _seconds(agent: AgentState, now: float | None) -> float:
    if agent.started_at is not None and agent.closed_at is None and now is not None:
        return now - agent.started_at
    return agent.duration_s


def _print_tasks(found: Sequence[_Task], first: RunRow) -> None:
    where = f"run {first.id}" if first.session is None else f"session {first.session}"
    if not found:
        print_line(f"No child has a task in {where}.")
        return
    print_table(
        ("RUN", "AGENT", "ROLE", "STATUS", "TIME", "TASK"),
        [
            (
                task.run_id,
                task.agent_id,
                task.role,
                task.status,
                format_duration(task.seconds) if task.seconds else "",
                one_line(f"{task.task}: {task.error}" if task.error else task.task),
            )
            for task in found
        ],
    )
    counts = Counter(task.status for task in found)
    totals = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    print_line(f"{plural(len(found), 'task')} in {where}: {totals}")
