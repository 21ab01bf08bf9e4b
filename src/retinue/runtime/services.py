"""`Services`: the policy, stores and adapters that all runs of one runtime share."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from retinue.domain.role import Role
from retinue.domain.slash_command import SlashCommand
from retinue.ports.clock import Clock
from retinue.ports.file_tree import ChangeHistory, FileTree
from retinue.ports.hooks import Hooks, NoHooks
from retinue.ports.model import ModelCatalog
from retinue.ports.person import Listeners, Person
from retinue.ports.sandbox import Sandbox
from retinue.ports.store import MemoryStore, Reports, RunLocks, Store
from retinue.ports.telemetry import NoTelemetry, Telemetry
from retinue.runtime.agent.agent_services import Tools
from retinue.runtime.agent.runner import LocalRunner, Runner
from retinue.runtime.history.result_cache import ResultCache
from retinue.runtime.integration.checks import FindSandbox
from retinue.runtime.policy import Policy


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """Storage that outlives the process: journals, run locks, memories and reports."""

    store: Store
    run_locks: RunLocks
    memory_store: MemoryStore | None
    reports: Reports


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Built once per runtime, by `retinue.app`."""

    policy: Policy
    clock: Clock
    models: ModelCatalog
    tools: Tools
    roles: Mapping[str, Role]
    commands: Mapping[str, SlashCommand]
    storage: Storage
    cache: ResultCache
    file_tree: FileTree
    """The user's files."""
    history: ChangeHistory
    """The recorded changes of the user's files, for diff, undo and redo."""
    sandbox: Sandbox | None
    """Where shell commands of agents run; None turns the shell off."""
    check_sandbox: FindSandbox
    """Finds the sandbox for checks. There may be one although agents have no shell."""
    person: Person
    listeners: Listeners
    hooks: Hooks = NoHooks()
    telemetry: Telemetry = NoTelemetry()
    runner: Runner = LocalRunner()
    """Where the attempts of agents run."""
