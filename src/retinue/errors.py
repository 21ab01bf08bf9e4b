"""Every exception retinue raises on purpose, grouped by who must act.

RetinueError
├─ UsageError            the developer or the person at the terminal
│  ├─ ConfigError        a settings file, a model name, a role
│  │  └─ MissingExtra    a part that is installed on wish
│  ├─ ContractError      a contract that cannot be written
│  └─ PlanError          a plan that cannot be carried out
├─ RunError              the parent
│  ├─ BudgetExceeded
│  ├─ IllegalTransition
│  └─ ApprovalNeeded     nobody was there to answer
├─ ModelError            the retry policy
│  ├─ RateLimited
│  ├─ ContextOverflow
│  ├─ ModelTimeout
│  ├─ ModelStuck
│  └─ ProviderError
│     ├─ RequestRefused  the server will not take the request as it is written
│     ├─ Overloaded      the server has too much to do, or is not ready yet
│     └─ Unreachable     nobody answers there
├─ WorkspaceError        the operator
│  └─ GitError
└─ StoreError            the operator
   ├─ StoreLocked
   ├─ StoreFull
   ├─ StoreReadOnly
   ├─ SchemaTooNew
   ├─ UnknownRun
   └─ ChainBroken

ToolFailure              goes back to the model as a tool result; never ends a child
"""

from __future__ import annotations


class RetinueError(Exception):
    """The root of everything a caller may want to catch."""


class UsageError(RetinueError):
    """The call or the command line is wrong; nothing was started."""


class ConfigError(UsageError):
    """A setting, a model name or a role cannot be used as it is written."""


class MissingExtra(ConfigError):
    """What was asked for needs a part that is not installed; the text says which, and how."""


class ContractError(UsageError):
    """A contract with these terms must not exist."""


class PlanError(UsageError):
    """A plan cannot be carried out. `problems` has a line for each thing that is wrong with it.

    `draft` is that plan, as far as it could be read.
    """

    def __init__(
        self, message: str, *, problems: tuple[str, ...] = (), draft: object = None
    ) -> None:
        super().__init__(message)
        self.problems = problems
        self.draft = draft


class RunError(RetinueError):
    """Something the parent of an agent has to decide about."""


class BudgetExceeded(RunError):
    """A reservation does not fit what is left. `limit` is the field's name, such as max_tokens."""

    def __init__(self, message: str, *, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class IllegalTransition(RunError):
    """A lifecycle move that the table does not have."""


class ApprovalNeeded(RunError):
    """An act needs a person's consent and no person can be asked."""


class ModelError(RetinueError):
    """A model call failed. `retryable` says whether the same call may succeed later.

    `held` is set by a model that sees to it itself that the next try waits as long as it must: that
    one may be made at once, and does not count.
    """

    retryable = False
    held = False

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(ModelError):
    retryable = True


class ContextOverflow(ModelError):
    """The prompt is larger than the model's window; sending it again cannot help."""


class ModelTimeout(ModelError):
    """The server accepted the call and then went silent."""

    retryable = True


class ModelStuck(ModelError):
    """The model repeats a call that cannot work; from the beginning it may do better."""

    retryable = True


class ProviderError(ModelError):
    """Anything else the server did wrong."""

    def __init__(
        self, message: str, *, retryable: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.retryable = retryable


class RequestRefused(ProviderError):
    """The server will not take the request as it is written; written otherwise it might."""


class Overloaded(ProviderError):
    """The server is there, and says that it has too much to do or is not ready yet."""


class Unreachable(ProviderError):
    """Nobody answers at the endpoint, or nothing between here and there lets us through."""


class WorkspaceError(RetinueError):
    """The files or processes under an agent are not as they must be."""


class GitError(WorkspaceError):
    """git could not do what must work; the text has what it said."""


class StoreError(RetinueError):
    """The journal cannot be read or written."""


class StoreLocked(StoreError):
    """Another process holds the write lock for too long."""


class StoreFull(StoreError):
    """The disk (or the quota) has no room left."""


class StoreReadOnly(StoreError):
    """The file or its folder cannot be written."""


class SchemaTooNew(StoreError):
    """The database was written by a later version of retinue."""


class UnknownRun(StoreError):
    """No run of that id is in this store."""


class ChainBroken(StoreError):
    """The journal is not what was written. `seq` is the first event that does not fit."""

    def __init__(self, message: str, *, seq: int = 0) -> None:
        super().__init__(message)
        self.seq = seq


class ToolFailure(Exception):
    """A tool could not do what it was asked; the text is written for the model to act on."""
