"""The block that a person sees at the end of an agent's work."""

from __future__ import annotations

from retinue.domain.agent_state import AgentState
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Check, FileChange, Result, Status
from retinue.domain.run_state import RunState
from retinue.interfaces.view.agent_table import Line, Span, Tone
from retinue.interfaces.view.formatting import clip, dollars, duration, one_line, some
from retinue.interfaces.view.markdown import prose

RESULT_LINES = 6


def agent_block(agent: AgentState, *, width: int, lines: int = RESULT_LINES) -> list[Line]:
    """The end of an agent as the journal tells it."""
    return _block(
        role=agent.role,
        task=agent.title,
        status=agent.status,
        error=agent.error,
        seconds=agent.duration_s,
        turns=agent.turns,
        tool_calls=agent.tool_calls,
        tokens=agent.usage.tokens,
        cost_usd=agent.usage.cost_usd,
        cached=agent.cached,
        files=tuple(agent.files_modified.values()),
        checks=tuple(agent.checks),
        unverified=agent.unverified,
        response=agent.response,
        width=width,
        lines=lines,
    )


def paused_blocks(view: RunState, *, width: int, lines: int = RESULT_LINES) -> list[Line]:
    """What those had who were at work when their run was suspended, and have said something."""
    found: list[Line] = []
    for agent in view.agents.values():
        if agent.said:
            found += paused_block(agent, width=width, lines=lines)
    return found


def paused_block(agent: AgentState, *, width: int, lines: int = RESULT_LINES) -> list[Line]:
    """What an agent had when its run was suspended."""
    head = f"[{agent.role}] Paused: "
    title = Span(clip(f'"{one_line(agent.title)}"', width - len(head)), Tone.STRONG)
    said = _hanging("  So far: ", agent.said, width, lines, Tone.PLAIN) if agent.said else []
    return [(Span(clip(head, width), Tone.STOPPED), title), *said]


def result_block(result: Result, *, width: int, lines: int = RESULT_LINES) -> list[Line]:
    """The end of an agent as its result tells it; of a whole run, with the bill of all of it."""
    usage = result.total if isinstance(result, RunResult) and result.children else result.usage
    return _block(
        role=result.role,
        task=result.task,
        status=result.status,
        error=result.error or "",
        seconds=usage.duration_s,
        turns=usage.turns,
        tool_calls=usage.tool_calls,
        tokens=usage.tokens,
        cost_usd=usage.cost_usd,
        cached=result.cached,
        files=result.files_modified,
        checks=result.checks,
        unverified=result.unverified,
        response=result.response,
        width=width,
        lines=lines,
    )


def _block(
    *,
    role: str,
    task: str,
    status: Status | None,
    error: str,
    seconds: float,
    turns: int,
    tool_calls: int,
    tokens: int,
    cost_usd: float,
    cached: bool,
    files: tuple[FileChange, ...],
    checks: tuple[Check, ...],
    unverified: str,
    response: str,
    width: int,
    lines: int,
) -> list[Line]:
    ok = status is Status.COMPLETED
    word = "Completed" if ok else f"Ended ({status})"
    head = f"[{role}] {word}: "
    what = bill(turns=turns, tool_calls=tool_calls, tokens=tokens, cost_usd=cost_usd, cached=cached)
    block: list[Line] = [
        (
            Span(clip(head, width), Tone.DONE if ok else Tone.FAILED),
            Span(clip(f'"{one_line(task)}"', width - len(head)), Tone.STRONG),
        ),
        (Span(clip(f"  Duration: {duration(seconds)} {what}", width), Tone.DIM),),
    ]
    if not ok and error:
        block += _hanging("  Reason: ", error, width, lines, Tone.FAILED)
    if len(files) == 1:
        block.append((Span(clip(f"  Files modified: {files[0]}", width), Tone.PLAIN),))
    elif files:
        block.append((Span("  Files modified:", Tone.PLAIN),))
        block += [(Span(clip(f"    {change}", width), Tone.PLAIN),) for change in files]
    for check in checks:
        tone = Tone.PLAIN if check.ok else Tone.FAILED
        block.append((Span(clip(f"  Check: {one_line(str(check))}", width), tone),))
    if unverified:
        block += _hanging("  Unverified: ", unverified, width, lines, Tone.FAILED)
    if response.strip() and lines:
        block += _hanging("  Result: ", response.strip(), width, lines, Tone.PLAIN)
    return block


def bill(*, turns: int, tool_calls: int, tokens: int, cost_usd: float, cached: bool = False) -> str:
    """(6 turns, 8 tool calls, 9,321 tokens, $0.02)"""
    parts = [some(turns, "turn"), some(tool_calls, "tool call"), some(tokens, "token")]
    if cost_usd:
        parts.append(dollars(cost_usd))
    if cached:
        parts.append("cached")
    return f"({', '.join(parts)})"


def _hanging(head: str, text: str, width: int, most: int, tone: Tone) -> list[Line]:
    """`text` behind `head`, its lines under each other; how many are left out is said."""
    told = prose(text, width - len(head))
    shown: list[Line] = []
    for index, line in enumerate(told[:most]):
        first = Span(head if index == 0 else " " * len(head), Tone.DIM)
        toned = (Span(span.text, tone if span.tone is Tone.PLAIN else span.tone) for span in line)
        shown.append((first, *toned))
    if len(told) > most:
        shown.append((Span(f"{' ' * len(head)}… {some(len(told) - most, 'more line')}", Tone.DIM),))
    return shown


def plain(lines: list[Line]) -> str:
    """Lines without their tones, for where there is no colour."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)
