"""All that is on record about one agent, in sections: why it failed, its contract, what it did."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from retinue.domain import events as ev
from retinue.domain.agent_state import AgentState
from retinue.domain.contract import Contract
from retinue.domain.result import Check, Receipt
from retinue.domain.scope import ANYWHERE
from retinue.interfaces.view.agent_table import SIGNS, Line, Span, Tone
from retinue.interfaces.view.agent_tree import PAUSED, Mark, doing, mark_of, seconds
from retinue.interfaces.view.file_diff import change_lines
from retinue.interfaces.view.formatting import clip, duration, lines_of, one_line, some
from retinue.interfaces.view.markdown import chopped, prose, wrapped
from retinue.interfaces.view.result_blocks import bill
from retinue.interfaces.view.tool_calls import call_text
from retinue.runtime.history.undo import ChangePatch

SHOWN_OUTPUT = 8
PARAGRAPHS = ("model.replied", "agent.told", "agent.subagent_attempt")


class Section(NamedTuple):
    title: str
    lines: list[Line]


def dossier(
    agent: AgentState,
    contract: Contract | None,
    events: Sequence[ev.Event],
    *,
    width: int,
    now: float,
    changes: Sequence[ChangePatch] = (),
    saying: str = "",
    whole: bool = False,
) -> list[Section]:
    """The sections, in the order of what is asked first. `saying` is what its model is about to
    say, as far as it has come; `whole` shows all that tools answered."""
    sections = [Section("", _head(agent, width, now))]
    if agent.response:
        title = "Answer" if mark_of(agent) is Mark.DONE else "What it had"
        sections.append(Section(title, prose(agent.response.strip(), width)))
    for title, listed, tone in (
        ("Files", agent.files_modified.values(), Tone.PLAIN),
        ("Kept, not integrated", agent.kept, Tone.PLAIN),
        ("Conflicts", agent.conflicts, Tone.FAILED),
    ):
        if listed:
            sections.append(Section(title, [(Span(clip(str(c), width), tone),) for c in listed]))
    if changes:
        shown = [line for change in changes for line in change_lines(change, width)]
        sections.append(Section("Diff", shown))
    if agent.checks:
        sections.append(
            Section("Checks", [line for c in agent.checks for line in _check(c, width)])
        )
    if contract is not None:
        task = contract.step.description.strip()
        if one_line(task) != one_line(agent.title):
            sections.append(Section("Task", prose(task, width)))
        sections.append(Section("Contract", _contract(agent, contract, width)))
    sections.append(Section("Transcript", _transcript(events, saying, width, whole=whole)))
    if agent.receipts:
        sections.append(Section("Receipts", [_receipt(r, width) for r in agent.receipts]))
    return sections


def _head(agent: AgentState, width: int, now: float) -> list[Line]:
    mark = mark_of(agent)
    state = str(agent.status or agent.state).replace("_", " ")
    if agent.paused_at is not None:
        state = PAUSED
    head = f"{SIGNS[mark]} {agent.id}  {agent.path}  "
    used = bill(
        turns=agent.turns,
        tool_calls=agent.tool_calls,
        tokens=agent.usage.tokens,
        cost_usd=agent.usage.cost_usd,
        cached=agent.cached,
    )
    lines: list[Line] = [
        (Span(clip(head, width), Tone(mark)), Span(clip(state, width - len(head)), Tone.STRONG)),
        (Span(clip(one_line(agent.title), width)),),
        (Span(clip(f"{duration(seconds(agent, now))} {used}", width), Tone.DIM),),
    ]
    if agent.error:
        # The whole reason, however long: it is what one comes here for.
        for line in lines_of(agent.error):
            lines += wrapped([Span(line, Tone.FAILED)], width)
    elif mark is Mark.RUNNING and (now_doing := doing(agent, mark)):
        lines.append((Span(clip(now_doing, width), Tone.RUNNING),))
    elif mark is Mark.WAITING:
        lines.append(
            (Span(clip("Waits for its turn: others of its parent run.", width), Tone.DIM),)
        )
    return lines


def _contract(agent: AgentState, contract: Contract, width: int) -> list[Line]:
    grant, execution, step = contract.permissions, contract.execution, contract.step
    limits = [
        some(execution.max_tool_calls, "tool call"),
        some(execution.max_turns, "turn"),
        "no limit of tokens"
        if execution.max_tokens is None
        else f"{execution.max_tokens:,} tokens",
        f"{execution.max_context_tokens:,} tokens of context",
        f"{execution.attempt_timeout_ms / 1000:g} s an attempt",
        f"{execution.max_retries} retr{'y' if execution.max_retries == 1 else 'ies'}",
    ]
    if execution.max_cost_usd is not None:
        limits.append(f"${execution.max_cost_usd:g}")
    facts = {
        "role": execution.role,
        "model": execution.model,
        "mode": str(grant.mode),
        "tools": ", ".join(grant.allowed_tools) or "none",
        "after asking": ", ".join(grant.ask_tools),
        "writes": _scope(grant.write_scope),
        "keeps to": ", ".join(step.scope),
        "may employ": ", ".join(grant.spawn_roles) if grant.can_spawn_children else "nobody",
        "limits": ", ".join(limits),
        "directory": execution.working_directory,
        "done when": "; ".join(step.success_criteria),
        "sha256": agent.contract_sha256[:16],
    }
    lines: list[Line] = []
    for what, text in facts.items():
        if text:
            lines += _fact(what, text, width)
    for note in agent.notes:
        lines += _fact("note", note, width)
    return lines


def _scope(scope: tuple[tuple[str, ...], ...]) -> str:
    if scope == ANYWHERE:
        return "anywhere in its directory"
    return " and ".join(", ".join(group) or "nowhere" for group in scope)


def _fact(what: str, text: str, width: int) -> list[Line]:
    head = f"{what:<13}"
    return wrapped([Span(one_line(text))], width, first=head, rest=" " * len(head))


def _transcript(events: Sequence[ev.Event], saying: str, width: int, *, whole: bool) -> list[Line]:
    answers: dict[str, deque[ev.ToolFinished]] = {}
    for event in events:
        if event.type == "tool.finished" and isinstance(fact := event.fact, ev.ToolFinished):
            answers.setdefault(fact.call_id, deque()).append(fact)
    lines: list[Line] = []
    for event in events:
        shown = _told(event, width)
        if shown and lines and event.type in PARAGRAPHS:
            lines.append(())
        lines += shown
        # Under its call: of calls that run side by side the answers come later, in any order.
        if event.type == "tool.started" and isinstance(fact := event.fact, ev.ToolStarted):
            for answer in _first(answers.get(fact.call_id)):
                lines += _answer(answer.content, width, answer.receipt.ok, whole=whole)
        elif event.type == "tool.denied" and isinstance(fact := event.fact, ev.ToolDenied):
            lines += _answer(fact.content, width, False, whole=whole)
    if saying.strip():
        lines += [*([()] if lines else []), *prose(saying.strip(), width)]
    return lines or [(Span("Nothing yet.", Tone.DIM),)]


def _first(answers: deque[ev.ToolFinished] | None) -> list[ev.ToolFinished]:
    """The next answer to a call; none where it is still awaited. Ids may be used again."""
    return [answers.popleft()] if answers else []


def _told(event: ev.Event, width: int) -> list[Line]:
    match event.fact:
        case ev.AttemptStarted() as fact if fact.number > 1:
            return _mark(event.summary, width, Tone.STOPPED)
        case ev.ModelReplied() as fact:
            return prose(fact.content.strip(), width) if fact.content.strip() else []
        case ev.ToolStarted() as fact:
            return _started(fact, width)
        case ev.ToolDenied() as fact:
            called = clip(call_text(fact.tool, fact.arguments), width - 2)
            return [(Span("✗ ", Tone.FAILED), Span(called))]
        case ev.MessageReceived() as fact:
            return wrapped(
                [Span(one_line(fact.content), Tone.USER)], width, first=f"« {fact.source}: "
            )
        case (
            ev.ModelFailed()
            | ev.LimitReached()
            | ev.ContextCompacted()
            | ev.SilenceDetected()
            | ev.CachedResultUsed()
            | ev.CircuitBreakerTripped()
            | ev.ApprovalDecided()
        ):
            return _mark(event.summary, width, Tone.STOPPED)
        case ev.PlanAdopted() | ev.PlanStepStarted() | ev.PlanStepFinished():
            return wrapped([Span(event.summary)], width, first="· ", rest="  ")
        case ev.AgentFailed():
            return _mark(event.summary, width, Tone.FAILED)
        case _:
            return []


def _mark(text: str, width: int, tone: Tone) -> list[Line]:
    return wrapped([Span(text, tone)], width, first="! ", rest="  ", tone=tone)


def _started(fact: ev.ToolStarted, width: int) -> list[Line]:
    head: Line = (
        Span("→ ", Tone.RUNNING),
        Span(clip(call_text(fact.tool, fact.arguments), width - 2), Tone.STRONG),
    )
    return [head, *edit_lines(fact.tool, fact.arguments, width)]


def edit_lines(tool: str, arguments: str, width: int, most: int = 40) -> list[Line]:
    """What a call that edits puts in the place of what; nothing for other calls."""
    if tool not in ("edit_file", "write_file"):
        return []
    try:
        given: dict[str, Any] = msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return []
    lines: list[Line] = []
    for name, sign, tone in (
        ("old_text", "- ", Tone.REMOVED),
        ("new_text", "+ ", Tone.ADDED),
        ("content", "+ ", Tone.ADDED),
    ):
        for line in lines_of(str(given.get(name) or "")):
            lines += chopped(sign + line, width, indent="  ", tone=tone)
    if given.get("content") == "":
        lines.append((Span("  (nothing is in it)", Tone.DIM),))
    if len(lines) > most:
        more = some(len(lines) - most, "more line")
        lines = [*lines[:most], (Span(f"  … {more}", Tone.DIM),)]
    return lines


def _answer(content: str, width: int, ok: bool, *, whole: bool) -> list[Line]:
    tone = Tone.DIM if ok else Tone.FAILED
    answered = lines_of(content)
    most = len(answered) if whole else SHOWN_OUTPUT
    shown = [
        part for line in answered[:most] for part in chopped(line, width, indent="    ", tone=tone)
    ]
    if len(answered) > most:
        shown.append((Span(f"    … {some(len(answered) - most, 'more line')}", Tone.DIM),))
    return shown


def _check(check: Check, width: int) -> list[Line]:
    sign = Span("✓ ", Tone.DONE) if check.ok else Span("✗ ", Tone.FAILED)
    head: Line = (sign, Span(clip(one_line(str(check)), width - 2)))
    return [head] if check.ok else [head, *_answer(check.output, width, False, whole=True)]


def _receipt(receipt: Receipt, width: int) -> Line:
    said = [receipt.tool]
    if receipt.command is not None:
        said.append(f"$ {one_line(receipt.command)}")
    if receipt.exit_code is not None:
        said.append(f"exit {receipt.exit_code}")
    said += [f"read {path}" for path in receipt.read[:3]]
    said += [str(change) for change in receipt.changed]
    if receipt.after_sha256:
        said.append(f"{(receipt.before_sha256 or 'new')[:8]} → {receipt.after_sha256[:8]}")
    else:
        said.append(f"answered {receipt.output_sha256[:8]}")
    sign = Span("✓ ", Tone.DONE) if receipt.ok else Span("✗ ", Tone.FAILED)
    return sign, Span(clip("  ".join(said), width - 2), Tone.DIM)
