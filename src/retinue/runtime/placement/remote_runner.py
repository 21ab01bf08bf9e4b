"""`RemoteRunner`: runs the attempts of children on hosts."""

from __future__ import annotations

from collections.abc import Callable

from retinue.domain.contract import WorkspaceKind
from retinue.domain.events import AgentPlaced
from retinue.domain.lifecycle import State
from retinue.domain.run_state import fold_agent
from retinue.ports.file_tree import FileTree
from retinue.ports.store import Store
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import AgentServices
from retinue.runtime.agent.lifecycle import run_attempts
from retinue.runtime.agent.loop import AttemptOutcome
from retinue.runtime.placement.host_choice import why_not
from retinue.runtime.placement.hosts import Hosts
from retinue.runtime.placement.placed_agent import NoFilesAnywhere, PlacedAgent
from retinue.runtime.placement.sent_files import ProjectFiles


class RemoteRunner:
    """Runs on hosts the children that can run there, and all other agents in this process.

    `is_served` says whether a model can be asked by other processes too.
    """

    def __init__(
        self,
        hosts: Hosts,
        store: Store,
        project: FileTree,
        *,
        is_served: Callable[[str], bool],
    ) -> None:
        self._hosts = hosts
        self._store = store
        self._project = ProjectFiles(project)
        self._is_served = is_served

    async def run(self, agent: Agent, services: AgentServices) -> AttemptOutcome:
        if agent.parent is None:
            return await run_attempts(agent, services)
        if not all(host.info.shares_disk for host in self._hosts.live):
            await self._project.check()
        why = self._why_here(agent, services)
        if why:
            agent.record(AgentPlaced(placement=agent.state.placement, reason=why))
            return await run_attempts(agent, services)
        placed = PlacedAgent(agent, services, self._store, self._project)
        try:
            return await placed.run(self._hosts)
        except NoFilesAnywhere as error:
            number = agent.state.placement
            agent.record(AgentPlaced(placement=number, reason=f"runs here: {error}"))
            await agent.durable()
            if agent.state.state is not State.CREATED:
                events = await self._store.agent_events(agent.contract.parent.run_id, agent.id)
                agent.resume_point = fold_agent(events)
            return await run_attempts(agent, services)

    def _why_here(self, agent: Agent, services: AgentServices) -> str:
        """Why the agent runs in this process; "" if a host can run it."""
        contract = agent.contract
        if services.hooks.events:
            return "runs here: hooks are programs of this machine"
        if agent.convert_output is not None:
            return "runs here: its output type belongs to this program"
        shared = contract.execution.workspace is WorkspaceKind.SHARED
        if shared or agent.files.recorder is not None:
            return "runs here: it works in the user's own files"
        if not self._is_served(contract.execution.model):
            return f"runs here: {contract.execution.model} cannot be asked by another process"
        if agent.suspension.reader_has_room is not None:
            return "runs here: the program reads the run as a stream"
        problems = [why_not(agent, host, self._project.problem) for host in self._hosts.live]
        if problems and all(problems):
            return f"runs here: {problems[0]}"
        return ""
