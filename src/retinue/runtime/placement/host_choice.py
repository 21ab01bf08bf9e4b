"""Which hosts can run an agent: what they lack, and whether they have room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from retinue.domain.permissions import COMMAND_TOOLS
from retinue.runtime.agent.agent import Agent
from retinue.runtime.placement.host import Host

_DECIMALS = 4
"""Precision of amounts of resources in Ray."""


def why_not(agent: Agent, host: Host, project_problem: str) -> str:
    """Why `host` cannot run `agent`; "" if it can.

    `project_problem` is why the project's commits cannot be sent.
    """
    grant, info = agent.contract.permissions, host.info
    lacking = {*grant.allowed_tools, *grant.ask_tools}.difference(info.tools)
    if not info.sandbox and not lacking.isdisjoint(COMMAND_TOOLS):
        return f"{host.name} has no sandbox, so it takes no commands"
    if lacking:
        return f"{host.name} has no {', '.join(sorted(lacking))}"
    if not info.shares_disk and (problem := info.why_no_files or project_problem):
        return f"{host.name} does not see the files of this machine, and {problem}"
    return ""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How much room each host has. Without limits, hosts take all agents."""

    children: int | None = None
    """Agents at work on one host."""
    needs: Mapping[str, Mapping[str, float]] = {}
    """By role and resource: what an agent takes of what its host has reserved."""

    def why_never(self, role: str, host: Host) -> str:
        """What `host` has too little of for an agent of that role; "" if it has enough."""
        for name, amount in self.needs.get(role, {}).items():
            if (has := host.resources.get(name, 0)) < amount:
                return f"{host.name} has {f'{has:g}' if has else 'no'} {name}"
        return ""

    def why_not_now(self, role: str, host: Host, at_work: Sequence[str]) -> str:
        """Why `host` has no room besides agents of the roles `at_work`; "" if it has."""
        if self.children is not None and len(at_work) >= self.children:
            return f"{host.name} is full"
        for name, amount in self.needs.get(role, {}).items():
            taken = sum(self.needs.get(other, {}).get(name, 0) for other in at_work)
            if round(host.resources.get(name, 0) - taken, _DECIMALS) < amount:
                return f"{host.name} has no {name} free"
        return ""


UNLIMITED = Room()
