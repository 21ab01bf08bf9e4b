"""Watching for agents that give no sign of life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from retinue.domain.events import SilenceDetected
from retinue.ports.clock import Clock
from retinue.runtime.agent.agent import Agent

NUDGE = "You gave no sign of life for {quiet:.0f} seconds. Come to an end soon, with what you have."


async def watch(agents: Callable[[], Iterable[Agent]], clock: Clock, every_s: float) -> None:
    """Look at all agents again and again, for ever.

    One that is silent for the time its contract allows is noticed and told; after twice that time
    its attempt is ended, and what it had is returned. One task for everybody: a timer per agent
    would cost each of ten thousand children a task.
    """
    while True:
        await clock.sleep(every_s)
        now = clock.monotonic()
        # Children first: what is noted of a child is a sign of life of those who wait for it.
        for agent in reversed(list(agents())):
            if agent.deadline is not None and not agent.excused:
                _look(agent, now)


def _look(agent: Agent, now: float) -> None:
    quiet, allowed = now - agent.seen_at, agent.contract.execution.silence_ms / 1000
    if quiet < allowed:
        agent.silent_s = None
    elif agent.silent_s is None:
        agent.silent_s = quiet
        agent.inbox.append(("watchdog", NUDGE.format(quiet=quiet)))
        _note(agent, SilenceDetected(quiet_s=quiet))
    elif quiet >= 2 * allowed and agent.deadline is not None and not agent.given_up:
        agent.silent_s = quiet
        _note(agent, SilenceDetected(quiet_s=quiet, stopped=True))
        agent.given_up = True
        agent.deadline.reschedule(asyncio.get_running_loop().time())


def _note(agent: Agent, fact: SilenceDetected) -> None:
    """Put it on record, which is no sign of life."""
    seen = agent.seen_at
    agent.record(fact)
    agent.seen_at = seen
