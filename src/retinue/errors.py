"""Every exception that retinue raises on purpose, grouped by who must act.

RetinueError
├─ UsageError            the developer, or the person at the terminal
│  ├─ ConfigError        a settings file, a model name, a role
│  │  └─ MissingExtra    an optional part that is not installed
│  ├─ ContractError      a contract that cannot be drafted
│  │  └─ OutOfBudget     the parent has nothing left that a child could use
│  └─ PlanError          a plan that cannot be run
├─ RunError              the parent agent, or the user or program that started the run
│  ├─ BudgetExceeded
│  ├─ IllegalTransition
│  ├─ RecoveryError      a run that cannot be resumed
│  ├─ RunSuspended       a model endpoint is gone; the run can be resumed
│  └─ ApprovalNeeded     no person could be asked
├─ ModelError            the retry policy
│  ├─ RateLimited
│  ├─ ContextOverflow
│  ├─ ModelTimeout
│  ├─ ModelStuck
│  └─ ProviderError
│     ├─ RequestRefused  the server rejects the request as it is written
│     ├─ EmptyReply      the server replies without any content
│     ├─ Overloaded      the server is busy, or not ready yet
│     ├─ EndpointUnusable  the server refuses every request: a wrong key, no credit
│     │  └─ UnknownModel   the server has no model of that name
│     └─ Unreachable     no connection to the server
├─ WorkspaceError        the operator
│  └─ GitError
└─ StoreError            the operator
   ├─ StoreLocked
   ├─ StoreFull
   ├─ StoreReadOnly
   ├─ TakenOver          another process has resumed the run
   ├─ SchemaTooNew
   ├─ UnknownRun
   └─ ChainBroken

ToolFailure              goes back to the model as a tool result; never ends an agent

```python
try:
    result = await rt.spawn("researcher", "Look around.", max_tool_calls=-1)
except retinue.errors.UsageError as error:
    print(error)  # the call is wrong, and nothing was started
except retinue.errors.RunSuspended as error:
    print(error)  # the model is gone; `rt.resume` continues the run
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "ApprovalNeeded", "BudgetExceeded", "ChainBroken", "ConfigError", "ContextOverflow",
    "ContractError", "EmptyReply", "EndpointUnusable", "GitError", "IllegalTransition",
    "MissingExtra", "ModelError", "ModelStuck", "ModelTimeout", "OutOfBudget", "Overloaded",
    "PlanError", "ProviderError", "RateLimited", "RecoveryError", "RequestRefused",
    "RetinueError", "RunError", "RunSuspended", "SchemaTooNew", "StoreError", "StoreFull",
    "StoreLocked", "StoreReadOnly", "TakenOver", "ToolFailure", "UnknownModel", "UnknownRun",
    "Unreachable", "UsageError", "WorkspaceError",
]  # fmt: skip


class RetinueError(Exception):
    """Base class of everything that a caller may want to catch.

    ```python
    try:
        await rt.spawn("resercher", "Look around.")
    except retinue.RetinueError as error:
        assert "resercher" in str(error)
    ```
    """


class UsageError(RetinueError):
    """The call or the command line is wrong; nothing was started."""


class ConfigError(UsageError):
    """A setting, a model name or a role is wrong."""


class MissingExtra(ConfigError):
    """An optional part is not installed. The text says which, and how to install it."""


class ContractError(UsageError):
    """No contract can be drafted from this. `shown` is a text for people, as in `ToolFailure`."""

    def __init__(self, text: str, *, shown: str = "") -> None:
        super().__init__(text)
        self.shown = shown


class OutOfBudget(ContractError):
    """The parent has nothing left that a child could use."""


class PlanError(UsageError):
    """A plan cannot be run. `problems` has a line for each mistake.

    `plan` is the plan, as far as it could be read.
    """

    def __init__(
        self, message: str, *, problems: tuple[str, ...] = (), plan: object = None
    ) -> None:
        super().__init__(message)
        self.problems = problems
        self.plan = plan


class RunError(RetinueError):
    """An agent or a run cannot continue. Its parent, or the user or program, has to decide."""


class BudgetExceeded(RunError):
    """A reservation exceeds a limit. `limit` is the name of the limit, such as max_tokens."""

    def __init__(self, message: str, *, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class IllegalTransition(RunError):
    """A change of state that the lifecycle does not allow."""


class RecoveryError(RunError):
    """A run cannot be resumed."""


class RunSuspended(RunError):
    """A model endpoint is gone, so the run waits for it. `Runtime.resume` continues the run.

    The text says which agent waits for which model, and why. `results` has the results of the tasks
    or steps that are done, in their order.
    """

    def __init__(self, message: str, *, run_id: str = "", results: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.results = tuple(results)


class ApprovalNeeded(RunError):
    """An action needs a person's yes, and no person can be asked."""


class ModelError(RetinueError):
    """A model call failed. `retryable` says whether the same call may succeed later.

    `held` means that the model itself delays the next request as long as necessary: the caller may
    retry at once, and the retry does not count. `received_tokens` estimates what had arrived of a
    reply that broke off; None if the server had not begun to work on it, and so bills nothing.
    """

    retryable = False
    held = False
    received_tokens: int | None = None

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    @property
    def endpoint_failed(self) -> bool:
        """Whether the endpoint fails, so that other requests would fail too.

        False for an error that is about the content of this request.
        """
        return self.retryable


class RateLimited(ModelError):
    """The server asks for fewer requests. The call is repeated after a while."""

    retryable = True


class ContextOverflow(ModelError):
    """The prompt is larger than the model's context window; a retry cannot help."""


class ModelTimeout(ModelError):
    """The server accepted the request and stopped sending."""

    retryable = True


class ModelStuck(ModelError):
    """The model repeats a tool call that cannot work; a new attempt may do better."""

    retryable = True
    endpoint_failed = False


class ProviderError(ModelError):
    """The server failed in another way."""

    def __init__(
        self, message: str, *, retryable: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.retryable = retryable


class RequestRefused(ProviderError):
    """The server rejects the request as it is written; another form may work."""


class EmptyReply(ProviderError):
    """The server replies without any content, as some do if the prompt does not fit."""

    endpoint_failed = False


class Overloaded(ProviderError):
    """The server answers that it is busy or not ready yet."""

    endpoint_failed = True


class EndpointUnusable(ProviderError):
    """The server refuses every request until a person acts: a wrong key, no credit, no model."""

    endpoint_failed = True


class UnknownModel(EndpointUnusable):
    """The server has no model of that name, or no API at that address."""


class Unreachable(ProviderError):
    """No connection to the endpoint: nothing listens, or a network or proxy is in the way."""

    endpoint_failed = True


class WorkspaceError(RetinueError):
    """Files, git or a command of an agent failed."""


class GitError(WorkspaceError):
    """git failed; the text has its message."""


class StoreError(RetinueError):
    """The journal cannot be read or written."""


class StoreLocked(StoreError):
    """Another process held the write lock for too long."""


class StoreFull(StoreError):
    """The disk or the quota is full."""


class StoreReadOnly(StoreError):
    """The file or its folder cannot be written."""


class TakenOver(StoreError):
    """Another process has resumed the run, so this one may not write its journal any more."""


class SchemaTooNew(StoreError):
    """The database was written by a later version of retinue."""


class UnknownRun(StoreError):
    """The store has no run of that id."""


class ChainBroken(StoreError):
    """The journal was changed after it was written. `seq` is the first event that differs."""

    def __init__(self, message: str, *, seq: int = 0) -> None:
        super().__init__(message)
        self.seq = seq


class ToolFailure(Exception):
    """A tool could not do what it was asked. The text tells the model what to do.

    `shown` is the text for people, if the other one advises the model. `quoted` is what a foreign
    server, `source`, said about it. Models read it as untrusted text.
    """

    def __init__(self, text: str, *, shown: str = "", quoted: str = "", source: str = "") -> None:
        super().__init__(text)
        self.shown = shown
        self.quoted = quoted
        self.source = source
