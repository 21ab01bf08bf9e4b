"""What all agents of a run share, whoever leads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from retinue.domain.approval import Rules
from retinue.domain.price import PoolPrice, Price
from retinue.domain.role import Role
from retinue.ports.clock import Clock
from retinue.ports.file_tree import ChangeHistory, FileTree
from retinue.ports.model import Model, ModelServers
from retinue.ports.run_lock import RunLocks
from retinue.ports.sandbox import Sandbox
from retinue.ports.store import MemoryStore, Reports, Store
from retinue.ports.tool import Approve, Ask
from retinue.ports.workspace import Workspace
from retinue.runtime.agent.model_turn import OnText
from retinue.runtime.agent.tool_calls import NO_RULES, Breaker, Tools
from retinue.runtime.core.journal import Listener
from retinue.runtime.history.result_cache import Cache
from retinue.runtime.integration.checks import Confine


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Made once per runtime, by whoever composes it."""

    store: Store
    run_locks: RunLocks
    memory_store: MemoryStore | None
    reports: Reports
    clock: Clock
    tools: Tools
    roles: Mapping[str, Role]
    cache: Cache
    workspace_for: Callable[[str], Workspace]
    file_tree: FileTree
    history: ChangeHistory
    sandbox: Sandbox | None
    confine: Confine
    approve: Approve
    model_for: Callable[[str], Model]
    route: Callable[[str | None, str | None], str | None]
    price_for: Callable[[str], Price | PoolPrice | None]
    servers: ModelServers
    max_concurrent: int
    report_path_pattern: str
    seal: Callable[[str], str]
    breaker: Breaker | None = None
    rules: Rules = NO_RULES
    ask: Ask | None = None
    listener: Listener | None = None
    on_text: OnText | None = None
    on_partial: Callable[[str, str, str], None] | None = None
