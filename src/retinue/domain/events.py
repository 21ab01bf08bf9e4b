"""The facts that a journal holds: one class per fact, in the past tense.

`Event` is the envelope of a fact: who, where and when. A journal keeps facts for ever and chains
their hashes, so their tags and JSON fields never change, and a new field needs a default. Where a
Python name has changed since, `msgspec.field(name=…)` gives the stored one. The tags of an agent's
lifecycle (`agent.subagent_created` … `agent.subagent_closed`) are those of the execution spec.

The classes come by subject: run, agent, conversation, tools, limits, files, plan. To add a fact,
write its class, add it to a group of `Fact`, and apply it in `agent_state` or `run_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

import msgspec

from retinue.domain.approval import Answer, ChildTerms
from retinue.domain.hook import HookOutcome
from retinue.domain.images import Image
from retinue.domain.lifecycle import State
from retinue.domain.messages import Message, Thoughts, Timing, ToolCall, Usage
from retinue.domain.plan.forecast import Forecast
from retinue.domain.plan.plan import Plan
from retinue.domain.plural import plural
from retinue.domain.race import FIRST, Standing
from retinue.domain.result import Check, Conflict, FileChange, Receipt, Status

VERSION = 1
MAX_REASON = 300
"""How many characters of an error a summary has: people read there what to do about it."""
CALL_CANCELLED = "the call was cancelled"
CALL_LOST = "the process ended before the reply"
"""Errors of model calls that need no action."""


class _Fact(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, tag_field="type", omit_defaults=True
):
    """The `str` of a fact is one short line, for people."""


# The run


class ForkOrigin(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The moment of another run that a run starts from."""

    run_id: str
    seq: int
    """Number of the last event that the fork takes over, and its hash."""
    hash: str
    files: str
    """The commit with the files as they were."""
    agent_id: str = "a0"
    """The agent that the root of the fork continues."""
    base: str = ""
    """The commit from which that agent's work is counted; "" for `files`."""


class RunStarted(_Fact, frozen=True, gc=False, tag="run.started"):
    """A run began: a model leads it, a program, or a plan (`kind`)."""

    kind: str
    task: str
    directory: str
    model: str
    mode: str
    retinue_version: str
    sandbox: str
    earlier: tuple[str, ...] = ()
    """Earlier runs of the same session, oldest first."""
    seal: str = ""
    """Of earlier versions, and not used any more: the store has the seals of runs."""
    tainted: bool = False
    """Whether the session holds untrusted text; see `AgentState`."""
    read_untrusted: bool = msgspec.field(default=False, name="wary")
    by: str = ""
    """Where the person is who started it: "web" for the page in the browser."""
    traceparent: str = ""
    """The trace and span of the program that started it, if it named one."""
    origin: ForkOrigin | None = None
    """For a fork, the run and the event that it starts from."""

    def __str__(self) -> str:
        return f"{_line(self.kind)} with {_line(self.model)}: {_line(self.task)}"


class RunFinished(_Fact, frozen=True, gc=False, tag="run.finished"):
    """The run is over. Only the run itself records this, never an agent."""

    status: Status
    reason: str = ""

    def __str__(self) -> str:
        return f"run {self.status}" + (f": {_line(self.reason)}" if self.reason else "")


class RunSuspended(_Fact, frozen=True, gc=False, tag="run.suspended"):
    """The work has stopped, and can be resumed. Agents that are not closed stay open."""

    reason: str

    def __str__(self) -> str:
        return f"run suspended: {_line(self.reason)}"


class RunResumed(_Fact, frozen=True, gc=False, tag="run.resumed"):
    """Another process continues the run. The events from here on have a new epoch."""

    retinue_version: str
    sandbox: str
    by: str = ""
    traceparent: str = ""

    def __str__(self) -> str:
        return "run resumed"


class ClockGapDetected(_Fact, frozen=True, gc=False, tag="run.lapsed"):
    """The process could not run for a while, or the clock of the machine was set.

    Deadlines move by `stalled_s`, so that no agent loses time.
    """

    stalled_s: float = 0.0
    jumped_s: float = 0.0

    def __str__(self) -> str:
        if self.stalled_s:
            return (
                f"nothing could run for {self.stalled_s:.0f} s; all deadlines are that much later"
            )
        return f"the clock was set by {self.jumped_s:+.0f} s; no deadline has moved"


class TasksSubmitted(_Fact, frozen=True, gc=False, tag="run.tasks_given"):
    """Tasks that a program has given to the run that it leads. They are numbered from `first`."""

    first: int
    tasks: tuple[msgspec.Raw, ...]
    max_concurrent: int
    race: str = ""
    """How the race between them is decided, if they are the candidates of one: best or first."""

    def __str__(self) -> str:
        if self.race:
            return f"race of {len(self.tasks)} candidates"
        return f"{plural(len(self.tasks), 'task')} given"


class AgentRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The part of an `AgentState` that `RunPruned` keeps."""

    id: str
    path: str
    role: str
    title: str
    depth: int
    step_idx: int
    contract_sha256: str
    created_at: float
    state: State
    parent_id: str | None = None
    started_at: float | None = None
    closed_at: float | None = None
    status: Status | None = None
    error: str = ""
    close_reason: str = ""
    cached: bool = False
    turn: int = 0
    max_turns: int = 0
    turns: int = 0
    """Replies of the model, over all attempts."""
    tool_calls: int = 0
    usage: Usage = Usage()


class RunPruned(_Fact, frozen=True, gc=False, tag="run.pruned"):
    """The `events` before this one were removed; the last of them had `head_hash`.

    This event keeps the outcome of the run.
    """

    events: int
    head_hash: str
    kind: str
    task: str
    directory: str
    model: str
    mode: str
    sandbox: str
    started_at: float
    finished_at: float | None = None
    status: Status | None = None
    reason: str = ""
    earlier: tuple[str, ...] = ()
    usage: Usage = Usage()
    rewritten: tuple[tuple[float, str], ...] = ()
    """When the user has undone or redone changes of the files, and which."""
    agents: tuple[AgentRecord, ...] = ()
    idle_s: float = 0.0
    """How long no process worked on the run."""

    def __str__(self) -> str:
        return f"cleaned away: {self.events} events that ended in {_line(self.head_hash[:12])}"


# The agent, from its contract to its closing


class AgentCreated(_Fact, frozen=True, gc=False, tag="agent.subagent_created"):
    """An agent was made, and its contract is fixed. `notes` say how the contract was narrowed."""

    sub_agent_id: str
    step_idx: int
    path: str
    depth: int
    role: str
    title: str
    contract_sha256: str
    notes: tuple[str, ...] = ()
    origin_key: str = msgspec.field(default="", name="errand")
    """Key of the call, step or task that created it; a resumed run matches on this."""
    background: bool = False
    replaces: str = ""
    """The failed child whose task it does instead."""
    continues: str = ""
    """The ended agent whose conversation it continues, as `RUN/AGENT`."""
    tainted: bool = False
    read_untrusted: bool = False
    """Marks that it takes over with that conversation, as in `AgentState`."""
    images: tuple[Image, ...] = ()
    """Images that come with its task; the contract has their hashes."""
    model: str = ""
    """Its model, unless that is the model of the run."""
    race: str = ""
    """The key of the race in which it is a candidate, unique among the races of its parent."""

    def __str__(self) -> str:
        return f"{_line(self.path)} created: {_line(self.title)}"


class AgentStarted(_Fact, frozen=True, gc=False, tag="agent.subagent_started"):
    """The agent begins to work."""

    sub_agent_id: str

    def __str__(self) -> str:
        return "started"


class AgentPlaced(_Fact, frozen=True, gc=False, tag="agent.placed"):
    """A host was chosen for the agent, or none: then its attempts run in the run's own process.

    Only runs with a cluster have this fact. Facts of an earlier `placement` are refused.
    """

    host: str = ""
    placement: int = 0
    """Counts the hosts that the agent was given to, from 1; 0 if there was none yet."""
    reason: str = ""
    """Why it was placed again, why it waits for a host, or why it runs in the run's process."""

    def __str__(self) -> str:
        if not self.host:
            return _line(self.reason)
        return _line(f"on {self.host}" + (f": {self.reason}" if self.reason else ""))


class AttemptStarted(_Fact, frozen=True, gc=False, tag="agent.subagent_attempt"):
    """An attempt begins; `opening` are the first messages of its conversation.

    An attempt that is `continued` adds them to the conversation of the attempt before it.
    """

    number: int
    of: int
    timeout_s: float
    opening: tuple[Message, ...]
    because: str = ""
    continued: bool = False

    def __str__(self) -> str:
        why = f" after {_line(self.because)}" if self.because else ""
        return f"attempt {self.number}/{self.of}{why}"


class CachedResultUsed(_Fact, frozen=True, gc=False, tag="agent.cached"):
    """The result of an earlier agent was used, since everything that it had read is unchanged."""

    run_id: str
    agent_id: str

    def __str__(self) -> str:
        return _line(f"same as {self.run_id} {self.agent_id}, nothing it read has changed")


class ResultProposed(_Fact, frozen=True, gc=False, tag="agent.subagent_waiting_for_merge"):
    """The agent has answered. Its parent's side merges and checks the work before it counts."""

    sub_agent_id: str
    response: str
    files_modified: tuple[FileChange, ...] = ()
    commit: str = ""
    """The commit to be integrated, if the agent worked in a copy."""

    def __str__(self) -> str:
        return f"waits to be integrated: {_line(self.response)}"


class RaceForecast(_Fact, frozen=True, gc=False, tag="agent.race_forecast"):
    """The agent is about to have its children race; the forecast is for all of them together."""

    race: str
    rule: str
    forecast: Forecast

    def __str__(self) -> str:
        return f"race of {len(self.forecast.steps)}: {self.forecast}"


class RaceDecided(_Fact, frozen=True, gc=False, tag="agent.race_decided"):
    """The agent's children in a race were compared: the work of `winner` is to be merged.

    If it cannot be merged, another decision follows. Without a winner, the race is lost.
    """

    race: str
    rule: str
    """"best" or "first": among all candidates, or by the first that passed its checks."""
    standings: tuple[Standing, ...]
    winner: str = ""

    def __str__(self) -> str:
        passed = sum(standing.passed for standing in self.standings)
        if not self.winner:
            return f"race lost: none of {len(self.standings)} candidates is left"
        how = "first" if self.rule == FIRST else f"best of {passed} that passed"
        return f"race won by {_line(self.winner, 20)}, {how}, of {len(self.standings)}"


class AgentCompleted(_Fact, frozen=True, gc=False, tag="agent.subagent_completed"):
    """The agent's answer and work were accepted."""

    sub_agent_id: str

    def __str__(self) -> str:
        return "completed"


class AgentFailed(_Fact, frozen=True, gc=False, tag="agent.subagent_failed"):
    """`response` is the last text of the agent: partial work is never thrown away."""

    sub_agent_id: str
    status: Status
    reason: str
    response: str = ""
    conflicts: tuple[Conflict, ...] = ()

    def __str__(self) -> str:
        return f"{self.status}: {_line(self.reason, MAX_REASON)}"


class AgentClosed(_Fact, frozen=True, gc=False, tag="agent.subagent_closed"):
    """`unverified` is the first claim in its response that no receipt supports.

    `unread` are messages that arrived during its last turn, and that it has not read.
    """

    sub_agent_id: str
    step_idx: int
    final_status: str
    close_reason: str
    unverified: str = ""
    unread: tuple[str, ...] = ()

    def __str__(self) -> str:
        unread = f"; unread: {_line(self.unread[0])}" if self.unread else ""
        return f"closed as {_line(self.final_status)}: {_line(self.close_reason)}{unread}"


# The conversation with the model


class TurnStarted(_Fact, frozen=True, gc=False, tag="turn.started"):
    """The agent asks its model: the request is being sent, and so it may be billed."""

    turn: int
    of: int
    last: bool = False
    without_tools: bool = False
    """Whether the request offers no tools although the turn is not the last."""
    retry: int = 0
    """How often the request of this turn was sent before, and failed."""

    def __str__(self) -> str:
        again = f", retry {self.retry}" if self.retry else ""
        last = ", the last, without tools" if self.last else ""
        return f"turn {self.turn}/{self.of}{again}{last}"


class ModelReplied(_Fact, frozen=True, gc=False, tag="model.replied"):
    """The model answered with text, with tool calls, or with both."""

    turn: int
    content: str
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    timing: Timing = Timing()
    finish: str = ""
    repairs: tuple[str, ...] = ()
    thoughts: Thoughts | None = None
    model: str = ""
    """Full name of the model of a pool that replied; "" without a pool."""

    def __str__(self) -> str:
        if self.calls:
            return _line("asks for " + ", ".join([call.name for call in self.calls]))
        return _line(self.content) or "(nothing)"


class ModelFailed(_Fact, frozen=True, gc=False, tag="model.failed"):
    """A model call failed. `retry_in_s` is None if it is not repeated."""

    turn: int
    error: str
    retry_in_s: float | None = None
    usage: Usage = Usage()

    def __str__(self) -> str:
        again = "" if self.retry_in_s is None else f"; again in {self.retry_in_s:.1f}s"
        return f"model failed: {_line(self.error, MAX_REASON).rstrip('.')}{again}"


class MessageReceived(_Fact, frozen=True, gc=False, tag="agent.told"):
    """A message reached an agent between two turns. `about` names the children it is about."""

    content: str
    source: str
    about: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"told by {_line(self.source, 20)}: {_line(self.content)}"


class ContextCompacted(_Fact, frozen=True, gc=False, tag="agent.context_compacted"):
    """The prompt was shortened, in one of three ways.

    `masked` old results were replaced by a note each, `dropped` messages by the summary `content`,
    or the answers to the latest calls were cut to `longest` bytes each. With `unread`, results that
    no request has had may be among the masked ones: they would not fit into the last turn.
    """

    masked: int = 0
    dropped: int = 0
    content: str = ""
    longest: int | None = None
    unread: bool = False

    def __str__(self) -> str:
        if self.longest is not None:
            return f"results cut to {self.longest:,} bytes each"
        if self.dropped:
            return f"{self.dropped} messages became a summary"
        return f"{self.masked} old results masked"


# Tool calls


class ToolStarted(_Fact, frozen=True, gc=False, tag="tool.started"):
    """A tool call was allowed and runs. `arguments` is JSON, as the model wrote it."""

    call_id: str
    tool: str
    arguments: str

    def __str__(self) -> str:
        return _line(f"{self.tool} {self.arguments}")


class ToolFinished(_Fact, frozen=True, gc=False, tag="tool.finished"):
    """`content` is what the model was told; `receipt` is what the runtime saw."""

    call_id: str
    tool: str
    content: str
    receipt: Receipt
    failed: bool = False
    """Whether the model got an error. A failing exit code is not an error of the call."""
    note: str = ""
    """The note about the budget that the model got with the answer."""
    about: tuple[str, ...] = ()
    """Background children whose results are in `content`."""
    images: tuple[Image, ...] = ()
    only_tools: tuple[str, ...] = ()
    """Rules for tools, from a loaded skill: the agent may make no other calls from now on."""
    snapshot: str = ""
    """The commit with the files of the agent's copy after the call, if it could change them."""
    shown: str = ""
    """What people are shown of an error, if `content` also advises the model."""

    def __str__(self) -> str:
        how = "done" if self.receipt.ok else "failed"
        return f"{_line(self.tool)} {how}: {_line(self.content)}"


class ToolDenied(_Fact, frozen=True, gc=False, tag="tool.denied"):
    """The call was answered without running it.

    It is `counted` against the limit of tool calls, unless that limit was the reason.
    """

    call_id: str
    tool: str
    arguments: str
    content: str
    counted: bool = True
    failed: bool = True
    """Whether the model got an error; False if the user said no."""
    note: str = ""
    shown: str = ""
    """What people are shown, if `content` also advises the model."""

    def __str__(self) -> str:
        return f"{_line(self.tool)} denied: {_line(self.content)}"


class ApprovalRequested(_Fact, frozen=True, gc=False, tag="approval.requested"):
    """A person is asked for permission. `wanted` is the `detail` of the `ApprovalRequest`.

    The number of this event is the `request` of the answer.
    """

    tool: str
    wanted: str
    why: str
    scope: str = ""
    rules: tuple[str, ...] = ()
    """What "always" would allow."""
    children: tuple[ChildTerms, ...] = ()
    diff: str = ""

    def __str__(self) -> str:
        return f"{_line(self.tool)} waits for approval: {_line(self.wanted)}"


class CommandReceived(_Fact, frozen=True, gc=False, tag="command.received"):
    """Another process has sent a command about the agent. `by` says from where: cli or web."""

    verb: str
    by: str
    text: str = ""
    request: int = 0
    answer: str = ""

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.verb, self.answer, _line(self.text))))
        return _line(f"{what}, from {self.by}")


class ApprovalDecided(_Fact, frozen=True, gc=False, tag="approval.decided"):
    """An agent needed permission for `wanted`. `answer` is a value of `approval.Answer`.

    With a `rule`, a rule of the settings or a person's earlier "always" has answered; without one,
    a person has. `why` says why permission was needed, and `scope` what the call could touch.
    `reason` has the person's words with a no. `keys` are the origin keys of the children that the
    answer is about, or the hash of a diff; a resumed run does not ask about them again.
    """

    tool: str
    wanted: str
    why: str
    answer: Answer
    rule: str = ""
    scope: str = ""
    call_id: str = ""
    reason: str = ""
    keys: tuple[str, ...] = ()
    request: int = 0
    """Number of the `approval.requested` that this answers; 0 if no person was asked."""

    @property
    def allowed(self) -> bool:
        return self.answer is Answer.YES

    def __str__(self) -> str:
        by = f"the rule {_line(self.rule)}" if self.rule else "the user"
        answers = {Answer.YES: f"allowed by {by}", Answer.NO: f"refused by {by}"}
        answer = answers.get(self.answer, "needs approval, but nobody could answer")
        return f"{_line(self.tool)} {answer}: {_line(self.wanted)}"


class HookFinished(_Fact, frozen=True, gc=False, tag="hook.finished"):
    """A hook of the user or the project ran on an event, about the call `call_id` if there is one.

    `outcome` is a value of `hook.HookOutcome`. `detail` is why it blocked, asked, stopped or
    failed, the text that it added, or the input as it changed it.
    """

    event: str
    hook: str
    outcome: str
    detail: str = ""
    call_id: str = ""

    @property
    def notable(self) -> bool:
        """Whether the hook did anything, or failed."""
        return self.outcome != HookOutcome.PASSED or bool(self.detail)

    def __str__(self) -> str:
        # The last line of a traceback is what counts, so errors are shown nearly whole.
        width = 500 if self.outcome == HookOutcome.FAILED else 100
        detail = f": {_line(self.detail, width)}" if self.detail else ""
        hook = f"{_line(self.event, 20)} hook {_line(self.hook, 60)}".rstrip()
        return f"{hook} {_line(self.outcome, 20)}{detail}"


# Limits


class LimitReached(_Fact, frozen=True, gc=False, tag="agent.limit_reached"):
    """A limit of the agent or of an ancestor is reached; the agent has one last turn."""

    limit: str
    detail: str

    def __str__(self) -> str:
        return f"limit {_line(self.limit)}: {_line(self.detail)}"


class CircuitBreakerTripped(_Fact, frozen=True, gc=False, tag="agent.breaker"):
    """Many tool calls of the root: at stage `warn` it is told, at `pause` a person is asked."""

    stage: str
    tool_calls: int
    of: int

    def __str__(self) -> str:
        return _line(f"{self.stage}: {self.tool_calls} of {self.of} tool calls used")


class SilenceDetected(_Fact, frozen=True, gc=False, tag="agent.silent"):
    """Nothing was heard of the agent for `quiet_s`; with `stopped`, it was ended for that."""

    quiet_s: float
    stopped: bool = False

    def __str__(self) -> str:
        what = "stopped" if self.stopped else "noticed"
        return f"no sign of life for {self.quiet_s:.0f}s: {what}"


# The agent's files, and the user's


class WorktreeCreated(_Fact, frozen=True, gc=False, tag="agent.worktree_created"):
    """The agent works in its own copy of the commit `base`."""

    base: str
    directory: str
    content: str = ""
    """The commit with the first files of the copy, if they are not those of `base`."""

    def __str__(self) -> str:
        return f"works in a copy of {_line(self.base[:12])}"


class WorktreeMerged(_Fact, frozen=True, gc=False, tag="agent.worktree_merged"):
    """`commit` is the agent's work on `base`, merged with the work that was integrated before."""

    base: str
    commit: str
    snapshot: str = ""
    """The commit with all files of the parent's copy after the merge, if it works in one."""

    def __str__(self) -> str:
        return f"merged as {_line(self.commit[:12])}"


class CheckFinished(_Fact, frozen=True, gc=False, tag="agent.check_finished"):
    """An acceptance check ran on the work that is to be integrated."""

    check: Check

    def __str__(self) -> str:
        return f"check {_line(str(self.check))}"


class FilesChanged(_Fact, frozen=True, gc=False, tag="agent.files_changed"):
    """The user's files have changed. `commit` holds them before and after. Users call it a step."""

    number: int = msgspec.field(name="step")
    commit: str
    files: tuple[FileChange, ...]

    def __str__(self) -> str:
        return f"step {self.number}: " + _line(", ".join(map(str, self.files)))


class UnmergedWorkKept(_Fact, frozen=True, gc=False, tag="agent.work_kept"):
    """Changes that the agent made in its copy were not integrated, and are kept."""

    files: tuple[FileChange, ...]

    def __str__(self) -> str:
        return "kept, not integrated: " + _line(", ".join(map(str, self.files)))


class _FilesRewritten(_Fact, frozen=True, gc=False):
    files: tuple[FileChange, ...]
    numbers: tuple[int, ...] = msgspec.field(default=(), name="steps")
    kept: tuple[str, ...] = ()
    """Agents whose kept work is applied by a redo, or was before an undo."""
    agent: str = ""
    """The agent whose changes were chosen, if not the whole run."""
    by: str = ""

    def __str__(self) -> str:
        what = "undone" if isinstance(self, ChangesUndone) else "redone"
        whose = f" of {_line(self.agent, 40)}" if self.agent else ""
        files = _line(", ".join(map(str, self.files)))
        return f"{what}{whose}: {files or 'nothing was left to do'}"


class ChangesUndone(_FilesRewritten, frozen=True, gc=False, tag="run.steps_undone"):
    """The user has undone changes of the files. This may come after the end of the run."""


class ChangesRedone(_FilesRewritten, frozen=True, gc=False, tag="run.steps_redone"):
    """The user has redone changes, or has applied the kept work of an agent."""


# The plan


class PlanAdopted(_Fact, frozen=True, gc=False, tag="plan.adopted"):
    """The steps of `plan` are run from here on. Steps of earlier rounds that are over stay so.

    `because` says why there are further steps; it is "" for the first plan.
    """

    plan: Plan
    because: str = ""
    forecast: Forecast | None = None
    """The likely usage of the steps."""
    max_tokens: int | None = None
    """The limit of all steps together."""
    max_concurrent: int = 0
    """How many steps run at a time; 0 in journals of early versions."""
    exclusive: tuple[str, ...] = msgspec.field(default=(), name="alone")
    """Steps that write in the project itself: one of them at a time."""

    def __str__(self) -> str:
        why = f" after {_line(self.because)}" if self.because else ""
        count = len(self.plan.steps)
        return f"plan of {plural(count, 'step')}{why}: {_line(self.plan.goal)}"


class PlanStepStarted(_Fact, frozen=True, gc=False, tag="plan.step_started"):
    """A step was given to a child. `attempt` counts the children of the step, from 1."""

    step: str
    attempt: int = 1
    because: str = ""

    def __str__(self) -> str:
        again = f" again after {_line(self.because)}" if self.because else ""
        return f"step {_line(self.step)} started{again}"


class PlanStepFinished(_Fact, frozen=True, gc=False, tag="plan.step_finished"):
    """A step has ended. `then` is `done`, or what follows from its failure (`OnFailure`).

    `lost` are the steps that can never start now, since they need this one.
    """

    step: str
    status: Status
    sub_agent_id: str = ""
    reason: str = ""
    then: str = "done"
    lost: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = f" ({_line(self.reason)})" if self.reason else ""
        then = "" if self.then == "done" else f"; {_line(self.then, 40)}"
        return f"step {_line(self.step, 40)} {self.status}{why}{then}"


_RunFact = RunStarted | RunFinished | RunSuspended | RunResumed | ClockGapDetected | RunPruned
_StartFact = AgentCreated | AgentPlaced | AgentStarted | AttemptStarted | CachedResultUsed
_EndFact = ResultProposed | AgentCompleted | AgentFailed | AgentClosed
_ConversationFact = TurnStarted | ModelReplied | ModelFailed | MessageReceived | ContextCompacted
_ToolFact = ToolStarted | ToolFinished | ToolDenied | HookFinished
_PersonFact = ApprovalRequested | ApprovalDecided | CommandReceived
_LimitFact = LimitReached | CircuitBreakerTripped | SilenceDetected
_CopyFact = WorktreeCreated | WorktreeMerged | CheckFinished | RaceForecast | RaceDecided
_AgentFact = _StartFact | _EndFact | _ConversationFact | _ToolFact | _LimitFact | _CopyFact
_FileFact = FilesChanged | UnmergedWorkKept | ChangesUndone | ChangesRedone
PlanFact = PlanAdopted | PlanStepStarted | PlanStepFinished
Fact = _RunFact | TasksSubmitted | _AgentFact | _PersonFact | _FileFact | PlanFact


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A fact with who, where and when. Unique by (run, seq); `hash` chains it to the event before.

    `match` on `fact`, or on both at once: `case Event(agent_id=agent, fact=ToolFinished())`. A
    store that has lost a part of an event names that part in place of the hash.

    ```python
    run = await rt.run("Look around.")
    async for event in rt.events(run.id):
        match event:
            case retinue.Event(agent_id=agent, fact=retinue.events.RunFinished(status=status)):
                print(event.seq, agent, status)
    ```
    """

    seq: int
    """1, 2, 3, … without gaps, in each run."""
    run_id: str
    agent_id: str
    parent_agent_id: str | None
    """None for the root."""
    attempt: int
    epoch: int
    """Counts the processes that worked on the run, from 1."""
    time: float
    """Seconds since 1970."""
    type: str
    """The stored name of the fact, such as `tool.finished`."""
    summary: str
    """One line for people."""
    payload: msgspec.Raw
    """The fact as JSON."""
    hash: str
    version: int = VERSION

    @property
    def fact(self) -> Fact:
        """What happened: one of the classes of `retinue.events`. Decodes `payload`."""
        return decode_fact(self.payload)


STATE_AFTER = {
    "agent.subagent_started": State.RUNNING,
    "agent.subagent_waiting_for_merge": State.WAITING_FOR_MERGE,
    "agent.subagent_completed": State.COMPLETED,
    "agent.subagent_failed": State.FAILED,
    "agent.subagent_closed": State.CLOSED,
}
"""The state of an agent after an event, by the type of the event."""

TYPES: Mapping[type[Fact], str] = {kind: str(kind.__struct_config__.tag) for kind in get_args(Fact)}
"""`Event.type` of each fact."""

encode_fact: Callable[[Fact], bytes] = msgspec.json.Encoder().encode
decode_fact: Callable[[bytes | msgspec.Raw | str], Fact] = msgspec.json.Decoder(Fact).decode


def _line(text: str, width: int = 100) -> str:
    """The beginning of `text` on one row, without characters that a terminal would act on."""
    if len(text) <= width and text.isprintable():
        return text
    # Half as much again is enough for nearly every text, and takes a third of the time.
    line = _on_one_row(text[: 3 * width // 2])
    if len(line) <= width < len(text):
        line = _on_one_row(text[: 4 * width])
    return line if len(line) <= width else line[: width - 1] + "…"


def _on_one_row(text: str) -> str:
    row = " ".join(text.split())
    return row if row.isprintable() else "".join(char for char in row if char.isprintable())
