"""The command that shows a run, or one of its agents in full."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.contract import decode_contract
from retinue.domain.events import (
    ApprovalDecided,
    AttemptStarted,
    CachedResultUsed,
    CircuitBreakerTripped,
    ContextCompacted,
    Event,
    LimitReached,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    PlanAdopted,
    PlanStepFinished,
    PlanStepStarted,
    SilenceDetected,
    ToolDenied,
    ToolFinished,
    ToolStarted,
)
from retinue.domain.messages import Timing
from retinue.domain.result import FileChange, merge_changes
from retinue.domain.run_state import RunState, fold
from retinue.errors import UsageError
from retinue.interfaces.cli.commands.records import RUNNING, left_as, status_of, when
from retinue.interfaces.cli.options import agent_argument, as_json, directory, run_argument
from retinue.interfaces.cli.terminal.console import perform
from retinue.interfaces.cli.terminal.output import say, write
from retinue.interfaces.view.formatting import dollars, duration, some
from retinue.project import open_run, open_run_locks
from retinue.runtime.history.audit import read_all

SHOWN_LINES = 12


@click.command()
@run_argument
@agent_argument
@directory
@as_json
def show(run: str, agent: str | None, directory: str, as_json: bool) -> None:
    """Show RUN as a tree, or one AGENT of it in full. A unique beginning of the id is enough.

    RUN may also be a file that `retinue export` has written.

    AGENT is an id such as a2, or a path such as root/tester.1. Of each answer of a tool the first
    lines are shown; --json has all of it.

    Example: retinue show k3f9 a2
    """

    async def inside() -> None:
        async with open_run(directory, run) as (store, run_id):
            row = await store.run(run_id)
            events = await read_all(store, row.id)
            contracts = {a.id: a.context_json for a in await store.agents(row.id)}
        view = fold(events)
        found = None if agent is None else view.agent(agent)
        if found is not None:
            events = [event for event in events if event.agent_id == found.id]
        at_work = row.status is None and open_run_locks(directory).is_held(row.id)
        if as_json:
            for event in events:
                click.echo(msgspec.json.encode(event))
        elif found is None:
            _print_run(view, at_work=at_work)
        else:
            status = status_of(view, found, at_work=at_work)
            if view.pruned:
                raise UsageError(
                    f"The journal of run {view.id} was cleaned away; `retinue show {view.id}` has"
                    " what is left of its agents."
                )
            _print_agent(found, events, contracts[found.id], status)

    perform(inside())


def _print_run(view: RunState, *, at_work: bool) -> None:
    usage = view.usage
    status = view.status or (RUNNING if at_work else left_as(view))
    say(f"run {view.id}: {status}{_because(view.reason)}")
    say(f"  {view.task}")
    if view.earlier:
        say(f"  goes on from {view.earlier[-1]}, in session {view.earlier[0]}")
    took = "" if view.finished_at is None else f", {duration(view.finished_at - view.started_at)}"
    cost = f", {dollars(usage.cost_usd)}" if usage.cost_usd else ""
    say(f"  {view.model}, mode {view.mode}, {usage.tokens:,} tokens{cost}{took}")
    if view.pruned:
        say(f"  {some(view.pruned, 'event')} were cleaned away; this is what is left")
    changed: dict[str, FileChange] = {}
    for agent in view.agents.values():
        for path, change in agent.files_modified.items():
            changed[path] = merge_changes(changed.get(path), change)
    if changed:
        say("  Files modified: " + ", ".join(map(str, changed.values())))
    for moment, what in view.rewritten:
        say(f"  {when(moment)} {what}")
    root = view.root
    if root is not None:
        _print_branch(view, root, 0, at_work=at_work)


def _print_branch(view: RunState, agent: AgentState, indent: int, *, at_work: bool) -> None:
    say(
        f"{'  ' * (indent + 1)}{agent.id:<4} {agent.path.rpartition('/')[2]:<14}"
        f" {status_of(view, agent, at_work=at_work):<15}"
        f" turn {agent.turn}/{agent.max_turns}, {some(agent.tool_calls, 'tool call')},"
        f" {some(agent.usage.tokens, 'token')}, {duration(agent.duration_s)}"
        f"{', cached' if agent.cached else ''}  {agent.title}"
    )
    if agent.timing != Timing():
        say(f"{'  ' * (indent + 3)}{agent.timing}")
    if agent.error and agent is not view.root:  # The head of the page says why the root failed.
        say(f"{'  ' * (indent + 3)}{agent.error}")
    if agent.unverified:
        say(f"{'  ' * (indent + 3)}unverified: {agent.unverified}")
    for child in agent.children:
        _print_branch(view, view.agents[child], indent + 1, at_work=at_work)


def _print_agent(agent: AgentState, events: list[Event], context_json: str, status: str) -> None:
    contract = decode_contract(context_json)
    grant, execution = contract.permissions, contract.execution
    say(f"{agent.id} {agent.path}: {status}{_because(agent.error)}")
    say(f"  Contract {agent.contract_sha256[:12]}, {execution.role}, {execution.model}")
    if agent.models:
        say(f"  Answered by: {', '.join(agent.models)}")
    say(f"  Tools: {', '.join(grant.allowed_tools) or 'none'}")
    if grant.ask_tools:
        say(f"  After asking: {', '.join(grant.ask_tools)}")
    say(
        f"  Limits: {execution.max_tool_calls} tool calls, {execution.max_turns} turns,"
        f" {execution.max_tokens or 'unlimited'} tokens, {execution.attempt_timeout_ms / 1000:g} s"
    )
    attempts = f", {agent.attempt} attempts" if agent.attempt > 1 else ""
    say(
        f"  Used: {some(agent.tool_calls, 'tool call')}, {some(agent.turns, 'turn')},"
        f" {some(agent.usage.tokens, 'token')}, {duration(agent.duration_s)}{attempts}"
    )
    for note in agent.notes:
        say(f"  Note: {note}")
    if agent.files_modified:
        say("  Files modified: " + ", ".join(map(str, agent.files_modified.values())))
    if agent.kept:
        say("  Not integrated, and kept: " + ", ".join(map(str, agent.kept)))
    for check in agent.checks:
        say(f"  Check: {check}")
    if agent.unverified:
        say(f"  Unverified: {agent.unverified} (no check and no command shows it)")
    write(f"\n{contract.step.description}\n")
    for event in events:
        _print_event(event.fact)
    if agent.cached:
        write(agent.response)


def _print_event(fact: Any) -> None:
    match fact:
        case AttemptStarted() if fact.number > 1:
            say(f"── {fact.summary}")
        case ModelReplied():
            if fact.timing != Timing():
                by = f" ({fact.model})" if fact.model else ""
                say(f"· turn {fact.turn}: {fact.timing}{by}")
            if fact.content.strip():
                write(fact.content.strip() + "\n")
        case ToolStarted():
            say(f"→ {fact.tool} {fact.arguments}")
        case ToolFinished() | ToolDenied():
            lines = fact.content.splitlines()
            for line in lines[:SHOWN_LINES]:
                say(f"    {line}")
            if len(lines) > SHOWN_LINES:
                say(f"    … {some(len(lines) - SHOWN_LINES, 'more line')}")
        case MessageReceived():
            write(f"« {fact.source}: {fact.content}\n")
        case (
            ModelFailed()
            | LimitReached()
            | ContextCompacted()
            | SilenceDetected()
            | CachedResultUsed()
            | CircuitBreakerTripped()
            | ApprovalDecided()
        ):
            say(f"! {fact.summary}")
        case PlanAdopted() | PlanStepStarted() | PlanStepFinished():
            say(f"· {fact.summary}")


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""
