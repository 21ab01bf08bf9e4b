"""The slots of model endpoints that a host takes from its run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial

from retinue.errors import ModelError, Overloaded, Unreachable
from retinue.ports.endpoint_slots import RateLimits, SlotRequest, SlotUse
from retinue.runtime.placement.messages import FreeSlot, LimitsSaid, SlotAnswered, TakeSlot

HEARTBEAT_S = 10.0
_ERRORS = {error.__name__: error for error in (Overloaded, Unreachable)}


class HostedSlots:
    """Takes slots from the run. Implements `SlotSource`."""

    def __init__(self, report: Callable[[TakeSlot | FreeSlot | LimitsSaid], object]) -> None:
        self._report = report
        self._numbers = itertools.count(1)
        self._wanted: dict[int, asyncio.Future[SlotAnswered]] = {}

    async def take(
        self, wanted: SlotRequest, on_text: Callable[[str], None] | None
    ) -> tuple[int, Callable[[SlotUse], None]]:
        slot = next(self._numbers)
        answer: asyncio.Future[SlotAnswered] = asyncio.get_running_loop().create_future()
        self._wanted[slot] = answer
        self._report(TakeSlot(slot, wanted))
        try:
            while not (await asyncio.wait([answer], timeout=HEARTBEAT_S))[0]:
                if on_text is not None:
                    on_text("")
        except asyncio.CancelledError:
            self._free(slot, SlotUse())
            raise
        finally:
            del self._wanted[slot]
        answered = answer.result()
        if answered.error:
            name, _, message = answered.error.partition(": ")
            raise _ERRORS.get(name, ModelError)(message)
        return answered.index, partial(self._free, slot)

    def answered(self, answer: SlotAnswered) -> None:
        # For a cancelled request, a report that frees the slot is already on its way.
        if (wanted := self._wanted.get(answer.slot)) is not None:
            wanted.set_result(answer)

    def report_limits(self, model: str, limits: RateLimits) -> None:
        self._report(LimitsSaid(model, limits))

    def _free(self, slot: int, use: SlotUse) -> None:
        self._report(FreeSlot(slot, use))
