"""Messages between a run and the hosts that run the attempts of its agents.

A host numbers what it reports, so that the run can say up to where it has recorded it. All messages
are JSON: facts are passed on as they will be stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from retinue.domain.account import Resources
from retinue.domain.approval import ApprovalRequest, Rule, Rules
from retinue.domain.events import ApprovalDecided, Event
from retinue.domain.messages import Message
from retinue.domain.price import PoolPrice, Price
from retinue.domain.result import Check
from retinue.ports.endpoint_slots import RateLimits, SlotRequest, SlotUse
from retinue.ports.file_tree import ProjectFacts, TreeLocation
from retinue.ports.tool import CallInfo, RaceRequest, SpawnRequest, Subtask
from retinue.runtime.agent.loop import AttemptOutcome

Shared = tuple[int, int, int]
"""Tokens, micro-dollars and billed tokens."""


class HostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a host says of itself when it has started."""

    retinue_version: str
    python: str
    pid: int
    machine: str
    """Names the machine; see `shared_disk.machine_id`."""
    shares_disk: bool
    """Whether it sees the project and the working copies of the run."""
    why_no_files: str
    """Why it cannot get files that it does not see; "" if it can."""
    sandbox: str
    """How strong its sandbox is: full, reduced or none; "" without one."""
    tools: tuple[str, ...]
    cpus: int
    load: float
    """Processes that wanted a CPU in the last minute."""


# From a host to the run


class Recorded(msgspec.Struct, frozen=True, gc=False, tag="recorded"):
    fact: msgspec.Raw
    attempt: int


class Asked(msgspec.Struct, frozen=True, gc=False, tag="asked"):
    """A request to the run. Requests with the same `key` are one request, made once."""

    request: int
    what: Request
    key: str = ""


class Withdrawn(msgspec.Struct, frozen=True, gc=False, tag="withdrawn"):
    request: int


class Released(msgspec.Struct, frozen=True, gc=False, tag="released"):
    """The reserved budget is not needed any more; with `kept`, nor is that for the last turn."""

    kept: bool


class Text(msgspec.Struct, frozen=True, gc=False, tag="text"):
    text: str


class Progress(msgspec.Struct, frozen=True, gc=False, tag="progress"):
    tool: str
    text: str


class Paused(msgspec.Struct, frozen=True, gc=False, tag="paused"):
    """The agent waits for its run to be suspended."""


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """The attempts are over: with an outcome, suspended, or cancelled if there is neither."""

    outcome: AttemptOutcome | None = None
    suspended: str = ""
    last_text: str = ""


class NoFiles(msgspec.Struct, frozen=True, gc=False, tag="no_files"):
    """The host cannot get the files that the agent works on, so it has not begun."""

    error: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """An error of the host itself ended the attempts."""

    error: str


class Alive(msgspec.Struct, frozen=True, gc=False, tag="alive"):
    """The host lives. `waiting` are the placements that wait for something that may take long."""

    waiting: tuple[int, ...] = ()


class TakeSlot(msgspec.Struct, frozen=True, gc=False, tag="take_slot"):
    """The host wants a slot of a model's endpoint."""

    slot: int
    wanted: SlotRequest


class FreeSlot(msgspec.Struct, frozen=True, gc=False, tag="free_slot"):
    """The host does not use that slot any more, or does not want it."""

    slot: int
    use: SlotUse


class LimitsSaid(msgspec.Struct, frozen=True, gc=False, tag="limits"):
    """A server has said what is left of its limits per minute."""

    model: str
    limits: RateLimits


HostReport = Alive | TakeSlot | FreeSlot | LimitsSaid
"""What a host reports of itself, and not of an agent."""
AgentReport = (
    Recorded | Asked | Withdrawn | Released | Text | Progress | Paused | Ended | NoFiles | Failed
)
Report = AgentReport | HostReport


class Item(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One report of a host. `serial` is that of the placement; 0 for the host itself."""

    number: int
    serial: int
    report: Report


# Requests


class Draw(msgspec.Struct, frozen=True, gc=False, tag="draw"):
    """Reserve budget at the run. `seen` is what the host believes to be left."""

    amount: Resources
    keep: Resources
    overdraft_tokens: int
    seen: Shared


class Approve(msgspec.Struct, frozen=True, tag="approve"):
    """Ask the user. `number` is that of the item with the request's fact."""

    number: int
    request: ApprovalRequest


class CheckWork(msgspec.Struct, frozen=True, gc=False, tag="check_work"):
    pass


class EnterAttempt(msgspec.Struct, frozen=True, gc=False, tag="enter_attempt"):
    """Begin an attempt that may have children."""

    resumed: bool
    continued: bool


class LeaveAttempt(msgspec.Struct, frozen=True, gc=False, tag="leave_attempt"):
    suspended: str = ""
    failed: bool = False
    timed_out: bool = False


class HasNews(msgspec.Struct, frozen=True, gc=False, tag="has_news"):
    pass


class TakeEnded(msgspec.Struct, frozen=True, gc=False, tag="take_ended"):
    pass


class TakeRunning(msgspec.Struct, frozen=True, gc=False, tag="take_running"):
    pass


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    request: SpawnRequest
    call: CallInfo


class AwaitJobs(msgspec.Struct, frozen=True, tag="await_jobs"):
    job_ids: str
    call: CallInfo


class Delegate(msgspec.Struct, frozen=True, tag="delegate"):
    plan: str
    subtasks: Sequence[Subtask]
    call: CallInfo


class RunRace(msgspec.Struct, frozen=True, tag="run_race"):
    request: RaceRequest
    call: CallInfo


class SendMessage(msgspec.Struct, frozen=True, gc=False, tag="send_message"):
    id: str
    text: str


class CancelChild(msgspec.Struct, frozen=True, tag="cancel_child"):
    id: str
    call: CallInfo


class ReadResult(msgspec.Struct, frozen=True, gc=False, tag="read_result"):
    id: str
    start: int


class Remember(msgspec.Struct, frozen=True, gc=False, tag="remember"):
    kind: str
    text: str


class Recall(msgspec.Struct, frozen=True, gc=False, tag="recall"):
    query: str
    kind: str | None
    limit: int


class GetCommits(msgspec.Struct, frozen=True, gc=False, tag="get_commits"):
    """Send the commits of `PlacedFiles` to a host that has the commits `have`."""

    have: Sequence[str]


class GetChanges(msgspec.Struct, frozen=True, gc=False, tag="get_changes"):
    """Send what others have changed of the agent's files, which are those of `commit`."""

    commit: str


class GetHistory(msgspec.Struct, frozen=True, gc=False, tag="get_history"):
    """Send the user's commits, unless the hash of their names is still `known`."""

    have: Sequence[str]
    known: str


class PutFiles(msgspec.Struct, frozen=True, gc=False, tag="put_files"):
    """Take over the changes of the agent's files since the commit `before`."""

    bundle: str
    before: str
    commit: str


Request = (
    GetCommits
    | GetChanges
    | GetHistory
    | PutFiles
    | Draw
    | Approve
    | CheckWork
    | EnterAttempt
    | LeaveAttempt
    | HasNews
    | TakeEnded
    | TakeRunning
    | Spawn
    | AwaitJobs
    | Delegate
    | RunRace
    | SendMessage
    | CancelChild
    | ReadResult
    | Remember
    | Recall
)


class SentFiles(msgspec.Struct, frozen=True, gc=False):
    """Files of the agent: what differs between `commit` and `base` is its work."""

    commit: str
    base: str
    bundle: str = ""
    """Name of the file with the commits; "" if there is none."""


class Drawn(msgspec.Struct, frozen=True, gc=False):
    """With neither flag, less is left than the host believed: it computes its worst case again."""

    granted: bool = False
    refused: str = ""
    limit: str = ""


class Approval(msgspec.Struct, frozen=True):
    allowed: bool
    rule: Rule | None = None
    reason: str | None = None


class Checked(msgspec.Struct, frozen=True):
    problem: str
    checks: tuple[Check, ...]


# From the run to a host


class PlacedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of an agent, for a host that does not see them."""

    project: ProjectFacts
    commit: str
    base: str
    """What differs from this commit is the work of the agent."""
    since: str | None
    """The commit that the history of one that only reads compares with; "" for the user's last."""
    name: str
    """Name of its working copy; "" if it only reads, in a copy that it shares with others."""


class Place(msgspec.Struct, frozen=True, kw_only=True, tag="place"):
    """Run the attempts of an agent, from what is recorded of it."""

    serial: int
    contract: msgspec.Raw
    events: Sequence[Event]
    """All of the agent's events: the first is its creation."""
    parent_path: str
    parent_depth_left: int
    """`max_delegation_depth` of its parent."""
    tree: TreeLocation
    files: PlacedFiles | None
    """For a host that does not see `tree`."""
    inbox: Sequence[tuple[str, str]]
    remembered: bool
    tainted: bool
    read_untrusted: bool
    answers: Mapping[str, ApprovalDecided]
    """What the user has answered to its ancestors."""
    earlier_messages: tuple[Message, ...]
    changes_since: str
    window: int | None
    max_output: int | None
    price: Price | None
    pool_price: PoolPrice | None
    rules: Rules
    attended: bool
    max_parallel_calls: int
    wants_text: bool
    checks_work: bool
    may_spawn: bool
    has_memory: bool
    model_answered: bool
    """Whether its model has answered in this run."""
    draws: bool
    """Whether its budget is reserved at the run."""
    left: Shared
    """What ancestors with limits have left."""
    below: Shared
    """What its descendants have spent."""
    child_calls: int
    suspension: str | None
    suspension_raises: bool
    stop_reason: str | None


class Answered(msgspec.Struct, frozen=True, tag="answered", kw_only=True):
    """The answer to a request, and what the run knows of the agent meanwhile."""

    serial: int
    request: int
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    """`Name: message` of an exception that the host raises again."""
    tainted: bool = False
    read_untrusted: bool = False
    child_calls: int = 0
    below: Shared = (0, 0, 0)
    left: Shared = (0, 0, 0)


class Tell(msgspec.Struct, frozen=True, gc=False, tag="tell"):
    serial: int
    source: str
    text: str


class Stop(msgspec.Struct, frozen=True, gc=False, tag="stop"):
    """Stop the agent for good, with an outcome."""

    serial: int
    reason: str


class Suspend(msgspec.Struct, frozen=True, gc=False, tag="suspend"):
    serial: int
    reason: str
    raises: bool


class Cancel(msgspec.Struct, frozen=True, gc=False, tag="cancel"):
    """Cancel the attempts, without an outcome."""

    serial: int


class Acknowledged(msgspec.Struct, frozen=True, gc=False, tag="acknowledged"):
    """Everything up to that number is recorded durably, or refused."""

    upto: int


class Heard(msgspec.Struct, frozen=True, gc=False, tag="heard"):
    """All reports up to `upto` have arrived, recorded or not yet."""

    upto: int


class SlotAnswered(msgspec.Struct, frozen=True, gc=False, tag="slot"):
    """The host has the slot, for the model at `index` of its request; or `error` says why not."""

    slot: int
    index: int = 0
    error: str = ""


HostCommand = Acknowledged | Heard | SlotAnswered
Command = Place | Answered | Tell | Stop | Suspend | Cancel | HostCommand

encode = msgspec.json.Encoder().encode
decode_items = msgspec.json.Decoder(list[Item]).decode
decode_command = msgspec.json.Decoder(Command).decode
