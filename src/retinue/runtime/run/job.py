"""`Job`: a program's handle of a child that runs in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from retinue.domain.result import Result, T
from retinue.runtime.agent.output_type import typed
from retinue.runtime.delegation.children import ChildJob


class Job(Generic[T]):
    """A child in the background, as `Runtime.start` returns it.

    `id` and `run_id` name the child in events and on the command line. When the runtime closes, a
    child that still runs is cancelled.
    """

    def __init__(self, job: ChildJob, convert: Callable[[Any], Any] | None) -> None:
        self._job = job
        self._convert = convert

    @property
    def id(self) -> str:
        """The id of the agent, such as `a3`."""
        return self._job.id

    @property
    def run_id(self) -> str:
        """The run that the agent belongs to."""
        return self._job.run_id

    @property
    def title(self) -> str:
        """The beginning of its task."""
        return self._job.title

    @property
    def done(self) -> bool:
        """Whether `result` returns at once."""
        return self._job.done

    def cancel(self, reason: str = "cancelled by the program") -> None:
        """Stop the child for good. Its result has the status `cancelled` and this reason."""
        self._job.cancel(reason)

    async def result(self) -> Result[T]:
        """Wait for the child. Cancelling the wait does not cancel the child.

        Raises RunSuspended if the child cannot continue because a model endpoint is gone.
        """
        return typed(await self._job.result(), self._convert)
