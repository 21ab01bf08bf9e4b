"""Tool contexts: the files, sandbox and tests of an agent, where its attempts run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from retinue.domain.contract import Contract, WorkspaceKind
from retinue.domain.messages import Effect
from retinue.domain.permissions import RUN_TESTS, WRITING_EFFECTS, Effects
from retinue.domain.scope import NOWHERE
from retinue.ports.file_tree import ChangeRecorder
from retinue.ports.person import Ask, ReadBuffer
from retinue.ports.sandbox import Sandbox
from retinue.ports.store import MemoryStore
from retinue.ports.tool import Delegation, ToolContext
from retinue.ports.workspace import Workspace
from retinue.runtime.agent.agent import Agent
from retinue.runtime.integration.checks import FindSandbox
from retinue.runtime.integration.project_tests import ProjectTests


class ToolContexts(msgspec.Struct, frozen=True, kw_only=True):
    """Makes the tool contexts of agents."""

    effects: Effects
    sandbox: Sandbox | None
    check_sandbox: FindSandbox
    test: str
    """The project's test command, or ""."""
    recorder_for: Callable[[Agent], ChangeRecorder | None]

    def make(
        self,
        agent: Agent,
        *,
        memory_store: MemoryStore | None,
        delegation: Delegation | None = None,
        ask: Ask | None = None,
        read_buffer: ReadBuffer | None = None,
    ) -> ToolContext:
        grant = agent.contract.permissions
        workspace, sandbox = self._workspace(agent)
        access = workspace.access(grant.write_scope, grant.network)
        # Where no commands run, the path that file tools understand is the same in any copy.
        relocated = sandbox is None or sandbox.relocates or not self._runs_commands(agent.contract)
        mounted = access.mount_point if relocated else ""
        return ToolContext(
            workspace=workspace,
            sandbox=sandbox,
            access=access,
            directory=mounted or access.root,
            agent_id=agent.id,
            path=agent.path,
            ask=ask,
            read_buffer=read_buffer,
            delegation=delegation,
            memory_store=memory_store,
            tests=self._tests(agent, workspace, sandbox),
            run_id=agent.contract.parent.run_id,
            depth=agent.depth,
            remembered=agent.cache_key is not None,
            web_hosts=grant.web_hosts or (),
            may_load=grant.may_load,
            waiting=agent.waiting,
            remaining=agent.account.remaining,
            on_progress=agent.report_progress,
        )

    def _workspace(self, agent: Agent) -> tuple[Workspace, Sandbox | None]:
        """The files and the sandbox of `agent`. Changes of the user's own files are recorded."""
        contract, sandbox, files = agent.contract, self.sandbox, agent.files
        directory = contract.execution.working_directory
        if contract.execution.workspace is WorkspaceKind.READONLY and (
            sandbox is None or sandbox.tier != "none" or not self._runs_commands(contract)
        ):
            return files.tree.workspace(directory), sandbox
        files.recorder = self.recorder_for(agent)
        return files.tree.with_recording(directory, sandbox, files.recorder)

    def _tests(
        self, agent: Agent, workspace: Workspace, sandbox: Sandbox | None
    ) -> ProjectTests | None:
        contract = agent.contract
        if not self.test or RUN_TESTS not in contract.permissions.allowed_tools:
            return None
        own = None
        effects, grant = self.effects, contract.permissions
        writes = any(effects.get(name) in WRITING_EFFECTS for name in grant.allowed_tools)
        if writes and grant.write_scope != NOWHERE and sandbox is not None:
            # Tests are code that agents may have written: they get no network.
            own = workspace.access(grant.write_scope), sandbox
        directory = contract.execution.working_directory
        return ProjectTests(self.test, self.check_sandbox, agent.files.tree, directory, own)

    def _runs_commands(self, contract: Contract) -> bool:
        """Whether the contract grants commands, which only a sandbox keeps from writing."""
        effects, grant = self.effects, contract.permissions
        tools = (*grant.allowed_tools, *grant.ask_tools)
        return any(effects.get(name) is Effect.EXECUTE for name in tools)
