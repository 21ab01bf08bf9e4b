"""Blocks that summarize the outcome of an agent: status, usage, changed files, result."""

from __future__ import annotations

from collections.abc import Collection

from rich.text import Text

from retinue.domain.account import Resources
from retinue.domain.agent_state import AgentState
from retinue.domain.messages import Usage
from retinue.domain.plan.outcome import RunResult
from retinue.domain.plural import plural
from retinue.domain.result import FileChange, Result, Spent, Status
from retinue.domain.run_state import RunState
from retinue.interfaces.view.formatting import clip, format_cost, format_duration, one_line
from retinue.interfaces.view.markdown import render_markdown
from retinue.interfaces.view.styled_text import Line, Tone, styled

MAX_RESULT_LINES = 6
MIN_REASON_LINES = 12
# So many lines more take no more room than a line that counts them and the way to see them.
SPARE_LINES = 2


def agent_block(agent: AgentState, *, width: int, max_lines: int = MAX_RESULT_LINES) -> list[Line]:
    """Block for a closed agent, from the journal."""
    usage = f"{format_duration(agent.duration_s)} {total_usage_text([agent])}"
    files = tuple(agent.files_modified.values())
    return _block(agent, agent.title, usage, files, width=width, max_lines=max_lines)


def result_block(result: Result, *, width: int, max_lines: int = MAX_RESULT_LINES) -> list[Line]:
    """Block for a result. For a run, the usage covers all of its agents."""
    total = result.total if isinstance(result, RunResult) and result.children else result.usage
    usage = f"{format_duration(total.duration_s)} {usage_text(total, cached=result.cached)}"
    return _block(
        result, result.task, usage, result.files_modified, width=width, max_lines=max_lines
    )


def paused_blocks(run: RunState, *, width: int, max_lines: int = MAX_RESULT_LINES) -> list[Line]:
    """Blocks for the agents of a suspended run that had already said something."""
    blocks: list[Line] = []
    for agent in run.agents.values():
        if agent.last_text:
            blocks += paused_block(agent, width=width, max_lines=max_lines)
    return blocks


def paused_block(agent: AgentState, *, width: int, max_lines: int = MAX_RESULT_LINES) -> list[Line]:
    """Block for an agent of a suspended run, with its latest text."""
    head = f"[{agent.role}] Paused: "
    title = (clip(f'"{one_line(agent.title)}"', width - len(head)), Tone.STRONG)
    lines = _labelled("  So far: ", agent.last_text, width, max_lines, Tone.PLAIN)
    return [styled((clip(head, width), Tone.STOPPED), title), *lines]


def _block(
    ended: AgentState | Result,
    task: str,
    usage: str,
    files: tuple[FileChange, ...],
    *,
    width: int,
    max_lines: int,
) -> list[Line]:
    ok = ended.status is Status.COMPLETED
    head = f"[{ended.role}] {'Completed' if ok else f'Ended ({ended.status})'}: "
    block: list[Line] = [
        styled(
            (clip(head, width), Tone.DONE if ok else Tone.FAILED),
            (clip(f'"{one_line(task)}"', width - len(head)), Tone.STRONG),
        ),
        styled((clip(f"  Duration: {usage}", width), Tone.DIM)),
    ]
    if not ok:
        reason_lines = max(max_lines, MIN_REASON_LINES)
        block += _labelled("  Reason: ", ended.error or "", width, reason_lines, Tone.FAILED)
    if len(files) == 1:
        block.append(styled(clip(f"  Files modified: {files[0]}", width)))
    elif files:
        block.append(styled("  Files modified:"))
        block += [styled(clip(f"    {change}", width)) for change in files]
    for check in ended.checks:
        tone = Tone.PLAIN if check.ok else Tone.FAILED
        block.append(styled((clip(f"  Check: {one_line(str(check))}", width), tone)))
    if ended.unverified:
        block.append(styled((clip(unverified_text(ended.unverified), width), Tone.FAILED)))
    if max_lines:
        block += _labelled("  Result: ", ended.response.strip(), width, max_lines, Tone.PLAIN)
    return block


def unverified_text(claim: str) -> str:
    """A claim in an answer that no check and no command supports, marked as such."""
    return f"  Unverified: {one_line(claim)}"


def usage_text(total: Spent, *, cached: bool) -> str:
    """(6 turns, 8 tool calls, 9,321 tokens, $0.02)"""
    parts = [
        plural(total.turns, "turn"),
        plural(total.tool_calls, "tool call"),
        plural(total.tokens, "token"),
    ]
    if total.cost_usd:
        parts.append(format_cost(total.cost_usd))
    if cached:
        parts.append("cached")
    return f"({', '.join(parts)})"


def total_usage_text(agents: Collection[AgentState]) -> str:
    """Usage of all these agents together."""
    return usage_text(spent_by(agents), cached=all(agent.cached for agent in agents))


def spent_by(agents: Collection[AgentState], duration_s: float = 0.0) -> Spent:
    """The sum of what agents spent, each without its children."""
    spent = Resources(
        tool_calls=sum(agent.tool_calls for agent in agents),
        turns=sum(agent.turns for agent in agents),
    )
    return Spent.of(spent, sum((agent.usage for agent in agents), Usage()), duration_s)


def _labelled(label: str, text: str, width: int, max_lines: int, tone: Tone) -> list[Line]:
    """`text` after `label`, its lines aligned; a last line says how many lines are left out."""
    rendered = render_markdown(text, width - len(label))
    indent = " " * len(label)
    shown: list[Line] = []
    max_lines += SPARE_LINES if len(rendered) <= max_lines + SPARE_LINES else 0
    for index, part in enumerate(rendered[:max_lines]):
        start = (indent if index else label, Tone.DIM)
        shown.append(styled(start, Text(style=tone).append_text(part)))
    if more := len(rendered) - len(shown):
        shown.append(styled((f"{indent}… {plural(more, 'more line')}", Tone.DIM)))
    return shown
