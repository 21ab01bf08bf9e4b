"""A conversation, folded from the events of its runs into entries.

Text that a model is still writing and notices of the program are added by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retinue.domain import events as ev
from retinue.domain.approval import Answer
from retinue.domain.permissions import ASK_USER
from retinue.domain.result import Status
from retinue.interfaces.view.agent_tree import (
    SPAWN_TOOL,
    STATE_SYMBOLS,
    WAITING_TOOLS,
    AgentTree,
    DisplayState,
    Forest,
)
from retinue.interfaces.view.conversation_entries import (
    ChangeEntry,
    ChildrenEntry,
    Entry,
    NoticeEntry,
    ReplyEntry,
    ToolCallsEntry,
    UserEntry,
)
from retinue.interfaces.view.formatting import format_duration, one_line
from retinue.interfaces.view.result_blocks import total_usage_text, unverified_text
from retinue.interfaces.view.styled_text import Line, Tone, clip_line, styled
from retinue.interfaces.view.tool_calls import answer_text, call_text

PROCESS_GONE = "retinue ended before this run was over"
RESUME_HINT = "/resume continues it. Or type what to do instead."


class Conversation:
    """Entries of a conversation. Only its methods change them."""

    def __init__(self, forest: Forest) -> None:
        self.entries: list[Entry] = []
        self._forest = forest
        self._streaming: ReplyEntry | None = None
        self._open_calls: dict[tuple[str, str], ToolCallsEntry] = {}
        self._children: dict[tuple[str, str], ChildrenEntry] = {}
        self._refusals: dict[tuple[str, str], str] = {}
        """Why the user said no to a call, by run and call."""
        self._spawn_calls: dict[tuple[str, str], ev.ToolStarted] = {}
        """Calls that have not ended; their children are shown in place of them."""
        self._model_problems: dict[str, NoticeEntry] = {}
        self.changes: dict[tuple[str, int], ChangeEntry] = {}
        """Changes of files by run and number whose patches are not shown yet."""

    def add_notice(
        self, text: str | Callable[[int], list[Line]], tone: Tone = Tone.DIM
    ) -> NoticeEntry:
        notice = NoticeEntry(text, tone)
        self.entries.append(notice)
        return notice

    def add_lines(self, lines: Sequence[Line]) -> None:
        """Show lines of the program that are cut at the width, not wrapped."""
        self.add_notice(lambda width: [clip_line(line, width) for line in lines])

    def add_user_text(self, text: str) -> None:
        """Show text of the user that goes to no agent."""
        self.entries.append(UserEntry(text))

    def add_markdown(self, text: str) -> None:
        """Show Markdown that no model is writing."""
        self.entries.append(ReplyEntry(text))

    def stream_reply(self, text: str) -> None:
        """Append text to the reply that the root agent's model is writing."""
        if self._streaming is None:
            self._streaming = ReplyEntry()
            self.entries.append(self._streaming)
        self._streaming.append(text)

    def apply(self, event: ev.Event) -> None:
        """Apply an event. The forest must have applied it before."""
        tree = self._forest.trees[event.run_id]
        if event.type == "agent.files_changed" and isinstance(fact := event.fact, ev.FilesChanged):
            entry = ChangeEntry(fact.files)
            self.entries.append(entry)
            self.changes[event.run_id, fact.number] = entry
        if event.parent_agent_id is not None:
            self._apply_child_event(tree, event)
            return
        fact = event.fact
        match fact:
            case ev.RunStarted():
                if fact.kind == "run":
                    self.entries.append(UserEntry(fact.task))
            case ev.RunFinished():
                self._finish_run(tree, fact)
            case ev.RunSuspended():
                self._suspend_run(tree, fact.reason)
            case _:
                self._apply_root_event(tree, event, fact)

    def _apply_root_event(self, tree: AgentTree, event: ev.Event, fact: ev.Fact) -> None:
        run_id = event.run_id
        match fact:
            case ev.ModelReplied():
                self._model_problems.pop(run_id, None)
                self._finish_reply(fact.content)
            case ev.ModelFailed():
                self._streaming = None
                if fact.error not in (ev.CALL_CANCELLED, ev.CALL_LOST):
                    self._show_model_problem(run_id, event.summary)
            case ev.ToolStarted() if fact.tool not in WAITING_TOOLS:
                self._start_call(run_id, fact)
            case ev.ToolStarted(tool=tool) if tool == SPAWN_TOOL:
                self._refusals.pop((run_id, fact.call_id), None)
                self._spawn_calls[run_id, fact.call_id] = fact
            case ev.ToolFinished():
                spawn = self._spawn_calls.pop((run_id, fact.call_id), None)
                if spawn is not None and tree.failed_to_spawn(event.agent_id, fact):
                    self._start_call(run_id, spawn)
                content = fact.content
                if not fact.receipt.ok:
                    content = self._refusal(run_id, fact.call_id) or answer_text(fact)
                self._finish_call(run_id, fact.call_id, content, fact.receipt.ok)
                if fact.tool == ASK_USER and fact.receipt.ok:
                    self.entries.append(UserEntry(fact.content))
            case ev.ApprovalDecided(answer=Answer.NO) if fact.request:
                for call_id in (fact.call_id, *(key.partition(":")[2] for key in fact.keys)):
                    self._refusals[run_id, call_id] = fact.reason
            case ev.ToolDenied():
                self._start_call(run_id, fact)
                text = self._refusal(run_id, fact.call_id) or answer_text(fact)
                self._finish_call(run_id, fact.call_id, text, False)
            case ev.MessageReceived() if fact.source == "user":
                self.entries.append(UserEntry(fact.content))
            case (
                ev.ContextCompacted()
                | ev.CircuitBreakerTripped()
                | ev.LimitReached()
                | ev.SilenceDetected()
            ):
                self.add_notice(f"· {event.summary}")
            case ev.HookFinished() if fact.notable:
                self.add_notice(f"· {event.summary}")
            case ev.AttemptStarted() if fact.number > 1:
                self.add_notice(f"· {event.summary}")
            case _:
                pass

    def _finish_reply(self, content: str) -> None:
        reply, self._streaming = self._streaming, None
        if reply is None:
            if not content.strip():
                return
            reply = ReplyEntry()
            self.entries.append(reply)
        reply.replace(content)

    def _show_model_problem(self, run_id: str, text: str) -> None:
        """Show the latest problem with the model in place of the one before."""
        notice = self._model_problems.get(run_id)
        if notice is None:
            notice = self._model_problems[run_id] = self.add_notice("")
        notice.replace(f"! {text}", Tone.STOPPED)

    def _refusal(self, run_id: str, call_id: str) -> str:
        """What the user said to a call; "" if the user has not refused it."""
        reason = self._refusals.pop((run_id, call_id), None)
        return "" if reason is None else f"you said no: {reason}".rstrip(": ")

    def _start_call(self, run_id: str, fact: ev.ToolStarted | ev.ToolDenied) -> None:
        last = self.entries[-1] if self.entries else None
        if not isinstance(last, ToolCallsEntry):
            last = ToolCallsEntry()
            self.entries.append(last)
        last.start(fact.call_id, fact.tool, fact.arguments)
        self._open_calls[run_id, fact.call_id] = last

    def _finish_call(self, run_id: str, call_id: str, output: str, ok: bool) -> None:
        entry = self._open_calls.pop((run_id, call_id), None)
        if entry is not None:
            entry.finish(call_id, output, ok)

    def _apply_child_event(self, tree: AgentTree, event: ev.Event) -> None:
        run_id, agents = event.run_id, tree.run.agents
        agent = agents[event.agent_id]
        if event.type == "agent.subagent_created" and agent.depth == 1:
            last = self.entries[-1] if self.entries else None
            if not isinstance(last, ChildrenEntry) or last.tree is not tree:
                last = ChildrenEntry(tree)
                self.entries.append(last)
            last.add_agent(agent.id)
            self._children[run_id, agent.id] = last
        while agent.depth > 1 and agent.parent_id is not None:
            agent = agents[agent.parent_id]
        entry = self._children.get((run_id, agent.id))
        if entry is None:
            return
        entry.version += 1
        if event.type == "tool.started" and event.agent_id == agent.id:
            latest = next(reversed(agent.pending_calls.values()))
            entry.add_call(agent.id, call_text(latest.tool, latest.arguments))

    def abandon(self, tree: AgentTree, *, is_held: bool) -> None:
        """Show that a run is not over, and that another process works on it, or none."""
        tree.abandon()
        if is_held:
            watch = f"`retinue watch {tree.run.id}`"
            self.add_notice(f"■ another process works on this run; {watch} follows it")
        else:
            self._suspend_run(tree, PROCESS_GONE)

    def _suspend_run(self, tree: AgentTree, reason: str) -> None:
        self._streaming = None
        for entry in self.entries:
            if isinstance(entry, ChildrenEntry) and entry.tree is tree:
                entry.version += 1
        if tree.is_model_led:
            self.add_notice(f"■ {one_line(reason)}\n  {RESUME_HINT}", Tone.STOPPED)

    def _finish_run(self, tree: AgentTree, fact: ev.RunFinished) -> None:
        self._streaming = None
        run = tree.run
        if not tree.is_model_led or run.root is None:
            return
        if fact.status is not Status.COMPLETED:
            cancelled = fact.status is Status.CANCELLED
            state = DisplayState.STOPPED if cancelled else DisplayState.FAILED
            status = str(fact.status).replace("_", " ")
            reason = f": {fact.reason}" if fact.reason else ""
            text = f"{STATE_SYMBOLS[state]} {status}{reason}"
            problem = self._model_problems.pop(run.id, None)
            if problem is not None and fact.reason.rstrip(".") in str(problem.text):
                problem.replace(text, Tone(state))  # Once is enough.
            else:
                self.add_notice(text, Tone(state))
        if run.root.unverified:
            self.add_notice(unverified_text(run.root.unverified), Tone.FAILED)
        usage = f"{format_duration(run.duration_s or 0.0)} {total_usage_text(run.agents.values())}"
        shown = [usage, *map(str, run.root.files_modified.values())]
        self.add_lines([styled((f"  {line}", Tone.DIM)) for line in shown])
