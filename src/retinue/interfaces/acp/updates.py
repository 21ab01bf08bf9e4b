"""Folds the events of a session's runs into updates for the editor.

Each child is a tool call of the root session, whose `_meta` names the agent and its parent. The
same fold serves a live run and the replay of a journal.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from retinue.domain import events as ev
from retinue.domain.agent_state import AgentState
from retinue.domain.messages import Thoughts
from retinue.domain.result import Status
from retinue.domain.run_state import RunState
from retinue.interfaces.acp.outbox import Outbox, Update
from retinue.interfaces.acp.tool_call import (
    KINDS,
    call_fields,
    fill_terminal,
    open_terminal,
    text_content,
)
from retinue.interfaces.view.agent_tree import (
    WAITING_TOOLS,
    DisplayState,
    current_activity,
    display_state,
    short_name,
)
from retinue.interfaces.view.formatting import one_line
from retinue.interfaces.view.tool_calls import call_text

MODEL_LED = "run"
CHILD_STATUSES = {
    DisplayState.WAITING: "pending",
    DisplayState.RUNNING: "in_progress",
    DisplayState.DONE: "completed",
    DisplayState.STOPPED: "failed",
    DisplayState.FAILED: "failed",
}
_THOUGHT_FIELDS = ("thinking", "reasoning_content", "reasoning", "text", "summary")

OnChanged = Callable[[str, str], None]
"""Called with (run id, agent id) when the files that a child has changed can be shown."""


class SessionUpdates:
    """Puts updates into the outbox, for the events of all runs of a session."""

    def __init__(
        self,
        root: Path,
        outbox: Outbox,
        *,
        live: bool,
        on_changed: OnChanged,
        announce: Callable[[str, Update], None] | None = None,
        terminals: bool = False,
    ) -> None:
        self._root = root
        self._outbox = outbox
        self._live = live
        self._on_changed = on_changed
        self._terminals = terminals
        """Whether the editor shows the output of commands in a terminal of its own."""
        self._announce = announce
        """Sends `subagent_update`s on the session of the parent, to clients that know them."""
        self.runs: dict[str, RunState] = {}
        self._streamed = ""
        """The part of the root's reply that has arrived so far."""
        self._child_text: dict[str, str] = {}
        self._calls: dict[tuple[str, str, str], str] = {}
        """Ids of the calls in the root's last reply, by run, tool and arguments."""
        self._plan: dict[str, dict[str, str]] = {}
        """Entries of the plan, by the names of its steps."""
        self._shown: set[str] = set()
        """Ids of tool calls that the editor knows."""

    # Text

    def stream(self, text: str) -> None:
        """Text of the root's model, as it arrives."""
        if text:
            self._streamed += text
            self._outbox.put(_chunk("agent_message_chunk", text))

    def stream_child(self, run_id: str, agent_id: str, text: str) -> None:
        """Text of a child's model, as it arrives."""
        agent = self.runs[run_id].agents.get(agent_id) if run_id in self.runs else None
        if text and agent is not None:
            child = child_id(run_id, agent_id)
            self._child_text[child] = self._child_text.get(child, "") + text
            self._put_child(self.runs[run_id], agent)

    # Events

    def apply(self, event: ev.Event) -> None:
        run = self.runs.setdefault(event.run_id, RunState())
        run.apply(event)
        if event.parent_agent_id is not None:
            self._apply_child_event(run, event)
        elif event.type.startswith("plan."):
            self._apply_plan_event(event.fact)
        else:
            self._apply_root_event(run, event, event.fact)

    def _apply_root_event(self, run: RunState, event: ev.Event, fact: ev.Fact) -> None:
        match fact:
            case ev.RunStarted() if not self._live and fact.kind == MODEL_LED:
                self._outbox.put(_chunk("user_message_chunk", fact.task))
            case ev.MessageReceived(source="user") if not self._live:
                self._outbox.put(_chunk("user_message_chunk", fact.content))
            case ev.TurnStarted() | ev.ModelFailed():
                self._streamed = ""
            case ev.ModelReplied() if run.kind == MODEL_LED:
                self._apply_reply(event.run_id, fact)
            case ev.ToolStarted() if fact.tool not in WAITING_TOOLS:
                self._put_call(event.run_id, fact, "in_progress")
            case ev.ToolFinished():
                self._finish_call(event.run_id, fact)
            case ev.ToolDenied():
                self._put_call(event.run_id, fact, "failed")
                self._update(call_id(event.run_id, fact.call_id), "failed", fact.content)
            case _:
                pass

    def _apply_reply(self, run_id: str, fact: ev.ModelReplied) -> None:
        if fact.thoughts is not None and (text := thought_text(fact.thoughts)):
            self._outbox.put(_chunk("agent_thought_chunk", text))
        # A model that does not stream, or whose reply was repaired at its end.
        rest = fact.content.removeprefix(self._streamed)
        if rest and (not self._streamed or rest != fact.content):
            self._outbox.put(_chunk("agent_message_chunk", rest))
        self._streamed = ""
        for call in fact.calls:
            self._calls[run_id, call.name, call.arguments] = call_id(run_id, call.id)

    def _put_call(self, run_id: str, fact: ev.ToolStarted | ev.ToolDenied, status: str) -> None:
        name = call_id(run_id, fact.call_id)
        fields = call_fields(fact.tool, fact.arguments, self._root, live=self._live)
        title = call_text(fact.tool, fact.arguments)
        kind = "tool_call_update" if name in self._shown else "tool_call"
        self._shown.add(name)
        update = {"sessionUpdate": kind, "toolCallId": name, "title": title, "status": status}
        if self._terminals and fields["kind"] == "execute" and status == "in_progress":
            fields |= open_terminal(name, self._root)
        self._outbox.put(update | fields)

    def _finish_call(self, run_id: str, fact: ev.ToolFinished) -> None:
        name = call_id(run_id, fact.call_id)
        if name in self._shown:
            status = "completed" if fact.receipt.ok else "failed"
            if self._terminals and KINDS.get(fact.tool) == "execute":
                self._update(name, status, "", **fill_terminal(name, fact))
                return
            # Keep the diff of an edit: it says more than the tool's result.
            is_diff = fact.receipt.ok and fact.tool in ("edit_file", "write_file")
            self._update(name, status, "" if is_diff else fact.content)

    def _update(self, name: str, status: str, text: str, **fields: Any) -> None:
        update: Update = {"sessionUpdate": "tool_call_update", "toolCallId": name, "status": status}
        self._outbox.put(update | fields | ({"content": text_content(text)} if text else {}))

    def call_of(self, path: str, tool: str, arguments: str) -> tuple[str, bool]:
        """Id of the tool call that an approval is about, and whether that is a child; "" for none.

        Calls of the root have their own ids. A question of a child is shown at the child.
        """
        for run in reversed(self.runs.values()):
            for agent in run.agents.values():
                if agent.path == path and agent.parent_id is not None:
                    return child_id(run.id, agent.id), True
            if (name := self._calls.get((run.id, tool, arguments))) is not None:
                self._shown.add(name)
                return name, False
        return "", False

    # Children

    def _apply_child_event(self, run: RunState, event: ev.Event) -> None:
        agent = run.agents[event.agent_id]
        child = child_id(run.id, agent.id)
        match event.type:
            case "agent.subagent_created":
                self._announce_child(run, agent)
                self._put_child(run, agent)
            case "agent.subagent_closed":
                self._child_text.pop(child, None)
                self._put_child(run, agent)
                self._announce_child(run, agent)
                if agent.files_modified or agent.unmerged_files:
                    self._on_changed(run.id, agent.id)
            case "turn.started" | "model.failed":
                self._child_text.pop(child, None)
            case "model.replied":
                self._child_text.pop(child, None)
                self._put_child(run, agent)
            case "agent.subagent_started" | "tool.started" | "tool.finished" | "tool.denied":
                self._put_child(run, agent)

    def _put_child(self, run: RunState, agent: AgentState) -> None:
        name = child_id(run.id, agent.id)
        is_new = name not in self._shown
        self._shown.add(name)
        update = self.child_update(run, agent)
        if is_new:
            update |= {"sessionUpdate": "tool_call", "kind": "other"}
        if is_new or agent.closed_at is not None:
            self._outbox.put(update)
        else:
            self._outbox.put_progress(update)

    def child_update(self, run: RunState, agent: AgentState) -> Update:
        """The state of a child: what it does now, or what it has answered."""
        name, state = child_id(run.id, agent.id), display_state(agent)
        if agent.closed_at is None:
            text = self._child_text.get(name) or current_activity(agent, state)
        else:
            files = [str(change) for change in agent.files_modified.values()]
            why = "" if agent.status is Status.COMPLETED else current_activity(agent, state)
            text = "\n\n".join(filter(None, (why, agent.response, "\n".join(files))))
        return {
            "sessionUpdate": "tool_call_update",
            "toolCallId": name,
            # Sent again, because a question about the child shows another title.
            "title": f"{short_name(agent)}: {one_line(agent.title)}",
            "status": CHILD_STATUSES[state],
            "content": text_content(text),
            "_meta": {
                "retinue": {
                    "run": run.id,
                    "agent": agent.id,
                    "path": agent.path,
                    "role": agent.role,
                    "parent": self._parent(run, agent),
                    "state": str(agent.status or state),
                    "turn": agent.turn,
                    "tokens": agent.usage.tokens,
                }
            },
        }

    @staticmethod
    def _parent(run: RunState, agent: AgentState) -> str | None:
        """The tool call of the child's parent; None if the parent is the root."""
        parent = run.agents[agent.parent_id] if agent.parent_id else None
        return None if parent is None or parent.parent_id is None else child_id(run.id, parent.id)

    def _announce_child(self, run: RunState, agent: AgentState) -> None:
        if self._announce is None:
            return
        update: Update = {
            "sessionUpdate": "subagent_update",
            "sessionId": child_id(run.id, agent.id),
            "title": short_name(agent),
            "description": agent.title,
            "state": {"state": "running" if agent.closed_at is None else "idle"},
        }
        self._announce(self._parent(run, agent) or "", update)

    # Plans

    def _apply_plan_event(self, fact: ev.Fact) -> None:
        match fact:
            case ev.PlanAdopted():
                for step in fact.plan.steps:
                    title = one_line(step.title or step.task)
                    entry = {"content": title, "priority": "medium", "status": "pending"}
                    self._plan.setdefault(step.name, entry)
            case ev.PlanStepStarted() if fact.step in self._plan:
                self._plan[fact.step]["status"] = "in_progress"
            case ev.PlanStepFinished() if fact.step in self._plan:
                self._plan[fact.step]["status"] = "completed"
        entries = [dict(entry) for entry in self._plan.values()]
        self._outbox.put({"sessionUpdate": "plan", "entries": entries})


def child_id(run_id: str, agent_id: str) -> str:
    return f"{run_id}/{agent_id}"


def call_id(run_id: str, name: str) -> str:
    """Models may give the same id to calls of two runs."""
    return f"{run_id}/call/{name}"


def thought_text(thoughts: Thoughts) -> str:
    """The words of a model's thinking, as far as its provider shows them."""
    return "\n\n".join(filter(None, (_words(_json(block.block)) for block in thoughts.blocks)))


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


def _words(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n\n".join(filter(None, map(_words, value)))
    if isinstance(value, dict):
        return "\n\n".join(filter(None, (_words(value.get(name)) for name in _THOUGHT_FIELDS)))
    return ""


def _chunk(kind: str, text: str) -> Update:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
