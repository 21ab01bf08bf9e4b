"""Everything the journal says about one agent, in sections: failure, contract, transcript."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from retinue.domain import events as ev
from retinue.domain.agent_state import AgentState
from retinue.domain.contract import Contract
from retinue.domain.grant import Grant
from retinue.domain.messages import Effect
from retinue.domain.plural import plural
from retinue.domain.result import Check, Receipt
from retinue.domain.scope import ANYWHERE
from retinue.interfaces.view.agent_tree import (
    PAUSED,
    STATE_SYMBOLS,
    DisplayState,
    current_activity,
    display_state,
    elapsed_s,
)
from retinue.interfaces.view.file_diff import diff_lines
from retinue.interfaces.view.formatting import clip, format_duration, one_line, printable_lines
from retinue.interfaces.view.markdown import render_markdown
from retinue.interfaces.view.result_blocks import total_usage_text
from retinue.interfaces.view.styled_text import Line, Tone, styled, wrap
from retinue.interfaces.view.tool_calls import call_text, edit_lines, output_lines
from retinue.runtime.history.undo import ChangePatch
from retinue.tools.builtin import builtin_tools

MAX_OUTPUT_LINES = 8
READING_EFFECTS = (Effect.READ, Effect.REMEMBER, Effect.CHECK)
# Sources of messages whose recorded name is not what a person would call them.
SOURCE_LABELS = {"staff": "children", "loose ends": "unfinished work"}
EVENTS_AFTER_BLANK_LINE = ("model.replied", "agent.told", "agent.subagent_attempt")

NOTABLE_FACTS = (
    ev.ModelFailed,
    ev.LimitReached,
    ev.ContextCompacted,
    ev.SilenceDetected,
    ev.CachedResultUsed,
    ev.AgentPlaced,
    ev.CircuitBreakerTripped,
    ev.ApprovalDecided,
    ev.HookFinished,
)


class Section(NamedTuple):
    title: str
    lines: list[Line]


def agent_details(
    agent: AgentState,
    contract: Contract | None,
    events: Sequence[ev.Event],
    *,
    width: int,
    now: float,
    changes: Sequence[ChangePatch] = (),
    streamed: str = "",
    full: bool = False,
) -> list[Section]:
    """Sections, the most wanted ones first.

    `streamed` is the reply that the agent's model is writing. `full` shows tool output in full.
    """
    sections = [Section("", _heading(agent, width, now))]
    if agent.response:
        title = "Answer" if display_state(agent) is DisplayState.DONE else "Partial result"
        sections.append(Section(title, render_markdown(agent.response.strip(), width)))
    for title, listed, tone in (
        ("Files", agent.files_modified.values(), Tone.PLAIN),
        ("Kept, not merged", agent.unmerged_files, Tone.PLAIN),
        ("Conflicts", agent.conflicts, Tone.FAILED),
    ):
        if listed:
            sections.append(
                Section(
                    title,
                    [styled((clip(str(c), width), tone)) for c in listed],
                )
            )
    if changes:
        shown = [line for change in changes for line in diff_lines(change, width)]
        sections.append(Section("Diff", shown))
    if agent.checks:
        sections.append(
            Section("Checks", [line for c in agent.checks for line in _check_lines(c, width)])
        )
    if contract is not None:
        task = contract.step.description.strip()
        if one_line(task) != one_line(agent.title):
            sections.append(Section("Task", render_markdown(task, width)))
        sections.append(Section("Contract", _contract_lines(agent, contract, width)))
    sections.append(Section("Transcript", _transcript_lines(events, streamed, width, full=full)))
    if agent.receipts:
        sections.append(Section("Receipts", [_receipt_line(r, width) for r in agent.receipts]))
    return sections


def _heading(agent: AgentState, width: int, now: float) -> list[Line]:
    state = display_state(agent)
    status = str(agent.status or agent.state).replace("_", " ")
    if agent.paused_at is not None:
        status = PAUSED
    head = f"{STATE_SYMBOLS[state]} {agent.id}  {agent.path}  "
    usage = f"{format_duration(elapsed_s(agent, now))} {total_usage_text([agent])}"
    if agent.host:
        usage += f" on {agent.host}"
    lines: list[Line] = [
        styled((clip(head, width), Tone(state)), (clip(status, width - len(head)), Tone.STRONG)),
        styled(clip(one_line(agent.title), width)),
        styled((clip(usage, width), Tone.DIM)),
    ]
    if agent.error:
        # The full reason, however long: readers come here for it.
        for line in printable_lines(agent.error):
            lines += wrap(styled((line, Tone.FAILED)), width)
    elif state is DisplayState.RUNNING and (activity := current_activity(agent, state)):
        lines.append(styled((clip(activity, width), Tone.RUNNING)))
    elif state is DisplayState.WAITING:
        lines.append(
            styled((clip("Waiting for a slot: other agents are running.", width), Tone.DIM))
        )
    return lines


def _contract_lines(agent: AgentState, contract: Contract, width: int) -> list[Line]:
    grant, execution, step = contract.permissions, contract.execution, contract.step
    limits = [
        plural(execution.max_tool_calls, "tool call"),
        plural(execution.max_turns, "turn"),
        "no token limit" if execution.max_tokens is None else f"{execution.max_tokens:,} tokens",
        f"{execution.max_context_tokens:,} tokens of context",
        f"{execution.attempt_timeout_ms / 1000:g} s per attempt",
        f"{execution.max_retries} retr{'y' if execution.max_retries == 1 else 'ies'}",
    ]
    if execution.max_cost_usd is not None:
        limits.append(f"${execution.max_cost_usd:g}")
    facts = {
        "role": execution.role,
        "model": execution.model,
        "mode": str(grant.mode),
        "tools": ", ".join(grant.allowed_tools) or "none",
        "asks before": ", ".join(grant.ask_tools),
        "can write": _write_scope(grant),
        "scope": ", ".join(step.scope),
        "can spawn": ", ".join(grant.spawn_roles) if grant.can_spawn_children else "no agents",
        "limits": ", ".join(limits),
        "directory": execution.working_directory,
        "done when": "; ".join(step.success_criteria),
        "sha256": agent.contract_sha256[:16],
    }
    lines: list[Line] = []
    for label, text in facts.items():
        if text:
            lines += _contract_row(label, text, width)
    for note in agent.notes:
        lines += _contract_row("note", note, width)
    return lines


def _write_scope(grant: Grant) -> str:
    effects = {tool.spec.name: tool.effect for tool in builtin_tools()}
    # A tool that is not known here may write.
    reading = {name for name, effect in effects.items() if effect in READING_EFFECTS}
    if reading.issuperset(grant.allowed_tools):
        return "nowhere: its tools only read"
    if grant.write_scope == ANYWHERE:
        return "anywhere in its directory"
    return " and ".join(", ".join(group) or "nowhere" for group in grant.write_scope)


def _contract_row(label: str, text: str, width: int) -> list[Line]:
    label = f"{label:<13}"
    return wrap(styled(one_line(text)), width, first=label, rest=" " * len(label))


def _transcript_lines(
    events: Sequence[ev.Event], streamed: str, width: int, *, full: bool
) -> list[Line]:
    # Models may reuse the id of a call, so each id has a queue of finished calls.
    finished: dict[str, deque[ev.ToolFinished]] = defaultdict(deque)
    for event in events:
        if event.type == "tool.finished" and isinstance(fact := event.fact, ev.ToolFinished):
            finished[fact.call_id].append(fact)
    limit = None if full else MAX_OUTPUT_LINES
    lines: list[Line] = []
    for event in events:
        shown = _event_lines(event, width)
        if shown and lines and event.type in EVENTS_AFTER_BLANK_LINE:
            lines.append(styled())
        lines += shown
        # The output goes below its call. Calls that run in parallel finish in any order.
        if event.type == "tool.started" and isinstance(fact := event.fact, ev.ToolStarted):
            if queue := finished[fact.call_id]:
                outcome = queue.popleft()
                tone = Tone.DIM if outcome.receipt.ok else Tone.FAILED
                lines += output_lines(outcome.content, width, limit=limit, tone=tone)
        elif event.type == "tool.denied" and isinstance(fact := event.fact, ev.ToolDenied):
            lines += output_lines(fact.content, width, limit=limit, tone=Tone.FAILED)
    if streamed.strip():
        lines += [*([styled()] if lines else []), *render_markdown(streamed.strip(), width)]
    return lines or [styled(("Nothing yet.", Tone.DIM))]


def _event_lines(event: ev.Event, width: int) -> list[Line]:
    match event.fact:
        case ev.AttemptStarted() as fact if fact.number > 1:
            return _marked(event.summary, width, Tone.STOPPED)
        case ev.ModelReplied() as fact:
            return render_markdown(fact.content.strip(), width) if fact.content.strip() else []
        case ev.ToolStarted() as fact:
            return _call_lines(fact, width)
        case ev.ToolDenied() as fact:
            summary = clip(call_text(fact.tool, fact.arguments), width - 2)
            return [styled(("✗ ", Tone.FAILED), summary)]
        case ev.MessageReceived() as fact:
            source = SOURCE_LABELS.get(fact.source, fact.source)
            return wrap(styled((one_line(fact.content), Tone.USER)), width, first=f"« {source}: ")
        case fact if isinstance(fact, NOTABLE_FACTS):
            return _marked(event.summary, width, Tone.STOPPED)
        case ev.PlanAdopted() | ev.PlanStepStarted() | ev.PlanStepFinished():
            return wrap(styled(event.summary), width, first="· ", rest="  ")
        case ev.AgentFailed():
            return _marked(event.summary, width, Tone.FAILED)
        case _:
            return []


def _marked(text: str, width: int, tone: Tone) -> list[Line]:
    return wrap(styled((text, tone)), width, first="! ", rest="  ", tone=tone)


def _call_lines(fact: ev.ToolStarted, width: int) -> list[Line]:
    head: Line = styled(
        ("→ ", Tone.RUNNING),
        (clip(call_text(fact.tool, fact.arguments), width - 2), Tone.STRONG),
    )
    return [head, *edit_lines(fact.tool, fact.arguments, width)]


def _check_lines(check: Check, width: int) -> list[Line]:
    symbol = ("✓ ", Tone.DONE) if check.ok else ("✗ ", Tone.FAILED)
    head: Line = styled(symbol, clip(one_line(str(check)), width - 2))
    return [head] if check.ok else [head, *output_lines(check.output, width, tone=Tone.FAILED)]


def _receipt_line(receipt: Receipt, width: int) -> Line:
    parts = [receipt.tool]
    if receipt.command is not None:
        parts.append(f"$ {one_line(receipt.command)}")
    if receipt.exit_code is not None:
        parts.append(f"exit {receipt.exit_code}")
    parts += [f"read {path}" for path in receipt.read[:3]]
    parts += [str(change) for change in receipt.changed]
    if receipt.after_sha256:
        parts.append(f"{(receipt.before_sha256 or 'new')[:8]} → {receipt.after_sha256[:8]}")
    else:
        parts.append(f"output {receipt.output_sha256[:8]}")
    symbol = ("✓ ", Tone.DONE) if receipt.ok else ("✗ ", Tone.FAILED)
    return styled(symbol, (clip("  ".join(parts), width - 2), Tone.DIM))
