"""Slots that a host takes: none of them outlives the host, whatever it sends."""

from __future__ import annotations

import pytest

from retinue.models.routing.endpoint_queue import EndpointQueue
from retinue.models.routing.lent_slots import HostSlots
from retinue.ports.endpoint_slots import SlotRequest
from retinue.testing.clock import FakeClock

WANTED = SlotRequest(models=("m",), weights=(), queue_key="run", waited_s=0.0)


@pytest.mark.parametrize("slots", [1, 2], ids=["the second waits", "both have one"])
def test_a_number_is_used_for_one_request_at_a_time(clock: FakeClock, slots: int) -> None:
    queue = EndpointQueue("http://host", slots=slots, timers=clock)
    lent = HostSlots(lambda name: queue.model(name), lambda number, index, error: None)
    lent.take(7, WANTED)
    with pytest.raises(ValueError, match="slot 7 is taken twice"):
        lent.take(7, WANTED)
    lent.close()
    assert (queue.in_flight, queue.waiting) == (0, 0)
