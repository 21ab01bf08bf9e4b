"""A fan-out against a server on a bad day: everybody finishes, and nothing is asked in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from retinue.domain.events import Event, ModelFailed, ModelReplied
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Received, failing
from tests.endpoints.faulty_answers import FaultyAnswers

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Settings = Callable[[str], None]

CHILDREN = 300
SLOTS = 8
# A reply takes milliseconds here; on a busy machine, somewhat more.
IMPATIENT = '[servers."{url}"]\nfirst_byte_timeout_s = 4\nidle_timeout_s = 4\n'


def two_turns(request: Received) -> ScriptedReply:
    return say("Done.") if b'"role":"tool"' in request.body else call("list_dir", path=".")


@pytest.mark.slow
async def test_three_hundred_children_finish(opened: Opened, settings: Settings) -> None:
    faulty = FaultyAnswers(
        lambda _: say("Done."), drops=0.02, stalls=0.01, breaks=0.01, work_s=0.005, seed=1
    )
    events: list[Event] = []
    async with ModelServer(faulty, slots=SLOTS) as server:
        settings(IMPATIENT.format(url=server.base_url))
        model = f"openai:m@{server.base_url}"
        async with opened(model=model, on_event=events.append) as rt:
            results = await rt.fan_out(
                [("researcher", f"Look at part {n}.") for n in range(CHILDREN)],
                max_concurrent=CHILDREN,
            )
    assert [result.error for result in results if not result.ok] == []
    assert {result.attempts for result in results} == {1}
    assert set(faulty.happened) == {"dropped", "stalled", "broken"}
    # No request is lost, and none is sent again after it was answered.
    replied = sum(isinstance(event.fact, ModelReplied) for event in events)
    assert Counter(faulty.given.values()) == {1: CHILDREN}
    assert replied == CHILDREN
    # What the server takes was found out, and is kept to.
    assert server.busiest == SLOTS
    assert 0 < server.refused < 100
    # Everything that went wrong is on record, once. The client repeats by itself what was sent into
    # a connection that was just closed.
    failed = [event.fact for event in events if isinstance(event.fact, ModelFailed)]
    refused = [fact for fact in failed if "limits the rate" in fact.error]
    assert len(refused) == server.refused
    others = len(failed) - len(refused)
    assert faulty.happened.total() - faulty.happened["dropped"] <= others
    assert others <= faulty.happened.total()
    # Where the time went is on record too.
    assert max(e.fact.timing.queued_s for e in events if isinstance(e.fact, ModelReplied)) > 0


async def test_all_requests_obey_a_refusal_and_none_fails(
    opened: Opened, settings: Settings
) -> None:
    refusal = failing(429, "Slow down.", headers={"retry-after-ms": "200"})
    server = ModelServer(two_turns, slots=2, refusal=refusal)
    async with server, opened(model=f"openai:m@{server.base_url}") as rt:
        results = await rt.fan_out(
            [("researcher", f"Look at part {n}.") for n in range(40)], max_concurrent=40
        )
    assert all(result.ok and result.attempts == 1 for result in results)
    assert server.busiest <= 2


async def test_slots_that_are_known_are_never_exceeded(opened: Opened, settings: Settings) -> None:
    server = ModelServer(two_turns, slots=3)
    async with server:
        settings(f'[servers."{server.base_url}"]\nslots = 3\n')
        async with opened(model=f"openai:m@{server.base_url}") as rt:
            results = await rt.fan_out(
                [("researcher", f"Look at part {n}.") for n in range(30)], max_concurrent=30
            )
    assert all(result.ok for result in results)
    assert server.refused == 0


async def test_a_recording_of_refusals_can_be_replayed(opened: Opened, tmp_path: Path) -> None:
    """A refusal that the queue waits out does not count as a retry in the replay either."""
    recording = tmp_path / "run.jsonl"
    tasks = [("researcher", f"Look at part {n}.") for n in range(20)]
    seen: tuple[list[Event], list[Event]] = ([], [])
    async with ModelServer(two_turns, slots=1) as server:
        model = f"openai:m@{server.base_url}"
        async with opened(model=model, record=recording, on_event=seen[0].append) as rt:
            results = await rt.fan_out(tasks, max_concurrent=20)
    assert all(result.ok for result in results)
    async with opened(model=f"replay:{recording}", on_event=seen[1].append) as rt:
        again = await rt.fan_out(tasks, max_concurrent=20)
    assert [result.response for result in again] == [result.response for result in results]
    was, now = (sum(isinstance(e.fact, ModelFailed) for e in events) for events in seen)
    assert now == was == server.refused > 0


async def test_timeout_doubles_at_a_retry(opened: Opened, settings: Settings) -> None:
    # Without more time at each try, none of the four would do.
    slow = FaultyAnswers(lambda _: say("Done."), work_s=0.15)
    events: list[Event] = []
    async with ModelServer(slow) as server:
        settings(f'[servers."{server.base_url}"]\nfirst_byte_timeout_s = 0.05\n')
        model = f"openai:m@{server.base_url}"
        async with opened(model=model, on_event=events.append) as rt:
            result = await rt.spawn("researcher", "Look.")
    assert result.ok
    waited = [event.fact.error for event in events if isinstance(event.fact, ModelFailed)]
    assert [error.split(" within ")[1] for error in waited[:2]] == [
        "0.05 s. If the server is only slow, raise first_byte_timeout_s.",
        "0.1 s. If the server is only slow, raise first_byte_timeout_s.",
    ]
