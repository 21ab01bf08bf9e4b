"""Children of an agent, as its lifecycle and its loop see them.

`delegation.children.Children` implements this. The protocol keeps the agent package below the
package that spawns agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from retinue.domain.result import Result
from retinue.domain.resume_point import ResumePoint


class ChildJob(Protocol):
    """One child of the agent."""

    @property
    def id(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def outcome(self) -> Result:
        """The result of a child that has ended."""
        ...


class ChildJobs(Protocol):
    """The children of one agent."""

    def attempt(self, resume_point: ResumePoint | None) -> AbstractAsyncContextManager[None]:
        """Context of one attempt of the agent: no child outlives it.

        With `resume_point`, children that an earlier process created in the attempt are restored.
        """
        ...

    @property
    def has_news(self) -> bool:
        """Whether a background child has ended and its result was not delivered yet."""
        ...

    def take_ended(self) -> Sequence[ChildJob]:
        """Background children that have ended; each is returned once. Call it once per turn."""
        ...

    def take_running(self) -> Sequence[ChildJob]:
        """Background children that still run; empty when called again in the same attempt."""
        ...
