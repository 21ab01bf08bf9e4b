"""Slots of model endpoints, which a run shares with its hosts.

Before a host sends a request to a model, it takes a slot from the run, and frees it when the
request is over. So all processes together keep to what an endpoint accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec


class RateWindow(msgspec.Struct, frozen=True, gc=False):
    """`remaining` of `limit`; all of `limit` is available again after `reset_s`."""

    limit: float
    remaining: float
    reset_s: float


class RateLimits(msgspec.Struct, frozen=True, gc=False):
    """A server's limits and what is left of them, by its own account."""

    requests: RateWindow | None = None
    tokens: RateWindow | None = None


class SlotRequest(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A request for a slot of one of `models`, which have full names.

    With weights, the run chooses by the load of their endpoints; else the first that has a slot.
    """

    models: tuple[str, ...]
    weights: tuple[float, ...]
    queue_key: str
    waited_s: float
    """How long the request to the model has waited; the oldest of a key goes first."""


class SlotUse(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The end of a request that had a slot. The defaults say nothing about the endpoint.

    `refusal` is the message of an error by which the server asked for fewer requests.
    """

    accepted: bool = False
    tokens: int = 0
    refusal: str = ""
    retry_after_s: float | None = None


class SlotSource(Protocol):
    """Where a host takes slots."""

    async def take(
        self, wanted: SlotRequest, on_text: Callable[[str], None] | None
    ) -> tuple[int, Callable[[SlotUse], None]]:
        """Wait for a slot. Return which model it is for, and what frees it.

        Calls `on_text` with "" now and then. Raises ModelError when waiting is pointless.
        """
        ...

    def report_limits(self, model: str, limits: RateLimits) -> None:
        """Tell what a server said of its limits in a response."""
        ...


class LentSlots(Protocol):
    """The slots that one host has, and waits for."""

    def take(self, number: int, wanted: SlotRequest) -> None:
        """Answer the request of that number, as soon as there is a slot.

        Raises ValueError if the number is in use.
        """
        ...

    def free(self, number: int, use: SlotUse) -> None:
        """End the use of a slot, or the wait for it."""
        ...

    def report_limits(self, model: str, limits: RateLimits) -> None:
        """Keep to what a server has told the host."""
        ...

    def close(self) -> None:
        """Free all slots: the host has ended."""
        ...


AnswerSlot = Callable[[int, int, str], None]
"""Answers a request for a slot: its number, which model, and why there is no slot; "" for none."""

LendSlots = Callable[[AnswerSlot], LentSlots]
