"""Fixtures for tests of queues and pools."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from retinue.models.routing.endpoint_queue import EndpointQueue
from retinue.testing.clock import FakeClock
from tests.models.routing.fake_endpoint import ADDRESS, FakeEndpoint, Opened


@pytest.fixture
async def endpoint(clock: FakeClock) -> AsyncIterator[Opened]:
    """Makes endpoints, and checks at the end that nothing waits in their queues."""
    endpoints: list[FakeEndpoint] = []

    def opened(slots: int | None = 1, patience_s: float = 120.0) -> FakeEndpoint:
        queue = EndpointQueue(ADDRESS, slots=slots, patience_s=patience_s, timers=clock)
        endpoints.append(FakeEndpoint(queue))
        return endpoints[-1]

    yield opened
    for one in endpoints:
        await one.closed()
