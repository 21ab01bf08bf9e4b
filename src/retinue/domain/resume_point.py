"""`ResumePoint`: what a process needs to resume an agent that another process has left.

Only a resumed run and a continued session read it, so `fold` builds it only for them: it holds the
facts of a whole attempt, and a run can have ten thousand agents.

The conversation is kept as facts, not as messages. Which messages they become depends on the
reader: a resumed attempt needs every byte of its prompt again, and the next run of a session leaves
out messages about the budget of the earlier run (`runtime.agent.transcript`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from retinue.domain import events as ev
from retinue.domain.agent_state import AgentState
from retinue.domain.messages import Message

ConversationFact = (
    ev.TurnStarted
    | ev.ModelReplied
    | ev.ToolStarted
    | ev.ToolFinished
    | ev.ToolDenied
    | ev.MessageReceived
    | ev.LimitReached
    | ev.ContextCompacted
    | ev.AttemptStarted
)
FROM_PARENT = "parent"
FROM_USER = "user"
FROM_CHILDREN = "staff"


@dataclass(slots=True)
class WorkTime:
    """Working time of an agent or attempt, over all processes, without the time between them."""

    _earlier_s: float = 0.0
    _epoch: int = 0
    _from: float = 0.0
    _to: float = 0.0

    def add(self, event: ev.Event) -> None:
        """Count the time up to `event`."""
        if event.epoch != self._epoch:
            self._earlier_s = self.seconds
            self._epoch, self._from = event.epoch, event.time
        self._to = event.time

    def subtract(self, seconds: float) -> None:
        """Leave out time in which the process was stalled, or by which its clock was set."""
        self._from += seconds

    @property
    def seconds(self) -> float:
        # Negative if the clock was set back.
        return self._earlier_s + max(0.0, self._to - self._from)


@dataclass(slots=True)
class ResumePoint:
    """Where one agent was left."""

    agent: AgentState
    opening: tuple[Message, ...] | None = None
    """The first messages of the attempt under way; None before the first attempt."""
    conversation: list[ConversationFact] = field(default_factory=list)
    """The facts that make up the conversation of that attempt, after its opening."""
    children: list[str] = field(default_factory=list)
    """Children created in that attempt."""
    delivered: set[str] = field(default_factory=set)
    """Children whose results were delivered."""
    asking: bool = False
    """Whether its process left it while a model call was under way."""
    unread: list[str] = field(default_factory=list)
    """Messages of its parent that have not reached its conversation."""
    worktree_base: str = ""
    """The commit that its own copy of the files started from; "" without such a copy."""
    proposal: ev.ResultProposed | None = None
    is_merged: bool = False
    """Whether its work is in its parent's files."""
    lifetime: WorkTime = field(default_factory=WorkTime)
    """Working time since the agent was started."""
    attempt_time: WorkTime = field(default_factory=WorkTime)

    def has_message_from(self, source: str) -> bool:
        """Whether the conversation has a message of that source."""
        return any(
            isinstance(f, ev.MessageReceived) and f.source == source for f in self.conversation
        )

    def apply(self, event: ev.Event, fact: ev.Fact) -> None:
        """Apply an event of the agent. The event was already applied to `agent`."""
        if isinstance(fact, ev.AgentStarted):
            self.lifetime = WorkTime()
        if isinstance(fact, ev.AttemptStarted):
            self._start_attempt(fact)
        self.lifetime.add(event)
        if not isinstance(fact, ev.ModelFailed):
            # A reply after it counts the time. Without one, the attempt only waited for its model.
            self.attempt_time.add(event)
        if isinstance(fact, ConversationFact) and (
            not isinstance(fact, ev.AttemptStarted) or fact.continued
        ):
            self.conversation.append(fact)
        match fact:
            case ev.TurnStarted():
                self.asking = True
            case ev.ModelReplied() | ev.ModelFailed():
                self.asking = False
            case ev.ToolFinished():
                self.delivered.update(fact.about)
            case ev.MessageReceived(source=source):
                if source == FROM_PARENT and self.unread:
                    self.unread.pop(0)
                elif source == FROM_CHILDREN:
                    self.delivered.update(fact.about)
            case ev.WorktreeCreated():
                self.worktree_base = fact.base
            case ev.ResultProposed():
                self.proposal = fact
            case ev.WorktreeMerged():
                self.is_merged = True

    def _start_attempt(self, fact: ev.AttemptStarted) -> None:
        self.attempt_time = WorkTime()
        if fact.continued:
            return
        self.opening = fact.opening
        self.conversation.clear()
        self.children.clear()
        self.delivered.clear()
