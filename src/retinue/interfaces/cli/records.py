"""The commands that read the journal: runs, show, audit."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from retinue.app import open_journal
from retinue.domain.contract import decode_contract
from retinue.domain.events import (
    AgentAttempted,
    AgentCached,
    AgentSilent,
    AgentTold,
    BreakerTripped,
    ContextCompacted,
    Event,
    LimitReached,
    ModelFailed,
    ModelReplied,
    ToolDenied,
    ToolFinished,
    ToolStarted,
)
from retinue.domain.projection import AgentView, RunView, fold
from retinue.errors import ChainBroken, UsageError
from retinue.interfaces.cli.console import perform, some
from retinue.interfaces.cli.options import as_json, directory
from retinue.runtime.audit import audit as audit_run
from retinue.runtime.audit import read_all


@click.command()
@directory
@click.option("-n", "limit", default=20, show_default=True, help="How many, newest first.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def runs(directory: str, limit: int, as_json: bool) -> None:
    """List the runs in this directory's journal, newest first.

    The columns are: run, session, start, outcome, seconds, agents and task. A session is named
    after its first run; what spawn and fan-out begin has none.

    Example: retinue runs -n 5
    """

    async def inside() -> None:
        async with open_journal(directory) as store:
            rows = await store.runs(limit=limit)
        for row in rows:
            if as_json:
                click.echo(msgspec.json.encode(row))
                continue
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.started_at))
            took = "" if row.finished_at is None else f"{row.finished_at - row.started_at:.1f}s"
            title = " ".join(row.task.split())[:60]
            click.echo(
                f"{row.id}  {row.session or '-':<8}  {when}"
                f"  {row.status or 'not finished':<15} {took:>8}"
                f"  {some(row.agents, 'agent'):>11}  {title}"
            )

    perform(inside())


@click.command()
@click.argument("run")
@click.argument("agent", required=False)
@directory
@as_json
def show(run: str, agent: str | None, directory: str, as_json: bool) -> None:
    """Show RUN as a tree, or one AGENT of it in full. A unique beginning of the id is enough.

    Example: retinue show k3f9 a2
    """

    async def inside() -> None:
        async with open_journal(directory) as store:
            row = await store.run(run)
            events = await read_all(store, row.id)
            contracts = {a.id: a.context_json for a in await store.agents(row.id)}
        view = fold(events)
        found = None if agent is None else _find(view, agent)
        if found is not None:
            events = [event for event in events if event.agent_id == found.id]
        if as_json:
            for event in events:
                click.echo(msgspec.json.encode(event))
        elif found is None:
            _print_run(view)
        else:
            _print_agent(found, events, contracts[found.id])

    perform(inside())


@click.command()
@click.argument("run")
@directory
@click.option("--json", "as_json", is_flag=True, help="The outcome as one JSON object.")
def audit(run: str, directory: str, as_json: bool) -> int:
    """Check that the journal of RUN is what was written, event by event. Exit 1 if it is not.

    Example: retinue audit k3f9
    """

    async def inside() -> int:
        async with open_journal(directory) as store:
            try:
                found = await audit_run(store, run)
            except ChainBroken as broken:
                if as_json:
                    click.echo(
                        msgspec.json.encode({"ok": False, "seq": broken.seq, "error": str(broken)})
                    )
                else:
                    click.echo(f"BROKEN at event {broken.seq}: {broken}")
                return 1
        if as_json:
            click.echo(msgspec.json.encode({"ok": True, **msgspec.structs.asdict(found)}))
        else:
            click.echo(
                f"ok: {found.events} events and {found.agents} contracts of run {found.run_id} are"
                f" what was written (head {found.head_hash[:12]})"
            )
        return 0

    return perform(inside())


def _find(view: RunView, name: str) -> AgentView:
    for agent in view.agents.values():
        if name in (agent.id, agent.path):
            return agent
    some = ", ".join(f"{a.id} ({a.path})" for a in list(view.agents.values())[:10])
    raise UsageError(f"No agent {name!r} in run {view.id}; there are: {some}.")


def _print_run(view: RunView) -> None:
    usage = view.usage
    click.echo(f"run {view.id}: {view.status or 'not finished'}" + _because(view.reason))
    click.echo(f"  {view.task}")
    click.echo(f"  {view.model}, mode {view.mode}, {usage.tokens:,} tokens")
    root = view.root
    if root is not None:
        _print_branch(view, root, 0)


def _print_branch(view: RunView, agent: AgentView, indent: int) -> None:
    state = agent.status or agent.state
    click.echo(
        f"{'  ' * (indent + 1)}{agent.id:<4} {agent.path.rpartition('/')[2]:<14} {state:<15}"
        f" turn {agent.turn}/{agent.max_turns}, {some(agent.tool_calls, 'tool call')},"
        f" {some(agent.usage.tokens, 'token')}, {agent.duration_s:.1f}s"
        f"{', cached' if agent.cached else ''}  {agent.title}"
    )
    if agent.error and agent is not view.root:  # The head of the page says why the root failed.
        click.echo(f"{'  ' * (indent + 3)}{agent.error}")
    for child in agent.children:
        _print_branch(view, view.agents[child], indent + 1)


def _print_agent(agent: AgentView, events: list[Event], context_json: str) -> None:
    contract = decode_contract(context_json)
    grant, execution = contract.permissions, contract.execution
    click.echo(f"{agent.id} {agent.path}: {agent.status or agent.state}{_because(agent.error)}")
    click.echo(f"  Contract {agent.contract_sha256[:12]}, {execution.role}, {execution.model}")
    click.echo(f"  Tools: {', '.join(grant.allowed_tools) or 'none'}")
    if grant.ask_tools:
        click.echo(f"  After asking: {', '.join(grant.ask_tools)}")
    click.echo(
        f"  Limits: {execution.max_tool_calls} tool calls, {execution.max_turns} turns,"
        f" {execution.max_tokens or 'unlimited'} tokens, {execution.attempt_timeout_ms / 1000:g} s"
    )
    for note in agent.notes:
        click.echo(f"  Note: {note}")
    if agent.files_modified:
        click.echo("  Files modified: " + ", ".join(map(str, agent.files_modified.values())))
    click.echo(f"\n{contract.step.description}\n")
    for event in events:
        _print_event(event.fact)
    if agent.cached:
        click.echo(agent.response)


def _print_event(fact: Any) -> None:
    match fact:
        case AgentAttempted() if fact.number > 1:
            click.echo(f"── {fact.summary}")
        case ModelReplied():
            if fact.content.strip():
                click.echo(fact.content.strip() + "\n")
        case ToolStarted():
            click.echo(f"→ {fact.tool} {fact.arguments}")
        case ToolFinished() | ToolDenied():
            click.echo(
                "".join(f"    {line}\n" for line in fact.content.splitlines()[:12]), nl=False
            )
        case AgentTold():
            click.echo(f"« {fact.source}: {fact.content}\n")
        case (
            ModelFailed()
            | LimitReached()
            | ContextCompacted()
            | AgentSilent()
            | AgentCached()
            | BreakerTripped()
        ):
            click.echo(f"! {fact.summary}")


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""
