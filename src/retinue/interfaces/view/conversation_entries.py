"""Entries of a conversation: messages, replies, tool calls, child agents, notices.

An entry raises its `version` when it changes, so that a front end redraws only changed entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from retinue.domain.agent_state import AgentState
from retinue.domain.plural import plural
from retinue.domain.result import FileChange, Status
from retinue.interfaces.view.agent_tree import (
    COUNT_ORDER,
    MAX_UNGROUPED_CHILDREN,
    SPINNER_FRAMES,
    STATE_SYMBOLS,
    AgentTree,
    DisplayState,
    display_state,
    elapsed_s,
    failure_reason,
    is_active,
    short_name,
    short_names,
)
from retinue.interfaces.view.file_diff import collapsed, patch_lines
from retinue.interfaces.view.formatting import (
    clip,
    format_duration,
    one_line,
    printable_lines,
)
from retinue.interfaces.view.markdown import MarkdownText
from retinue.interfaces.view.result_blocks import (
    agent_block,
    paused_block,
    total_usage_text,
)
from retinue.interfaces.view.styled_text import Line, Tone, clip_line, styled, wrap
from retinue.interfaces.view.tool_calls import call_text, output_lines

SPINNER_FRAMES_PER_S = 8
MAX_CALLS = 3
MAX_OUTPUT_LINES = 12
MAX_FAILURE_LINES = 5
MAX_FAILURE_REASONS = 5
MAX_RUNNING = 3
# How far a long block may be behind while it is written.
BLOCK_PARTS, MIN_NEW_CHARS, MAX_BEHIND_S = 20, 20, 1.0
SHORT_RESULT_LINES, FULL_RESULT_LINES = 3, 200


class Frame:
    """Moment at which entries are drawn, with the spinner character for that moment."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.spinner = SPINNER_FRAMES[int(now * SPINNER_FRAMES_PER_S) % len(SPINNER_FRAMES)]


class Entry(ABC):
    """A part of a conversation that is drawn as a whole."""

    version = 0

    @property
    def animated(self) -> bool:
        """Whether the entry looks different over time without an event in between."""
        return False

    def forget_rendering(self) -> None:
        """Render everything again next time: the palette has changed."""
        self.version += 1

    @abstractmethod
    def lines(self, width: int, frame: Frame, *, full: bool) -> list[Line]:
        """Lines of the entry. `full` shows everything instead of a shortened form."""


class UserEntry(Entry):
    """A message of the user."""

    def __init__(self, text: str) -> None:
        self.text = text

    def lines(self, width: int, frame: Frame, *, full: bool) -> list[Line]:
        shown: list[Line] = []
        for line in printable_lines(self.text):
            shown += wrap(styled((line, Tone.USER)), width, first="  ", rest="  ")
        if shown:
            shown[0] = styled(("❯ ", Tone.USER), shown[0][2:])
        return shown


class ReplyEntry(Entry):
    """A reply of a model, or the part of it that has arrived."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._markdown = MarkdownText()
        self._lines: list[Line] = []
        self._drawn = (0, 0, 0.0)
        """Width, length of the text, and time of the last drawing."""
        self._behind = False

    @property
    def animated(self) -> bool:
        return self._behind

    def forget_rendering(self) -> None:
        self._markdown = MarkdownText()
        self.replace(self.text)

    def append(self, text: str) -> None:
        self.text += text
        self.version += 1

    def replace(self, text: str) -> None:
        self.text = text
        self.version += 1
        self._drawn = (0, 0, 0.0)

    def lines(self, width: int, frame: Frame, *, full: bool) -> list[Line]:
        # A block is rendered again for each part that arrives. While a long one grows, it is drawn
        # when it is a few percent longer, so that the work stays in proportion to its length.
        drawn_width, drawn_chars, drawn_at = self._drawn
        new = len(self.text) - drawn_chars
        few = self._markdown.last_block_chars // BLOCK_PARTS - MIN_NEW_CHARS
        self._behind = (
            width == drawn_width and 0 < new <= few and frame.now - drawn_at < MAX_BEHIND_S
        )
        if not self._behind:
            self._drawn = (width, len(self.text), frame.now)
            self._lines = self._markdown.lines(self.text.rstrip(), width)
        return self._lines


class _Call:
    """A tool call and its outcome."""

    def __init__(self, tool: str, arguments: str) -> None:
        self.text = call_text(tool, arguments)
        self.ok: bool | None = None
        self.output = ""

    def lines(self, width: int, *, full: bool) -> list[Line]:
        failed = self.ok is False
        symbol = ("✗ ", Tone.FAILED) if failed else ("· ", Tone.DIM)
        shown: list[Line] = [styled("  ", symbol, (clip(self.text, width - 4), Tone.DIM))]
        if full:
            shown += output_lines(self.output, width, limit=MAX_OUTPUT_LINES)
        elif failed:
            shown += [line for text in _ends(self.output) for line in _indented(text, width)]
        return shown


def _ends(output: str) -> list[str]:
    """The first line of a failed call, which says how it ended, and the last, which say why."""
    lines = [line.rstrip() for line in printable_lines(output) if line.strip()]
    if len(lines) <= MAX_FAILURE_LINES:
        return lines
    return [lines[0], "…", *lines[2 - MAX_FAILURE_LINES :]]


def _indented(text: str, width: int) -> list[Line]:
    indent = " " * (4 + len(text) - len(text.lstrip()))
    return wrap(styled((text.strip(), Tone.DIM)), width, first=indent, rest=indent)


class ToolCallsEntry(Entry):
    """Tool calls of the root agent between two of its replies."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._open: dict[str, _Call] = {}
        """Calls without an outcome. Some servers use the same ids in each reply."""

    def start(self, call_id: str, tool: str, arguments: str) -> None:
        self._open[call_id] = _Call(tool, arguments)
        self._calls.append(self._open[call_id])
        self.version += 1

    def finish(self, call_id: str, output: str, ok: bool) -> None:
        call = self._open.pop(call_id)
        call.output, call.ok = output, ok
        self.version += 1

    def lines(self, width: int, frame: Frame, *, full: bool) -> list[Line]:
        calls = self._calls
        # Failed calls are always shown; of the others, the latest.
        first = 0 if full else len(calls) - MAX_CALLS
        kept = [c for i, c in enumerate(calls) if c.ok is False or i >= first]
        shown: list[Line] = []
        if hidden := len(calls) - len(kept):
            shown.append(styled((f"  · {plural(hidden, 'earlier call')}", Tone.DIM)))
        return shown + [line for call in kept for line in call.lines(width, full=full)]


class ChangeEntry(Entry):
    """A change of the user's files. `show` adds the patch when it has been read."""

    def __init__(self, files: Sequence[FileChange]) -> None:
        self._files = files
        self.patch = ""

    def show(self, patch: str) -> None:
        self.patch = patch
        self.version += 1

    def lines(self, width: int, frame: Frame, *, full: bool) -> list[Line]:
        if self.patch:
            return collapsed(patch_lines(self.patch, width), full=full)
        return [styled((clip(f"  {file}", width), Tone.STRONG)) for file in self._files]


class ChildrenEntry(Entry):
    """Children of the root agent that were spawned together."""

    def __init__(self, tree: AgentTree) -> None:
        self.tree = tree
        self._agent_ids: list[str] = []
        self._calls: dict[str, list[str]] = {}

    @property
    def animated(self) -> bool:
        return any(map(is_active, self._agents()))

    def add_agent(self, agent_id: str) -> None:
        self._agent_ids.append(agent_id)

    def add_call(self, agent_id: str, text: str) -> None:
        self._calls.setdefault(agent_id, []).append(text)

    def _agents(self) -> list[AgentState]:
        return [self.tree.run.agents[agent_id] for agent_id in self._agent_ids]

    def lines(self, width: int, frame: Frame, *, full: bool) -> list[Line]:
        agents = self._agents()
        root = self.tree.run.root
        unspawned = self.tree.unspawned_children(root) if self.animated and root is not None else 0
        if len(agents) + unspawned > MAX_UNGROUPED_CHILDREN and not full:
            return self._counted(agents, unspawned, width, frame)
        return [
            line for agent in agents for line in self._agent_lines(agent, width, frame, full=full)
        ]

    def _agent_lines(
        self, agent: AgentState, width: int, frame: Frame, *, full: bool
    ) -> list[Line]:
        if agent.paused_at is not None:
            shown = paused_block(agent, width=width)
        elif agent.closed_at is None:
            shown = [_progress_line(agent, width, frame)]
        else:
            # The result of a planner is shown as a plan elsewhere.
            planned = self.tree.run.kind == "planning" and agent.status is Status.COMPLETED
            short = 0 if planned else SHORT_RESULT_LINES
            shown = agent_block(agent, width=width, max_lines=FULL_RESULT_LINES if full else short)
        calls = self._calls.get(agent.id, [])
        if not full:
            calls = calls[-1:] if is_active(agent) else []
        if is_active(agent) and (progress := self.tree.progress(agent.id)):
            calls = [*calls[:-1], progress]
        return [
            *shown,
            *(styled((clip(f"    {call}", width), Tone.DIM)) for call in calls),
        ]

    def _counted(
        self, agents: Sequence[AgentState], unspawned: int, width: int, frame: Frame
    ) -> list[Line]:
        by_state: dict[DisplayState, list[AgentState]] = {state: [] for state in DisplayState}
        for agent in agents:
            by_state[display_state(agent)].append(agent)
        numbers = {state: len(found) for state, found in by_state.items()}
        numbers[DisplayState.WAITING] += unspawned
        active = numbers[DisplayState.RUNNING] or numbers[DisplayState.WAITING]
        counts = [
            (f"  {STATE_SYMBOLS[state]} {numbers[state]:,} {state}", Tone(state))
            for state in COUNT_ORDER
            if numbers[state]
        ]
        symbol = (f"{frame.spinner} ", Tone.RUNNING) if active else ""
        count = len(agents) + unspawned
        done = count - numbers[DisplayState.RUNNING] - numbers[DisplayState.WAITING]
        text = f"{done:,} of {plural(count, 'agent')} done" if active else plural(count, "agent")
        total = (text, Tone.STRONG)
        shown = [clip_line(styled(symbol, total, *counts), width)]
        if not active:
            ends = [agent.closed_at or agent.paused_at or 0 for agent in agents]
            took_s = max(ends) - min(agent.created_at for agent in agents)
            usage = f"  Duration: {format_duration(took_s)} {total_usage_text(agents)}"
            shown.append(styled((clip(usage, width), Tone.DIM)))
        shown += [
            clip_line(styled("  ", _progress_line(agent, width - 2, frame)), width)
            for agent in by_state[DisplayState.RUNNING][:MAX_RUNNING]
        ]
        return shown + _failure_lines(by_state[DisplayState.FAILED], width)


def _failure_lines(failed: Sequence[AgentState], width: int) -> list[Line]:
    """The reasons, each whole, with the agents that failed for it."""
    reasons: dict[str, list[AgentState]] = {}
    for agent in failed:
        reasons.setdefault(failure_reason(agent), []).append(agent)
    shown: list[Line] = []
    for reason, agents in list(reasons.items())[:MAX_FAILURE_REASONS]:
        names = short_names(agents, 3)
        count = f"{len(agents):,}× " if len(agents) > 1 else ""
        start = f"  ✗ {count}"
        text = styled((f"{reason}  ({names})", Tone.FAILED))
        shown += wrap(text, width, first=start, rest="    ", tone=Tone.FAILED)
    more = sum(len(agents) for agents in list(reasons.values())[MAX_FAILURE_REASONS:])
    if more:
        shown.append(styled((f"  ✗ {more:,} more failed", Tone.FAILED)))
    return shown


def _progress_line(agent: AgentState, width: int, frame: Frame) -> Line:
    """A running child in one line: ⠋ researcher.1 "Write tests" (turn 3/10, 12.4s)."""
    name, title = short_name(agent), f'"{one_line(agent.title)}"'
    if agent.started_at is None:
        name = f"{STATE_SYMBOLS[DisplayState.WAITING]} {name} "
        return clip_line(styled((name, Tone.WAITING), (f"{title} (waiting)", Tone.DIM)), width)
    turn = f"turn {agent.turn}/{agent.max_turns}, " if agent.turn else ""
    tail = f" ({turn}{format_duration(elapsed_s(agent, frame.now))})"
    head = f"{frame.spinner} {name} "
    title = clip(title, max(8, width - len(head) - len(tail)))
    return clip_line(styled((head, Tone.RUNNING), title, (tail, Tone.DIM)), width)


class NoticeEntry(Entry):
    """A message of the program: the answer to a command, or a problem."""

    def __init__(self, text: str | Callable[[int], list[Line]], tone: Tone = Tone.DIM) -> None:
        """`text` may be a function of the width, for text in columns."""
        self.text = text
        self.tone = tone

    def replace(self, text: str, tone: Tone) -> None:
        self.text, self.tone = text, tone
        self.version += 1

    def lines(self, width: int, frame: Frame, *, full: bool) -> list[Line]:
        if not isinstance(self.text, str):
            return self.text(width)
        shown: list[Line] = []
        for line in printable_lines(self.text):
            indent = " " * (len(line) - len(line.lstrip()))
            shown += wrap(styled((line.strip(), self.tone)), width, first=indent, rest=indent)
        return shown
