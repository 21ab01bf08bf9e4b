"""Find agents that give no sign of life: remind them first, then end their attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from retinue.domain.events import SilenceDetected
from retinue.ports.clock import Clock
from retinue.runtime.agent.agent import Agent

REMINDER = (
    "You gave no sign of life for {quiet:.0f} seconds. Come to an end soon, with what you have."
)


async def watch(agents: Callable[[], Iterable[Agent]], clock: Clock, every_s: float) -> None:
    """Look at all agents every `every_s` seconds, forever.

    An agent that is silent for as long as its contract allows is reminded. After twice that time
    its attempt ends, and its last text is its response. One task watches all agents: a timer per
    agent would cost each of ten thousand children a task.
    """
    while True:
        await clock.sleep(every_s)
        now = clock.monotonic()
        # Children first: their signs of life are also those of the agents that wait for them.
        for agent in reversed(list(agents())):
            activity, parent = agent.activity, agent.parent
            if activity.deadline is not None and not activity.waits:
                _check(agent, now)
            if parent is not None and parent.activity.last_seen < activity.last_seen:
                parent.activity.last_seen = activity.last_seen


def _check(agent: Agent, now: float) -> None:
    activity = agent.activity
    quiet_s, allowed_s = now - activity.last_seen, agent.contract.execution.silence_ms / 1000
    if quiet_s < allowed_s:
        activity.silent_s = None
    elif activity.silent_s is None:
        activity.silent_s = quiet_s
        agent.inbox.append(("watchdog", REMINDER.format(quiet=quiet_s)))
        _record(agent, SilenceDetected(quiet_s=quiet_s))
    elif quiet_s >= 2 * allowed_s and activity.deadline is not None and not activity.given_up:
        activity.silent_s = quiet_s
        _record(agent, SilenceDetected(quiet_s=quiet_s, stopped=True))
        activity.given_up = True
        activity.deadline.reschedule(asyncio.get_running_loop().time())


def _record(agent: Agent, fact: SilenceDetected) -> None:
    """Record an event. It is a sign of life of the parent, which waits, but not of the agent."""
    last_seen = agent.activity.last_seen
    agent.record(fact)
    agent.activity.last_seen = last_seen
    if agent.parent is not None:
        agent.parent.touch()
