"""The seams: what the runtime needs from the world, as plain protocols.

Adapters implement these without importing each other; `app` puts them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import msgspec

from retinue.domain.approval import Rule, Wish
from retinue.domain.events import Event
from retinue.domain.grant import Grant, Network
from retinue.domain.lifecycle import State
from retinue.domain.messages import Effect, Reply, Request, ToolSpec
from retinue.domain.plan.forecast import Used
from retinue.domain.reach import Reach
from retinue.domain.result import Conflict, FileChange
from retinue.domain.scope import Groups
from retinue.domain.served import Load, Served


class Lapse(NamedTuple):
    """Time that is not what it seems: in which this process could not run, or that was set."""

    stalled_s: float = 0.0
    jumped_s: float = 0.0


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, for the journal."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward, for durations and deadlines."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """A context manager that raises TimeoutError when `seconds` have passed inside it."""
        ...

    def watch(self, told: Callable[[Lapse], None]) -> AbstractContextManager[None]:
        """While inside, `told` hears when nothing here could run, or the time of day has jumped.

        What `timeout` has given out ends that much later: whoever could not run was not slow.
        """
        ...


class Model(Protocol):
    """Something that answers. One instance serves any number of agents at once."""

    @property
    def name(self) -> str:
        """What the user calls it, such as `openai:qwen3@http://127.0.0.1:8080/v1`. No secrets."""
        ...

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        """Answer, or raise a ModelError. Text is given to `on_text` as it arrives.

        An empty text is a sign of life: of a model that thinks, or of a queue before it.
        """
        ...

    async def aclose(self) -> None: ...


class Servers(Protocol):
    """What is known of the servers behind the names of models."""

    async def served(self, model: str) -> Served | None:
        """What the server says of that model; it is asked once. None if it does not tell."""
        ...

    def known(self, model: str) -> Served | None:
        """The same without asking: None until it was asked."""
        ...

    def loads(self) -> Sequence[Load]:
        """How busy the endpoints are that may be asked."""
        ...


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One name in a folder. `kind` is file, dir, link or other."""

    name: str
    kind: str
    size_bytes: int = 0


class Match(msgspec.Struct, frozen=True, gc=False):
    path: str
    line: int
    text: str


class Written(msgspec.Struct, frozen=True, gc=False):
    """`path` is the one spelling of it; `before` what was there; `program`: can it be executed?"""

    change: FileChange
    before_sha256: str | None
    after_sha256: str
    path: str = ""
    before: bytes | None = None
    program: bool = False


class Workspace(Protocol):
    """The files an agent acts on. Paths are relative and never leave the root.

    What cannot be done raises ToolFailure with a text for the model. Methods block; callers that
    must not wait run them in a thread.
    """

    @property
    def root(self) -> str: ...

    def reach(self, write_scope: Groups, network: Network = Network.NONE) -> Reach:
        """What is within reach of an agent that works in it."""
        ...

    def inside(self, path: str) -> str | None:
        """The one spelling of a path, however it is written; None if it leads outside.

        What is checked against a write scope must be this one: it is what will be opened.
        """
        ...

    def read(self, path: str, *, max_bytes: int) -> bytes: ...

    def read_now(self, path: str, *, max_bytes: int) -> bytes | None:
        """The file if it can be had without waiting for a disk or a network, else None."""
        ...

    def list_now(self, path: str) -> Sequence[Entry] | None:
        """The directory if it can be had without waiting, else None."""
        ...

    def list(self, path: str) -> Sequence[Entry]: ...

    def find(self, pattern: str, *, under: str, limit: int) -> tuple[Sequence[str], bool]:
        """Files whose path matches a glob, sorted; and whether there were more."""
        ...

    def search(
        self, pattern: str, *, under: str, glob: str | None, limit: int
    ) -> tuple[Sequence[Match], bool]:
        """Lines that match a regular expression; and whether there were more."""
        ...

    def fingerprint(self, under: str) -> str:
        """A hash that changes when a file is added, removed or touched that a search would see."""
        ...

    def write(self, path: str, data: bytes) -> Written: ...


class Completed(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How a command ended. A non-zero exit is a result."""

    exit_code: int
    output: str
    truncated_bytes: int = 0
    timed_out: bool = False
    changed: tuple[FileChange, ...] = ()
    """What it did to the files of the project, as far as anybody has looked."""


class Sandbox(Protocol):
    @property
    def tier(self) -> str:
        """full, reduced or none."""
        ...

    @property
    def relocates(self) -> bool:
        """Do commands see files where `Reach.seen_at` says, and what is lent to them?"""
        ...

    async def run(
        self, command: str, *, reach: Reach, timeout_s: float, max_output_bytes: int
    ) -> Completed:
        """Run a shell command at the root of its reach, and confine it to that.

        A non-zero exit is a result, never an exception; WorkspaceError if it cannot be confined.
        """
        ...


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What a child has made of its copy.

    `paths` are those it has changed, from the directory that it works in; what lies outside begins
    with `..`. `problems` say why some of it can never be integrated.
    """

    commit: str
    files: tuple[FileChange, ...] = ()
    paths: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Merge(msgspec.Struct, frozen=True, kw_only=True):
    """Two commits made one; where they contradict each other, the files have markers."""

    commit: str
    conflicts: tuple[Conflict, ...] = ()


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a tree. `commit` keeps it as a step; nothing was done if some is `refused`."""

    commit: str = ""
    files: tuple[FileChange, ...] = ()
    refused: tuple[str, ...] = ()


class Steps(Protocol):
    """Where the changes of the user's tree are counted and put on record. Safe in any thread."""

    @property
    def run_id(self) -> str: ...

    def number(self) -> int:
        """The number of the next step of the run."""
        ...

    def made(self, number: int, commit: str, files: tuple[FileChange, ...]) -> None:
        """The step is in the tree, and `commit` keeps it."""
        ...


class KeptChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the user's files, whether it is in them or not.

    `kind` says so: `steps` were made and `undone` were taken back, and their `name` is a number;
    `kept` is the work of an agent that failed and `made` such work that the user wanted after all,
    and their `name` is the agent's id.
    """

    run_id: str
    kind: str
    name: str
    commit: str
    title: str = ""

    @property
    def number(self) -> int | None:
        return int(self.name) if self.kind in ("steps", "undone") else None


class History(Protocol):
    """The changes of the user's files, which can be looked at, taken back and made again."""

    async def kept(self, run_id: str) -> Sequence[KeptChange]:
        """All changes of a run, in the order in which they were made."""
        ...

    async def patch(self, change: KeptChange) -> str:
        """It as a unified diff."""
        ...

    async def undo(self, changes: Sequence[KeptChange]) -> Applied:
        """Take these out of the files, the last first. What others did since stays, or is refused.

        It is all of them or none. So is `redo`. Whoever does it a second time changes nothing.
        """
        ...

    async def redo(self, changes: Sequence[KeptChange]) -> Applied: ...

    async def mark(self, changes: Sequence[KeptChange], *, undone: bool) -> None:
        """Keep them as undone from now on, or as made."""
        ...


class Ground(Protocol):
    """A tree of files: the user's, or the copy of one agent. Its children's work goes into it.

    Commits are made in a private place; the user's repository is read and never written. What
    cannot be done raises WorkspaceError.
    """

    def workspace(self, directory: str) -> Workspace:
        """The files of a directory of the project, in this tree."""
        ...

    async def why_no_copies(self) -> str:
        """Why children cannot have copies of their own here; "" if they can."""
        ...

    async def state(self, after: str | None) -> str:
        """A commit of the tree as it is now; `after` itself if that is the same."""
        ...

    async def copy(self, base: str, *, name: str, directory: str) -> Copy:
        """A copy of `base` for an agent to work in."""
        ...

    async def reopen(self, base: str, *, name: str, directory: str) -> Copy:
        """The copy of that name, as another process has left it."""
        ...

    async def discard(self, names: Sequence[str]) -> None:
        """Remove the copies of these names that another process has left."""
        ...

    async def merge(self, head: str, commit: str, *, base: str, message: str) -> Merge:
        """`head` with what `commit` has over `base`."""
        ...

    async def settle(self, commit: str, *, parents: Sequence[str], message: str) -> str:
        """The merge of `parents` as it is in `commit`, where somebody has settled its conflicts."""
        ...

    async def apply(self, base: str, commit: str, steps: Steps | None, *, message: str) -> Applied:
        """Bring what `commit` has over `base` into the tree, beside what others did meanwhile."""
        ...

    async def keep(
        self, base: str, commit: str, *, run_id: str, agent_id: str, message: str
    ) -> None:
        """Keep work that was not integrated, for the user to look at."""
        ...

    def recorded(
        self, workspace: Workspace, sandbox: Sandbox | None, directory: str, steps: Steps | None
    ) -> tuple[Workspace, Sandbox | None]:
        """The same, but each change of the tree becomes a step, and commands tell of theirs."""
        ...


class Copy(Ground, Protocol):
    """An agent's own copy. It is in use until it is removed."""

    async def propose(self, *, message: str) -> Proposal:
        """All that has changed in it, whoever or whatever did it."""
        ...

    async def remove(self) -> None: ...

    def let_go(self) -> None:
        """Leave it to whoever reopens it."""
        ...

    def leave(self) -> str:
        """Leave it to the user, since the work in it cannot be had otherwise; where it is."""
        ...


class Subtask(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    # A comment and not a docstring, which would cost tokens in the schema that is made of this: one
    # step of a `delegate_task`; `depends_on` are indices of earlier steps, from 0.
    task: str
    role: str | None = None
    scope: str | list[str] | None = None
    depends_on: int | list[int] | None = None


class Errand(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a model asks for when it spawns a child, as it asked for it."""

    task: str
    role: str | None = None
    profile: str | None = None
    scope: str | list[str] | None = None
    context: str | None = None
    context_files: list[str] | str | None = None
    tools: list[str] | str | None = None
    mode: str | None = None
    model: str | None = None
    endpoint: str | None = None
    system_prompt: str | None = None
    output_schema: dict[str, Any] | str | None = None
    max_tool_calls: int | None = None
    max_turns: int | None = None
    max_tokens: int | None = None
    timeout_s: float | None = None
    background: bool = False


class Call(msgspec.Struct, frozen=True):
    """A tool call that is being made."""

    name: str = ""
    """No other of its agent's is called so."""
    room_tokens: int = 2_000
    """How long an answer there is room for, beside those to the other calls of the turn."""


class Delegation(Protocol):
    """What an agent can do with children. Everything is answered in words; nothing raises."""

    async def spawn(self, errand: Errand, call: Call) -> Outcome:
        """`call` is the one that asks. Where its child is there already, that one is meant."""
        ...

    async def wait(self, job_ids: str, call: Call) -> Outcome: ...

    async def delegate(self, plan: str, subtasks: Sequence[Subtask], call: Call) -> Outcome: ...

    async def message(self, id: str, text: str) -> Outcome: ...

    async def cancel(self, id: str, call: Call) -> Outcome: ...

    async def result(self, id: str, start: int) -> Outcome: ...


Ask = Callable[[str, str], Awaitable[str]]
"""Put a question to the user: (path of who asks, question) -> answer."""


class Hands(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool is given to act with."""

    workspace: Workspace
    sandbox: Sandbox | None
    reach: Reach
    agent_id: str
    path: str = ""
    """Where the agent is in the tree, such as `root/tester.2`."""
    directory: str = ""
    """Where it is told that it works: where its commands find the files."""
    delegation: Delegation | None = None
    ask: Ask | None = None
    vault: Vault | None = None
    run_id: str = ""
    call: Call = Call()
    """The call that is made, for who has children."""
    depth: int = 0
    """How far below the root; a child has more than 0."""
    remembered: bool = False
    """Whether the result may be used again, so that it must be known what was looked at."""
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    """To be inside of while silence is no sign of anything, since something else limits it."""


class Outcome(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a tool did: the text for the model, and the facts for the receipt."""

    content: str
    ok: bool = True
    acted: bool = False
    """Whether it did what was asked, although that came to nothing: sending it again may help."""
    read: tuple[str, ...] = ()
    changed: tuple[FileChange, ...] = ()
    before_sha256: str | None = None
    after_sha256: str | None = None
    command: str | None = None
    exit_code: int | None = None
    about: tuple[str, ...] = ()
    """The children in the background whose end it tells of."""
    untrusted: bool = False
    """Whether the text is somebody else's: from the network, or a tool that nobody vouches for."""


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    def spec_for(self, grant: Grant) -> ToolSpec:
        """The spec as an agent with that grant sees it; mostly just `spec`."""
        ...

    @property
    def effect(self) -> Effect: ...

    async def run(self, arguments: Mapping[str, Any], hands: Hands) -> Outcome:
        """Act. ToolFailure is for the model; any other exception is turned into one."""
        ...


class NewAgent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The row of an agent at its birth."""

    run_id: str
    agent_id: str
    parent_agent_id: str | None
    step_idx: int
    path: str
    role: str
    context_json: str
    """Its contract, in the one way there is to write it."""
    cache_key: str | None = None
    """What it was asked, as one key: agents with the same one can stand in for each other."""


class RunRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    id: str
    kind: str
    task: str
    status: str | None
    started_at: float
    finished_at: float | None
    agents: int
    head_seq: int
    head_hash: str
    epoch: int
    """How often it was begun or resumed."""
    session: str | None
    """The id of the first run of its session; None for a run that a program leads."""
    pruned: bool = False
    """Whether only its outcome is left of its journal."""


class AgentRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    run_id: str
    id: str
    parent_agent_id: str | None
    path: str
    role: str
    state: State
    context_json: str


class Memory(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One thing remembered. `kind` says whose it is: children's are `sub_agent_result`."""

    id: int
    kind: str
    text: str
    time: float
    run_id: str
    agent_id: str


class Vault(Protocol):
    """What is remembered across runs."""

    async def remember(self, *, kind: str, text: str, run_id: str, agent_id: str) -> int:
        """Keep `text`; answers its id. UsageError for a kind or a text that cannot be kept.

        A kind is 1 to 40 of a-z and _, and a text has something in it.
        """
        ...

    async def recall(self, query: str, *, kind: str | None = None, limit: int = 5) -> list[Memory]:
        """The memories that fit `query` best; the latest for an empty one."""
        ...


class Reports(Protocol):
    """Where the reports of steps are written for people to read."""

    def keep(self, path: str, text: str) -> None:
        """Write `text` soon, to `path` in the project."""
        ...

    async def drained(self) -> None:
        """Return when everything kept is written."""
        ...


class Store(Protocol):
    """Where journals live.

    `append` returns at once and never fails; `flush` waits until everything appended before it is
    durable, and raises the StoreError that has happened, if one has. Other processes may read.

    `run.pruned` takes the place of all events of its run before it, and of its agents.
    """

    def append(self, event: Event, born: NewAgent | None = None) -> None:
        """Add an event to its journal and, at its birth, the agent; both are written or none."""
        ...

    async def flush(self) -> None: ...

    async def events(
        self, run_id: str, *, after: int = 0, limit: int = 10_000
    ) -> Sequence[Event]: ...

    async def agent_events(self, run_id: str, agent_id: str) -> Sequence[Event]:
        """The events of one agent, in order."""
        ...

    async def runs(self, *, limit: int = 50) -> Sequence[RunRow]: ...

    async def run(self, run_id: str) -> RunRow:
        """The run of that id, or of that unique beginning of an id; else UnknownRun."""
        ...

    async def session(self, run_id: str | None = None) -> Sequence[RunRow]:
        """The runs of the session that a run is part of, oldest first; of the latest session.

        As in `run`, a beginning of the id is enough. UnknownRun if there is no such session.
        """
        ...

    async def agents(self, run_id: str) -> Sequence[AgentRow]: ...

    async def cached(self, cache_key: str, *, limit: int = 3) -> Sequence[tuple[str, str]]:
        """(run id, agent id) of closed agents of that key, latest first; how is in their events."""
        ...

    async def history(self, role: str, *, limit: int = 12) -> Sequence[Used]:
        """What the latest closed agents of a role have used."""
        ...

    async def cache_keys(self) -> frozenset[str]:
        """The keys there are: those that are worth a `cached`."""
        ...

    async def aclose(self) -> None:
        """Make everything durable and let go of the file."""
        ...


class Post(Protocol):
    """Where the process that works on a run is reached."""

    def heard(self) -> Sequence[str]:
        """What others have said since this was asked last."""
        ...

    def leave(self) -> None: ...


class Posts(Protocol):
    """Who works on which run, of all processes that share a journal."""

    def take(self, run_id: str) -> Post:
        """Be the one who works on that run, for as long as this process lives or until it leaves.

        RunError if a living process does already. Where it cannot be made known who does, the post
        hears nothing, and the journal alone keeps a second one out.
        """
        ...

    def held(self, run_id: str) -> bool:
        """Does a living process work on that run?"""
        ...

    def send(self, run_id: str, words: str) -> bool:
        """Say a line to the process that works on a run; False if there is none."""
        ...


Approve = Callable[[Wish], Awaitable[bool | Rule]]
"""Ask a person: may it be done? The rule, where one answers that a person has said "always" to.

ApprovalNeeded if nobody is there."""
