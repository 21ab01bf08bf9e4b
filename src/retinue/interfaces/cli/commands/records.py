"""The commands that list what the journal has: runs, tasks, audit."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click
import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.lifecycle import State
from retinue.domain.run_state import RunState, fold
from retinue.errors import ChainBroken, UnknownRun
from retinue.interfaces.cli import completions as names
from retinue.interfaces.cli.options import directory, run_argument
from retinue.interfaces.cli.terminal.console import perform
from retinue.interfaces.cli.terminal.output import print_table, say, write
from retinue.interfaces.view.formatting import duration, one_line, some
from retinue.ports.store import RunRow, Store
from retinue.project import open_journal, open_run, open_run_locks
from retinue.runtime.history.audit import audit as audit_run
from retinue.runtime.history.audit import read_all

RUNNING, ABANDONED, INTERRUPTED = "running", "abandoned", "interrupted"
PRUNED = "cleaned away"
LEFT = (ABANDONED, INTERRUPTED)
LONG_AGO_S = 300 * 24 * 3600
one_object = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")


@click.command()
@directory
@click.option("-n", "limit", default=20, show_default=True, help="How many, newest first.")
@one_object
def runs(directory: str, limit: int, as_json: bool) -> None:
    """List the runs in this directory's journal, newest first.

    A session is named after its first run; what spawn and fan-out begin has none. A run without an
    outcome is "running", or was "interrupted" by you, or "abandoned" where its process is gone; the
    last two can be resumed. Pipes get no headings.

    Example: retinue runs -n 5
    """

    async def inside() -> None:
        held = open_run_locks(directory).is_held
        async with open_journal(directory) as store:
            rows = await store.runs(limit=limit)
            if as_json:
                for row in rows:
                    click.echo(msgspec.json.encode(row))
                return
            statuses = {row.id: await _status(store, row, held(row.id)) for row in rows}
        print_table(
            ("RUN", "SESSION", "BEGAN", "STATUS", "TIME", "AGENTS", "TASK"),
            [
                (
                    row.id,
                    row.session or "-",
                    when(row.started_at),
                    statuses[row.id],
                    "" if row.finished_at is None else duration(row.finished_at - row.started_at),
                    f"{row.agents:,}",
                    one_line(row.task),
                )
                for row in rows
            ],
        )

        left = [run_id for run_id, status in statuses.items() if status in LEFT]
        if left and sys.stdout.isatty():
            say(f"To go on with what was left: retinue resume {left[0]}")

    perform(inside())


async def _status(store: Store, row: RunRow, at_work: bool) -> str:
    """How it is with a run, in a word."""
    if row.status is not None:
        return row.status
    if row.pruned:
        return PRUNED
    if at_work:
        return RUNNING
    last = await store.events(row.id, after=row.head_seq - 1)
    return INTERRUPTED if last and last[0].type == "run.suspended" else ABANDONED


def when(started_at: float) -> str:
    """The minute, or the day where that was long ago."""
    recent = time.time() - started_at < LONG_AGO_S
    return time.strftime("%b %d %H:%M" if recent else "%Y-%m-%d", time.localtime(started_at))


@click.command()
@click.argument("run", required=False, shell_complete=names.runs)
@directory
@one_object
def tasks(run: str | None, directory: str, as_json: bool) -> None:
    """List the tasks that were given to children, with their outcome and how long they took.

    They are those of the last session (or of the last spawn or fan-out, if that came later), or of
    the session that RUN is part of.

    Example: retinue tasks
    """

    async def inside() -> None:
        held = open_run_locks(directory).is_held
        async with open_journal(directory) as store:
            found = await _session(store, run)
            views = [(row, fold(await read_all(store, row.id))) for row in found]
        given = [
            _Task.of(view, agent, at_work=held(row.id))
            for row, view in views
            for agent in view.agents.values()
            if agent.parent_id is not None
        ]
        if as_json:
            for task in given:
                click.echo(msgspec.json.encode(task))
        else:
            _print_tasks(given, found[0])

    perform(inside())


async def _session(store: Store, run: str | None) -> Sequence[RunRow]:
    """The runs of a session, or the one run that is no part of any."""
    if run is None:
        latest = await store.runs(limit=1)
        if not latest:
            raise UnknownRun("There are no runs here yet.")
        row = latest[0]
    else:
        row = await store.run(run)
    return [row] if row.session is None else await store.session(row.id)


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it is listed. `seconds` is how long it took, or has taken so far."""

    run_id: str
    agent_id: str
    path: str
    role: str
    status: str
    seconds: float
    turns: int
    tool_calls: int
    tokens: int
    task: str
    error: str

    @classmethod
    def of(cls, view: RunState, agent: AgentState, *, at_work: bool) -> _Task:
        return cls(
            run_id=view.id,
            agent_id=agent.id,
            path=agent.path,
            role=agent.role,
            status=status_of(view, agent, at_work=at_work),
            seconds=_seconds(agent, time.time() if at_work else None),
            turns=agent.turns,
            tool_calls=agent.tool_calls,
            tokens=agent.usage.tokens,
            task=agent.title,
            error=agent.error,
        )


def left_as(view: RunState) -> str:
    """What to call a run that nobody works on and that is not over."""
    if view.pruned:
        return PRUNED
    return ABANDONED if view.suspended is None else INTERRUPTED


def status_of(view: RunState, agent: AgentState, *, at_work: bool) -> str:
    """How it is with an agent, in a word; what a process has left behind is abandoned."""
    if agent.status is not None:
        return agent.status
    if not at_work:
        return left_as(view)
    return "waiting" if agent.state is State.CREATED else RUNNING


def _seconds(agent: AgentState, now: float | None) -> float:
    if agent.started_at is not None and agent.closed_at is None and now is not None:
        return now - agent.started_at
    return agent.duration_s


def _print_tasks(given: Sequence[_Task], first: RunRow) -> None:
    of = f"run {first.id}" if first.session is None else f"session {first.session}"
    if not given:
        say(f"No tasks were given to children in {of}.")
        return
    print_table(
        ("RUN", "AGENT", "ROLE", "STATUS", "TIME", "TASK"),
        [
            (
                task.run_id,
                task.agent_id,
                task.role,
                task.status,
                duration(task.seconds) if task.seconds else "",
                one_line(f"{task.task}: {task.error}" if task.error else task.task),
            )
            for task in given
        ],
    )
    counts: dict[str, int] = {}
    for task in given:
        counts[task.status] = counts.get(task.status, 0) + 1
    sums = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    say(f"{some(len(given), 'task')} in {of}: {sums}")


@click.command()
@run_argument
@directory
@click.option("--json", "as_json", is_flag=True, help="The outcome as one JSON object.")
def audit(run: str, directory: str, as_json: bool) -> int:
    """Check that the journal of RUN is what was written, event by event. Exit 1 if it is not.

    Example: retinue audit k3f9
    """

    async def inside() -> int:
        async with open_run(directory, run) as (store, run_id):
            try:
                found = await audit_run(store, run_id)
            except ChainBroken as broken:
                if as_json:
                    click.echo(
                        msgspec.json.encode({"ok": False, "seq": broken.seq, "error": str(broken)})
                    )
                else:
                    write(f"BROKEN at event {broken.seq}: {broken}")
                return 1
        if as_json:
            click.echo(msgspec.json.encode({"ok": True, **msgspec.structs.asdict(found)}))
        elif found.pruned:
            click.echo(
                f"ok: what is left of run {found.run_id} is what was written:"
                f" its outcome and the hashes of {some(found.agents, 'contract')};"
                f" {found.pruned:,} events were cleaned away (head {found.head_hash[:12]})"
            )
        else:
            click.echo(
                f"ok: {found.events} events and {found.agents} contracts of run {found.run_id} are"
                f" what was written (head {found.head_hash[:12]})"
            )
        return 0

    return perform(inside())
