"""A conversation as entries: what was said, what was done for it, and who did it.

It is folded from the same events as the tree. Only text that is still being written, and words of
the program itself, come from elsewhere. An entry says by `version` that it has changed, so that
whoever draws can leave alone what has not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from retinue.domain import events as ev
from retinue.domain.agent_state import AgentState
from retinue.domain.drafting import ASK_USER
from retinue.domain.result import Status
from retinue.interfaces.view.agent_table import SIGNS, SPINNER, Line, Span, Tone
from retinue.interfaces.view.agent_tree import (
    SMALL_FAMILY,
    WAITS,
    Forest,
    Mark,
    Tree,
    is_open,
    mark_of,
    reason_of,
    seconds,
)
from retinue.interfaces.view.formatting import (
    cells,
    clip,
    clip_reason,
    duration,
    lines_of,
    one_line,
    some,
)
from retinue.interfaces.view.markdown import chopped, prose, wrapped
from retinue.interfaces.view.result_blocks import agent_block, bill, paused_block
from retinue.interfaces.view.tool_calls import call_text

SPINS_A_SECOND = 8
WAY_ON = "/resume goes on where it was; or say what to do instead."
SHOWN_CALLS = 3
SHOWN_OUTPUT = 12
SHOWN_FAILURES = 5
SHOWN_RUNNING = 3
SHOWN_RESULT, MOST_RESULT = 3, 200


class Moment:
    """When something is drawn: the time, and how far the spinner has turned by then."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.spinner = SPINNER[int(now * SPINS_A_SECOND) % len(SPINNER)]


class Entry(Protocol):
    version: int

    @property
    def moving(self) -> bool:
        """Does it look different a moment later, with no event in between?"""
        ...

    def lines(self, width: int, moment: Moment, *, whole: bool) -> list[Line]:
        """What is seen of it; `whole` for those who want to see everything."""
        ...


class Said:
    """What the user said."""

    moving = False

    def __init__(self, text: str) -> None:
        self.text = text
        self.version = 0

    def lines(self, width: int, moment: Moment, *, whole: bool) -> list[Line]:
        said: list[Line] = []
        for line in lines_of(self.text):
            said += wrapped([Span(line, Tone.USER)], width, first="  ", rest="  ")
        if said:
            said[0] = (Span("❯ ", Tone.USER), *said[0][1:])
        return said


class Answer:
    """What a model said, as far as it has come."""

    moving = False

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.done = False
        self.version = 0
        self._settled: tuple[int, int, list[Line]] = (0, 0, [])

    def add(self, text: str) -> None:
        self.text += text
        self.version += 1

    def end(self, text: str) -> None:
        self.text, self.done = text, True
        self.version += 1

    def lines(self, width: int, moment: Moment, *, whole: bool) -> list[Line]:
        # What ends with an empty line will not look different for what comes after it, so only
        # what is new has to be laid out again.
        for_width, upto, settled = self._settled
        if for_width != width or upto > len(self.text):
            upto, settled = 0, []
        end = self.text.rfind("\n\n", upto)
        if end > upto and "```" not in self.text[upto:end]:
            settled = [*settled, *prose(self.text[upto:end], width), ()]
            upto = end + 2
            self._settled = (width, upto, settled)
        return [*settled, *prose(self.text[upto:].rstrip(), width)]


class Call:
    """One tool call, and what came of it."""

    def __init__(self, tool: str, arguments: str) -> None:
        self.text = call_text(tool, arguments)
        self.ok: bool | None = None
        self.content = ""

    def end(self, content: str, ok: bool) -> None:
        self.content, self.ok = content, ok

    def lines(self, width: int, *, whole: bool) -> list[Line]:
        failed = self.ok is False
        sign = Span("✗ ", Tone.FAILED) if failed else Span("· ", Tone.DIM)
        shown: list[Line] = [(Span("  "), sign, Span(clip(self.text, width - 4), Tone.DIM))]
        if whole:
            shown += _output(self.content, width, SHOWN_OUTPUT)
        elif failed:
            shown += wrapped(
                [Span(one_line(self.content[:400]), Tone.DIM)], width, first="    ", rest="    "
            )[:2]
        return shown


class Calls:
    """The tool calls of the one who leads, between two things that it said."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.version = 0

    moving = False

    def begin(self, call_id: str, call: Call) -> None:
        self.calls[call_id] = call
        self.version += 1

    def end(self, call_id: str, content: str, ok: bool) -> None:
        self.calls[call_id].end(content, ok)
        self.version += 1

    def lines(self, width: int, moment: Moment, *, whole: bool) -> list[Line]:
        calls = list(self.calls.values())
        if whole:
            return [line for call in calls for line in call.lines(width, whole=True)]
        # What failed is always shown; of the rest, what came last.
        kept = [c for i, c in enumerate(calls) if c.ok is False or i >= len(calls) - SHOWN_CALLS]
        hidden = len(calls) - len(kept)
        shown: list[Line] = []
        if hidden:
            shown.append((Span(f"  · {some(hidden, 'earlier call')}", Tone.DIM),))
        return shown + [line for call in kept for line in call.lines(width, whole=False)]


class Staff:
    """Agents that were sent out together."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.ids: list[str] = []
        self.calls: dict[str, list[str]] = {}
        self.version = 0

    @property
    def moving(self) -> bool:
        return any(map(is_open, self._agents()))

    def _agents(self) -> list[AgentState]:
        return [self.tree.run.agents[agent_id] for agent_id in self.ids]

    def lines(self, width: int, moment: Moment, *, whole: bool) -> list[Line]:
        agents = self._agents()
        root = self.tree.run.root
        unmade = self.tree.unmade(root) if self.moving and root is not None else 0
        if len(agents) + unmade > SMALL_FAMILY and not whole:
            return self._many(agents, unmade, width, moment)
        return [line for agent in agents for line in self._one(agent, width, moment, whole=whole)]

    def _one(self, agent: AgentState, width: int, moment: Moment, *, whole: bool) -> list[Line]:
        if agent.paused_at is not None:
            shown = paused_block(agent, width=width)
        elif agent.closed_at is None:
            shown = [progress(agent, width, moment)]
        else:
            # What a planner answers is shown as a plan.
            planned = self.tree.run.kind == "planning" and agent.status is Status.COMPLETED
            most = 0 if planned else SHOWN_RESULT
            shown = agent_block(agent, width=width, lines=MOST_RESULT if whole else most)
        calls = self.calls.get(agent.id, [])
        if whole:
            kept = calls
        elif is_open(agent):
            kept = calls[-1:]
        else:
            kept = []
        return [*shown, *((Span(clip(f"    {call}", width), Tone.DIM),) for call in kept)]

    def _many(
        self, agents: Sequence[AgentState], unmade: int, width: int, moment: Moment
    ) -> list[Line]:
        marks: dict[Mark, list[AgentState]] = {mark: [] for mark in Mark}
        for agent in agents:
            marks[mark_of(agent)].append(agent)
        numbers = {mark: len(found) for mark, found in marks.items()}
        numbers[Mark.WAITING] += unmade
        at_work = numbers[Mark.RUNNING] or numbers[Mark.WAITING]
        counts = [
            Span(f"  {SIGNS[mark]} {numbers[mark]:,} {mark}", Tone(mark))
            for mark in (Mark.RUNNING, Mark.WAITING, Mark.DONE, Mark.STOPPED, Mark.FAILED)
            if numbers[mark]
        ]
        sign = Span(f"{moment.spinner} ", Tone.RUNNING) if at_work else Span("")
        head = Span(some(len(agents) + unmade, "agent"), Tone.STRONG)
        shown: list[Line] = [cut((sign, head, *counts), width)]
        if not at_work:
            shown.append((Span(clip(f"  {self._bill(agents)}", width), Tone.DIM),))
        shown += [
            cut((Span("  "), *progress(agent, width - 2, moment)), width)
            for agent in marks[Mark.RUNNING][:SHOWN_RUNNING]
        ]
        reasons: dict[str, list[AgentState]] = {}
        for agent in marks[Mark.FAILED]:
            reasons.setdefault(reason_of(agent), []).append(agent)
        for reason, failed in list(reasons.items())[:SHOWN_FAILURES]:
            names = ", ".join(agent.path.rpartition("/")[2] for agent in failed[:3])
            who = f"{names}, …" if len(failed) > 3 else names
            count = f"{len(failed):,}× " if len(failed) > 1 else ""
            start = f"  ✗ {count}"
            why = clip_reason(f"{reason}  ({who})", width - cells(start))
            shown.append((Span(start + why, Tone.FAILED),))
        more = sum(len(failed) for failed in list(reasons.values())[SHOWN_FAILURES:])
        if more:
            shown.append((Span(f"  ✗ {more:,} more failed", Tone.FAILED),))
        return shown

    def _bill(self, agents: Sequence[AgentState]) -> str:
        ends = [a.closed_at or a.paused_at or 0 for a in agents]
        took = max(ends) - min(a.created_at for a in agents)
        return f"Duration: {duration(took)} " + bill(
            turns=sum(a.turns for a in agents),
            tool_calls=sum(a.tool_calls for a in agents),
            tokens=sum(a.usage.tokens for a in agents),
            cost_usd=sum(a.usage.cost_usd for a in agents),
        )


class Notice:
    """Words of the program: an answer to a command, or something that went wrong."""

    moving = False

    def __init__(self, text: str | Callable[[int], list[Line]], tone: Tone = Tone.DIM) -> None:
        """`text` may be a function of the width, for what is laid out in columns."""
        self.text = text
        self.tone = tone
        self.version = 0

    def replace(self, text: str, tone: Tone) -> None:
        self.text, self.tone = text, tone
        self.version += 1

    def lines(self, width: int, moment: Moment, *, whole: bool) -> list[Line]:
        if not isinstance(self.text, str):
            return self.text(width)
        shown: list[Line] = []
        for line in lines_of(self.text):
            indent = " " * (len(line) - len(line.lstrip()))
            shown += wrapped([Span(line.strip(), self.tone)], width, first=indent, rest=indent)
        return shown


class Talk:
    """The entries of a conversation. Change it through its methods only."""

    def __init__(self, forest: Forest) -> None:
        self.entries: list[Entry] = []
        self._forest = forest
        self._writing: Answer | None = None
        self._calls: dict[tuple[str, str], Calls] = {}
        self._children: dict[tuple[str, str], Staff] = {}
        self._setbacks: dict[str, Notice] = {}

    def notice(self, text: str | Callable[[int], list[Line]], tone: Tone = Tone.DIM) -> Notice:
        notice = Notice(text, tone)
        self.entries.append(notice)
        return notice

    def said(self, text: str) -> None:
        """Show words of the user's that are for no agent."""
        self.entries.append(Said(text))

    def told(self, text: str) -> None:
        """Show Markdown that no model is writing."""
        self.entries.append(Answer(text))

    def heard(self, text: str) -> None:
        """Take in text that the one who leads is writing."""
        if self._writing is None:
            self._writing = Answer()
            self.entries.append(self._writing)
        self._writing.add(text)

    def apply(self, event: ev.Event) -> None:
        """Take in an event that the forest has taken in before."""
        tree = self._forest.trees[event.run_id]
        if event.parent_agent_id is not None:
            self._child(tree, event)
            return
        fact = event.fact
        if isinstance(fact, ev.RunStarted):
            if fact.kind == "run":
                self.entries.append(Said(fact.task))
        elif isinstance(fact, ev.RunFinished):
            self._finish(tree, fact)
        elif isinstance(fact, ev.RunSuspended):
            self._pause(tree, fact)
        else:
            self._lead(event, fact)

    def _lead(self, event: ev.Event, fact: ev.Fact) -> None:
        run = event.run_id
        match fact:
            case ev.ModelReplied():
                self._setbacks.pop(run, None)
                self._replied(fact.content)
            case ev.ModelFailed():
                self._writing = None
                self._setback(run, event.summary)
            case ev.ToolStarted() if fact.tool not in WAITS:
                self._begin(run, fact.call_id, Call(fact.tool, fact.arguments))
            case ev.ToolFinished():
                self._end(run, fact.call_id, fact.content, fact.receipt.ok)
                if fact.tool == ASK_USER and fact.receipt.ok:
                    self.entries.append(Said(fact.content))
            case ev.ToolDenied():
                self._begin(run, fact.call_id, Call(fact.tool, fact.arguments))
                self._end(run, fact.call_id, fact.content, False)
            case ev.MessageReceived() if fact.source == "user":
                self.entries.append(Said(fact.content))
            case (
                ev.ContextCompacted()
                | ev.CircuitBreakerTripped()
                | ev.LimitReached()
                | ev.SilenceDetected()
            ):
                self.notice(f"· {event.summary}")
            case ev.AttemptStarted() if fact.number > 1:
                self.notice(f"· {event.summary}")
            case _:
                pass

    def _replied(self, content: str) -> None:
        answer, self._writing = self._writing, None
        if answer is None:
            if not content.strip():
                return
            answer = Answer()
            self.entries.append(answer)
        answer.end(content)

    def _setback(self, run: str, text: str) -> None:
        """The latest trouble with the model, in the place of the one before."""
        notice = self._setbacks.get(run)
        if notice is None:
            notice = self._setbacks[run] = Notice("", Tone.STOPPED)
            self.entries.append(notice)
        notice.replace(f"! {text}", Tone.STOPPED)

    def _begin(self, run: str, call_id: str, call: Call) -> None:
        last = self.entries[-1] if self.entries else None
        if not isinstance(last, Calls):
            last = Calls()
            self.entries.append(last)
        last.begin(call_id, call)
        self._calls[run, call_id] = last

    def _end(self, run: str, call_id: str, content: str, ok: bool) -> None:
        calls = self._calls.pop((run, call_id), None)
        if calls is not None:
            calls.end(call_id, content, ok)

    def _child(self, tree: Tree, event: ev.Event) -> None:
        run, agents = event.run_id, tree.run.agents
        agent = agents[event.agent_id]
        if event.type == "agent.subagent_created" and agent.depth == 1:
            last = self.entries[-1] if self.entries else None
            if not isinstance(last, Staff) or last.tree is not tree:
                last = Staff(tree)
                self.entries.append(last)
            last.ids.append(agent.id)
            self._children[run, agent.id] = last
        while agent.depth > 1 and agent.parent_id is not None:
            agent = agents[agent.parent_id]
        entry = self._children.get((run, agent.id))
        if entry is None:
            return
        entry.version += 1
        if event.type == "tool.started" and event.agent_id == agent.id:
            latest = next(reversed(agent.pending.values()))
            entry.calls.setdefault(agent.id, []).append(call_text(latest.tool, latest.arguments))

    def _pause(self, tree: Tree, fact: ev.RunSuspended) -> None:
        self._writing = None
        for entry in self.entries:
            if isinstance(entry, Staff) and entry.tree is tree:
                entry.version += 1
        if tree.run.kind == "run":
            self.notice(f"■ {one_line(fact.reason)}\n  {WAY_ON}", Tone.STOPPED)

    def _finish(self, tree: Tree, fact: ev.RunFinished) -> None:
        self._writing = None
        root = tree.run.root
        if tree.run.kind != "run" or root is None:
            return
        if fact.status is not Status.COMPLETED:
            sign = SIGNS[Mark.STOPPED if fact.status is Status.CANCELLED else Mark.FAILED]
            tone = Tone.STOPPED if fact.status is Status.CANCELLED else Tone.FAILED
            status = str(fact.status).replace("_", " ")
            self.notice(
                f"{sign} {status}: {fact.reason}" if fact.reason else f"{sign} {status}", tone
            )
        self.entries.append(Ending(tree))


class Ending:
    """The end of a run: what it took, and the files that are different now."""

    moving = False

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.version = 0

    def lines(self, width: int, moment: Moment, *, whole: bool) -> list[Line]:
        run = self.tree.run
        agents = run.agents.values()
        took = (run.finished_at or run.started_at) - run.started_at
        what = bill(
            turns=sum(a.turns for a in agents),
            tool_calls=sum(a.tool_calls for a in agents),
            tokens=run.usage.tokens,
            cost_usd=run.usage.cost_usd,
        )
        shown: list[Line] = [(Span(clip(f"  {duration(took)} {what}", width), Tone.DIM),)]
        root = run.root
        changed = [] if root is None else list(root.files_modified.values())
        return shown + [(Span(clip(f"  {change}", width), Tone.DIM),) for change in changed]


def progress(agent: AgentState, width: int, moment: Moment) -> Line:
    """One line for a child at work: ⠋ researcher.1 "Write tests" (turn 3/10, 12.4s)."""
    name = agent.path.rpartition("/")[2]
    if agent.started_at is None:
        return cut(
            (Span(f"{SIGNS[Mark.WAITING]} {name} ", Tone.WAITING),
             Span(f'"{one_line(agent.title)}" (waiting)', Tone.DIM)), width,
        )  # fmt: skip
    turn = f"turn {agent.turn}/{agent.max_turns}, " if agent.turn else ""
    tail = f" ({turn}{duration(seconds(agent, moment.now))})"
    head = f"{moment.spinner} {name} "
    title = clip(f'"{one_line(agent.title)}"', max(8, width - len(head) - len(tail)))
    return cut((Span(head, Tone.RUNNING), Span(title), Span(tail, Tone.DIM)), width)


def cut(line: Line, width: int) -> Line:
    """`line` within `width` cells."""
    kept: list[Span] = []
    left = width
    for span in line:
        text = clip(span.text, left)
        kept.append(Span(text, span.tone))
        left -= cells(text)
        if left <= 0:
            break
    return tuple(kept)


def _output(content: str, width: int, most: int) -> list[Line]:
    lines = lines_of(content)
    shown = [
        part for line in lines[:most] for part in chopped(line, width, indent="    ", tone=Tone.DIM)
    ]
    if len(lines) > most:
        shown.append((Span(f"    … {some(len(lines) - most, 'more line')}", Tone.DIM),))
    return shown
