"""The port `Runner`: where the attempts of an agent run."""

from __future__ import annotations

from typing import Protocol

from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import AgentServices
from retinue.runtime.agent.lifecycle import run_attempts
from retinue.runtime.agent.loop import AttemptOutcome


class Runner(Protocol):
    """Runs the attempts of agents: its loop, its tools and its commands.

    The contract, the merge, the checks and the closing stay with the caller.
    """

    async def run(self, agent: Agent, services: AgentServices) -> AttemptOutcome:
        """Run the attempts of `agent`. Raises like `run_attempts`."""
        ...


class LocalRunner:
    """Runs the attempts in this process."""

    run = staticmethod(run_attempts)
