"""`retinue show`: shows a run as a tree, or one of its agents in full."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from retinue.domain import events
from retinue.domain.agent_state import AgentState
from retinue.domain.contract import decode_contract
from retinue.domain.messages import Timing
from retinue.domain.plural import plural
from retinue.domain.result import FileChange, Status, merge_changes
from retinue.domain.run_state import RunState, fold
from retinue.errors import UsageError
from retinue.interfaces.cli.chosen_run import chosen_run
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import (
    agent_argument,
    directory_option,
    json_events_option,
    optional_run_argument,
)
from retinue.interfaces.cli.terminal.output import (
    print_fact,
    print_json,
    print_line,
    print_text,
    width,
)
from retinue.interfaces.cli.terminal.screen import can_draw, print_lines, print_markdown
from retinue.interfaces.view.agent_details import NOTABLE_FACTS
from retinue.interfaces.view.formatting import format_cost, format_duration, format_tokens
from retinue.interfaces.view.run_status import (
    agent_status,
    candidate_models,
    local_time,
    run_status,
)
from retinue.interfaces.view.run_tree import run_tree
from retinue.interfaces.view.styled_text import Tone, styled
from retinue.project import open_run, open_run_locks
from retinue.runtime.history.audit import read_all

SHOWN_LINES = 12


@click.command()
@optional_run_argument
@agent_argument
@directory_option
@click.option("--all", "unfolded", is_flag=True, help="List every agent; fold none.")
@json_events_option
@async_command
async def show(
    run: str | None, agent: str | None, directory: str, unfolded: bool, as_json: bool
) -> None:
    """Show RUN as a tree, or one AGENT of it in full.

    On a terminal, siblings that look alike are folded into one row.

    Without RUN, show the last run. The first letters of the run's id are enough. RUN may also be a
    file that `retinue export` has written. AGENT is an id such as a2, or a path such as
    root/tester.1. Only the first lines of each tool result are shown; --json prints all of them.

    Example: retinue show k3f9 a2
    """
    run, agent = await chosen_run(directory, run, agent)
    async with open_run(directory, run) as (store, run_id):
        row = await store.run(run_id)
        journal = await read_all(store, row.id)
        contracts = {a.id: a.context_json for a in await store.agents(row.id)}
    view = fold(journal)
    found = None if agent is None else view.agent(agent)
    if found is not None:
        journal = [event for event in journal if event.agent_id == found.id]
    active = row.status is None and open_run_locks(directory).is_held(row.id)
    if as_json:
        print_json(*journal)
    elif found is None:
        _print_run(view, active=active)
        if can_draw(sys.stdout) and not view.pruned:
            _print_tree(journal, view, active=active, unfolded=unfolded)
        elif view.root is not None:
            _print_branch(view, view.root, 0, active=active)
    else:
        if view.pruned:
            raise UsageError(
                f"The events of run {view.id} were cleaned away; `retinue show {view.id}`"
                " shows what is left of its agents."
            )
        status = agent_status(view, found, active=active)
        _print_agent(found, journal, contracts[found.id], status)


def _print_run(view: RunState, *, active: bool) -> None:
    status = run_status(view, active=active)
    tone = Tone.DONE if view.status is Status.COMPLETED else Tone.FAILED if view.status else ""
    print_lines(
        [styled(f"run {view.id}: ", (status, tone or Tone.STOPPED), _in_parentheses(view.reason))]
    )
    print_line(f"  {view.task}")
    if view.earlier_runs:
        print_fact(f"  continues {view.earlier_runs[-1]}, in session {view.earlier_runs[0]}")
    took_s = view.duration_s
    took = "" if took_s is None else f", {format_duration(took_s)}"
    print_fact(f"  {view.model}, mode {view.mode}, {format_tokens(view.usage)}{took}")
    if view.pruned:
        print_fact(f"  {plural(view.pruned, 'event')} were cleaned away")
    changed: dict[str, FileChange] = {}
    for agent in view.agents.values():
        # Work that is kept is in no file of the user's.
        for path, change in () if agent.unmerged_files else agent.files_modified.items():
            changed[path] = merge_changes(changed.get(path), change)
    if changed:
        print_fact("  Files modified: " + ", ".join(map(str, changed.values())))
    for moment, what in view.undo_history:
        print_fact(f"  {local_time(moment)} {what}")


def _print_tree(
    journal: Sequence[events.Event], view: RunState, *, active: bool, unfolded: bool
) -> None:
    lines, folded = run_tree(
        journal, width=width(sys.stdout) - 2, active=active, now=time.time(), unfolded=unfolded
    )
    print_lines(styled("  ", line) for line in lines)
    hint = f"`retinue show {view.id} AGENT` shows one agent"
    print_line(f"{hint}, `--all` unfolds the rest." if folded else f"{hint}.")


def _print_branch(view: RunState, agent: AgentState, indent: int, *, active: bool) -> None:
    cost = f", {format_cost(agent.usage.cost_usd)}" if agent.usage.cost_usd else ""
    print_line(
        f"{'  ' * (indent + 1)}{agent.id:<4} {agent.path.rpartition('/')[2]:<14}"
        f" {agent_status(view, agent, active=active):<15}"
        f" turn {agent.turn}/{agent.max_turns}, {plural(agent.tool_calls, 'tool call')},"
        f" {plural(agent.usage.tokens, 'token')}{cost}, {format_duration(agent.duration_s)}"
        f"{', cached' if agent.cached else ''}{_in_race(view, agent)}  {agent.title}"
    )
    if agent.timing != Timing():
        print_line(f"{'  ' * (indent + 3)}{agent.timing}")
    if agent.error and agent is not view.root:  # The first line has the root's error.
        print_line(f"{'  ' * (indent + 3)}{agent.error}")
    if agent.unverified:
        print_line(f"{'  ' * (indent + 3)}unverified: {agent.unverified}")
    for child in agent.children:
        _print_branch(view, view.agents[child], indent + 1, active=active)


def _in_race(view: RunState, agent: AgentState) -> str:
    """With which model a candidate took part in a race, and whether it has won."""
    if not agent.race:  # As most agents, of which a run may have thousands.
        return ""
    parent = view.agents.get(agent.parent_id or "")
    decided = None if parent is None else parent.races.get(agent.race)
    won = decided is not None and decided.winner == agent.id
    model = candidate_models(view).get(agent.id, "")
    return (f", with {model}" if model else "") + (", won the race" if won else "")


def _print_agent(
    agent: AgentState, journal: list[events.Event], context_json: str, status: str
) -> None:
    contract = decode_contract(context_json)
    grant, execution = contract.permissions, contract.execution
    print_fact(f"{agent.id} {agent.path}: {status}{_in_parentheses(agent.error)}")
    print_fact(f"  Contract {agent.contract_sha256[:12]}, {execution.role}, {execution.model}")
    if agent.models:
        print_fact(f"  Answered by: {', '.join(agent.models)}")
    print_fact(f"  Tools: {', '.join(grant.allowed_tools) or 'none'}")
    if grant.ask_tools:
        print_fact(f"  Needs approval: {', '.join(grant.ask_tools)}")
    print_fact(
        f"  Limits: {execution.max_tool_calls} tool calls, {execution.max_turns} turns,"
        f" {_number(execution.max_tokens)} tokens, {execution.attempt_timeout_ms / 1000:g} s"
    )
    attempts = f", {agent.attempt} attempts" if agent.attempt > 1 else ""
    print_fact(
        f"  Used: {plural(agent.tool_calls, 'tool call')}, {plural(agent.turns, 'turn')},"
        f" {format_tokens(agent.usage)}, {format_duration(agent.duration_s)}{attempts}"
    )
    for note in agent.notes:
        print_fact(f"  Note: {note}")
    if agent.files_modified:
        print_fact("  Files modified: " + ", ".join(map(str, agent.files_modified.values())))
    if agent.unmerged_files:
        print_fact("  Not merged, but kept: " + ", ".join(map(str, agent.unmerged_files)))
    for check in agent.checks:
        print_fact(f"  Check: {check}")
    if agent.unverified:
        print_fact(f"  Unverified: {agent.unverified} (no check or command confirms it)")
    click.echo()
    print_markdown(contract.step.description)
    click.echo()
    for event in journal:
        _print_event(event.fact)
    if agent.cached:
        print_markdown(agent.response)


def _print_event(fact: Any) -> None:
    match fact:
        case events.AttemptStarted() if fact.number > 1:
            print_line(f"── {fact}")
        case events.ModelReplied():
            if fact.timing != Timing():
                by = f" ({fact.model})" if fact.model else ""
                print_line(f"· turn {fact.turn}: {fact.timing}{by}")
            if fact.content.strip():
                print_markdown(fact.content.strip())
                click.echo()
        case events.ToolStarted():
            print_line(f"→ {fact.tool} {fact.arguments}")
        case events.ToolFinished():
            _print_answer(fact.content, print_line if fact.receipt.ok else print_fact)
        case events.ToolDenied():
            print_line(f"→ {fact.tool} {fact.arguments}")
            _print_answer(fact.content, print_fact)
        case events.MessageReceived():
            print_text(f"« {fact.source}: {fact.content}\n")
        case fact if isinstance(fact, NOTABLE_FACTS):
            print_fact(f"! {fact}")
        case events.PlanAdopted() | events.PlanStepStarted() | events.PlanStepFinished():
            print_line(f"· {fact}")


def _print_answer(content: str, print_one: Callable[[str], None]) -> None:
    lines = content.splitlines()
    for line in lines[:SHOWN_LINES]:
        print_one(f"    {line}")
    if len(lines) > SHOWN_LINES:
        print_line(f"    … {plural(len(lines) - SHOWN_LINES, 'more line')}")


def _number(limit: int | None) -> str:
    return "unlimited" if limit is None else f"{limit:,}"


def _in_parentheses(reason: str) -> str:
    return f" ({reason})" if reason else ""
