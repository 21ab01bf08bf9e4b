"""`Result`: what an agent returns, and the parts of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from retinue.domain.account import Resources
from retinue.domain.messages import Usage
from retinue.errors import RunError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # `Result` alone means any data.
    T = TypeVar("T", covariant=True, default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


class Status(StrEnum):
    """How an agent, a plan or a run ended.

    ```python
    result = await rt.spawn("researcher", "Look around.")
    match result.status:
        case retinue.Status.COMPLETED:
            print(result.response)
        case retinue.Status.BUDGET_EXCEEDED | retinue.Status.TIMEOUT:
            print("So far:", result.response)
    ```
    """

    COMPLETED = "completed"
    BUDGET_EXCEEDED = "budget_exceeded"
    TIMEOUT = "timeout"
    ERROR = "error"
    CANCELLED = "cancelled"
    CONFLICT = "conflict"
    REJECTED = "rejected"


class OnChildFailure(StrEnum):
    """What a failed child means for the run that a model leads."""

    ERROR = "error"
    """The run ends as error, unless the failure is settled."""
    IGNORE = "ignore"


class ChildFailure(msgspec.Struct, frozen=True, gc=False):
    """A child of a run's root that did not complete.

    ```python
    run = await rt.run("Look around.")
    for failure in run.failures:
        print(failure.agent_id, failure.status, failure.error)
    ```
    """

    agent_id: str
    status: Status
    error: str

    def __str__(self) -> str:
        words = {Status.CONFLICT: "has a conflict", Status.REJECTED: "was rejected"}
        return f"{self.agent_id} {words.get(self.status, 'failed')}"


class FileChange(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How one file has changed: lines added and removed, and its hashes before and after.

    ```python
    change = retinue.FileChange(path="a.txt", added=3, removed=1)
    assert not change.new
    print(f"{change.path} +{change.added} -{change.removed}")
    ```
    """

    path: str
    added: int = 0
    removed: int = 0
    new: bool = False
    gone: bool = False
    before_sha256: str | None = None
    after_sha256: str | None = None

    def __str__(self) -> str:
        parts = [f"+{self.added}"] if self.added or not self.removed else []
        if self.removed:
            parts.append(f"-{self.removed}")
        lines = "/".join(parts) + (" line" if self.added + self.removed == 1 else " lines")
        what = ", new file" if self.new else ", removed" if self.gone else ""
        return f"{self.path} ({lines}{what})"


def merge_changes(earlier: FileChange | None, later: FileChange) -> FileChange:
    """Two changes of one file, one after the other, as one change."""
    if earlier is None:
        return later
    return FileChange(
        path=later.path,
        added=earlier.added + later.added,
        removed=earlier.removed + later.removed,
        new=earlier.new or later.new,
        gone=later.gone,
        before_sha256=earlier.before_sha256,
        after_sha256=later.after_sha256,
    )


class Receipt(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the runtime saw a tool do. The model cannot influence it.

    ```python
    result = await rt.spawn("researcher", "Look around.")
    for receipt in result.receipts:
        print(receipt.tool, receipt.ok, receipt.command, receipt.exit_code, receipt.read)
    ```
    """

    tool: str
    ok: bool
    output_sha256: str
    command: str | None = None
    exit_code: int | None = None
    read: tuple[str, ...] = ()
    changed: tuple[FileChange, ...] = ()
    before_sha256: str | None = None
    after_sha256: str | None = None
    untrusted: bool = False


class Conflict(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A file that two agents have changed. `ours` and `theirs` are the git ids of its versions.

    `ours` is the version of `sibling`, which is integrated already. `theirs` is the version of the
    agent that failed.

    ```python
    result = await rt.spawn("researcher", "Look around.")
    for conflict in result.conflicts:
        print(conflict.path, "was changed by", conflict.sibling)
    ```
    """

    path: str
    ours: str = ""
    theirs: str = ""
    sibling: str = ""

    def __str__(self) -> str:
        return f"{self.path} (also changed by {self.sibling})" if self.sibling else self.path


class Check(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """An acceptance check that the runtime ran. `output` is the end of what the command printed.

    ```python
    check = retinue.Check(command="pytest -q", exit_code=1, output_sha256="")
    assert not check.ok
    ```
    """

    command: str
    exit_code: int
    output_sha256: str
    output: str = ""
    timed_out: bool = False
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the command succeeded."""
        return self.exit_code == 0 and not self.timed_out

    def __str__(self) -> str:
        how = "timed out" if self.timed_out else f"exit code {self.exit_code}"
        return f"{self.command}: {'passed' if self.ok else f'failed ({how})'}"


class Spent(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What one agent, or a whole tree of agents, has used.

    ```python
    result = await rt.spawn("researcher", "Look around.")
    spent: retinue.Spent = result.usage
    print(spent.tokens, spent.billed_tokens, spent.cost_usd, spent.duration_s)
    ```
    """

    tool_calls: int = 0
    turns: int = 0
    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    duration_s: float = 0.0
    tokens_repeated: int = 0
    """Input tokens that an earlier request has had too; they do not count for `max_tokens`."""

    @classmethod
    def of(cls, spent: Resources, usage: Usage, duration_s: float) -> Spent:
        """The usage of an account that was charged `spent`, with the tokens and the time."""
        return cls(
            tool_calls=spent.tool_calls,
            turns=spent.turns,
            tokens_in=usage.tokens_in,
            tokens_cached=usage.tokens_cached,
            tokens_out=usage.tokens_out,
            cost_usd=usage.cost_usd,
            duration_s=duration_s,
            tokens_repeated=usage.tokens_repeated,
        )

    @property
    def tokens(self) -> int:
        """Each token once: what was read and written."""
        return self.tokens_in - self.tokens_repeated + self.tokens_out

    @property
    def billed_tokens(self) -> int:
        """All tokens of all requests, those that were sent again included."""
        return self.tokens_in + self.tokens_out


def total_spent(parts: Sequence[Spent], duration_s: float) -> Spent:
    """What several agents spent in `duration_s` together."""
    return Spent(
        tool_calls=sum(part.tool_calls for part in parts),
        turns=sum(part.turns for part in parts),
        tokens_in=sum(part.tokens_in for part in parts),
        tokens_cached=sum(part.tokens_cached for part in parts),
        tokens_out=sum(part.tokens_out for part in parts),
        cost_usd=sum(part.cost_usd for part in parts),
        duration_s=duration_s,
        tokens_repeated=sum(part.tokens_repeated for part in parts),
    )


NOT_AS_SCHEMA = "the answer does not fit the output schema"


class Result(msgspec.Struct, Generic[T], frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How one agent ended. `response` is its whole answer, `summary` the beginning of it.

    With `output=Invoice`, a call returns a `Result[Invoice]`, whose `data` is an `Invoice`, or None
    if the agent failed. A failed agent is a result too; `unwrap` raises for it.

    ```python
    result = await rt.spawn("researcher", "Where are links stored?", max_tool_calls=5)
    if result.ok:
        print(result.response, result.files_read, result.usage.tokens)
    else:
        print(result.status, result.error)
    ```
    """

    status: Status
    agent_id: str
    run_id: str
    role: str
    task: str
    summary: str = ""
    response: str = ""
    data: T | None = None
    """The answer as an object of the output type, or as JSON data if the output is a schema."""
    error: str | None = None
    cached: bool = False
    tainted: bool = False
    """Whether the agent or a descendant has read untrusted text."""
    notes: tuple[str, ...] = ()
    """How the contract was narrowed, and why."""
    usage: Spent = Spent()
    context_tokens: int = 0
    """Length of its conversation at the end, the answer included."""
    attempts: int = 1
    files_read: tuple[str, ...] = ()
    files_modified: tuple[FileChange, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    checks: tuple[Check, ...] = ()
    """The acceptance checks that ran on its work."""
    conflicts: tuple[Conflict, ...] = ()
    kept: bool = False
    """Whether changes that were not integrated are kept."""
    unverified: str = ""
    """The first claim in the answer that tests pass which no receipt or check supports."""

    @property
    def ok(self) -> bool:
        """Whether the agent completed its task."""
        return self.status is Status.COMPLETED

    def unwrap(self) -> T:
        """`data` of an agent that completed. Raises RunError if it failed."""
        if not self.ok:
            raise RunError(f"{self.role} {self.agent_id}: {self.status}: {self.error}")
        return self.data  # type: ignore[return-value]  # Without an output type, T is None.

    @property
    def is_prose(self) -> bool:
        """Whether the agent answered, and not in the form of its output schema."""
        return self.status is Status.ERROR and (self.error or "").startswith(NOT_AS_SCHEMA)

    @property
    def findings(self) -> tuple[str, ...]:
        """The `findings` of an answer that is data; else the items of the lists in the answer."""
        found = self.data.get("findings") if isinstance(self.data, dict) else None
        if isinstance(found, list):
            return tuple(str(item) for item in found)
        return tuple(_list_items(self.response))

    @property
    def calls_by_tool(self) -> dict[str, int]:
        """How often it called each tool, without calls that were denied."""
        return dict(Counter(receipt.tool for receipt in self.receipts))


_LIST_ITEM = re.compile(r"(?:[-*+•]|\d{1,3}[.)])\s+(?=\S)")
_FENCES = ("```", "~~~")


def _list_items(text: str) -> list[str]:
    """The items of the outer Markdown lists in `text`, one line each."""
    items: list[str] = []
    fenced = is_item = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith(_FENCES)
        if fenced:
            continue
        if marker := _LIST_ITEM.match(line):
            items.append(line[marker.end() :].strip())
            is_item = True
        elif is_item and line.startswith((" ", "\t")) and line.strip():
            items[-1] += f" {line.strip()}"
        else:
            is_item = False
    return items


def cap(text: str, tokens: int) -> tuple[str, bool]:
    """`text` cut to `tokens` (bytes / 4), at a line end if one is near; and whether it was cut."""
    limit = tokens * 4
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= limit:
        return text, False
    kept = data[:limit].decode("utf-8", "ignore")
    line_end = kept.rfind("\n")
    if line_end > len(kept) // 2:
        kept = kept[:line_end]
    return kept, True
