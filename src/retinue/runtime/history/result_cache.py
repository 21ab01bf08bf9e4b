"""The delegation cache: the same task, under the same contract, over files that have not changed.

Nothing is stored for it but a key beside each contract: what an earlier agent read, and what it
answered, is in its journal. A hit is checked by doing its reads again and comparing what they see.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from retinue.domain.contract import Contract
from retinue.domain.events import (
    AgentCompleted,
    CachedResultUsed,
    Event,
    ResultProposed,
    ToolFinished,
    ToolStarted,
)
from retinue.domain.messages import Effect
from retinue.domain.result import Receipt
from retinue.domain.tool_names import is_mcp_tool
from retinue.errors import ToolFailure
from retinue.ports.store import Store
from retinue.ports.tool import ToolContext
from retinue.runtime.agent.tool_calls import Tools
from retinue.version import VERSION

_encoder = msgspec.json.Encoder(order="deterministic")


class Hit(msgspec.Struct, frozen=True):
    run_id: str
    agent_id: str
    response: str
    receipts: tuple[Receipt, ...]


class Cache:
    def __init__(self, store: Store, tools: Tools, repeatable: frozenset[str] | None) -> None:
        """`repeatable` are the tools that only look, and only at the project. None: no caching."""
        self._store = store
        self._tools = tools
        self._repeatable = repeatable
        self._known: set[str] | None = None

    def key(self, contract: Contract) -> str | None:
        """What a contract's result is kept under; None if it must not be kept."""
        grant = contract.permissions
        if self._repeatable is None or grant.can_spawn_children:
            return None
        effects = self._tools.effects
        for name in (*grant.allowed_tools, *grant.ask_tools):
            # A server's tool that only reads does no harm as long as it is not used; see `_same`.
            if name not in self._repeatable and not (
                effects.get(name) is Effect.REMEMBER
                or (is_mcp_tool(name) and effects.get(name) is Effect.READ)
            ):
                return None
        terms = (VERSION, contract.step, grant, contract.execution, contract.outputs)
        return hashlib.sha256(_encoder.encode(terms)).hexdigest()

    async def find(self, key: str, ctx: ToolContext) -> Hit | None:
        """An earlier result under that key whose reads would see the same today."""
        if self._known is None:
            self._known = set(await self._store.cache_keys())
        if key not in self._known:
            return None
        for run_id, agent_id in await self._store.cached(key):
            events = await self._store.agent_events(run_id, agent_id)
            # One that was itself a hit has read nothing; what counts is what the first one read.
            first = next((f for e in events if isinstance(f := e.fact, CachedResultUsed)), None)
            if first is not None:
                run_id, agent_id = first.run_id, first.agent_id
                events = await self._store.agent_events(run_id, agent_id)
            facts = [event.fact for event in events]
            answer = next((fact for fact in facts if isinstance(fact, ResultProposed)), None)
            if answer is None or not any(isinstance(fact, AgentCompleted) for fact in facts):
                continue
            receipts = await self._unchanged(events, ctx)
            if receipts is not None:
                return Hit(run_id, agent_id, answer.response, receipts)
        return None

    def completed(self, key: str) -> None:
        """An agent with that key has ended well."""
        if self._known is not None:
            self._known.add(key)

    async def _unchanged(
        self, events: Sequence[Event], ctx: ToolContext
    ) -> tuple[Receipt, ...] | None:
        """The receipts of what was read, if reading it again gives the same; else None."""
        arguments: dict[str, str] = {}
        receipts: list[Receipt] = []
        for event in events:
            match event.fact:
                case ToolStarted() as started:
                    arguments[started.call_id] = started.arguments
                case ToolFinished() as finished:
                    if not await self._same(finished, arguments[finished.call_id], ctx):
                        return None
                    receipts.append(finished.receipt)
        return tuple(receipts)

    async def _same(self, finished: ToolFinished, arguments: str, ctx: ToolContext) -> bool:
        tool = self._tools.get(finished.tool)
        if tool is None:
            return False
        if tool.effect is Effect.REMEMBER:
            return True  # Done once, and not to be done again.
        if self._repeatable is None or finished.tool not in self._repeatable:
            return False  # Nobody knows what somebody else's server would say today.
        try:
            outcome = await tool.run(msgspec.json.decode(arguments.strip() or "{}"), ctx)
        except ToolFailure as failure:
            return finished.content == f"[ERROR] {failure}"
        except Exception:
            return False
        return (
            outcome.content == finished.content
            and outcome.before_sha256 == finished.receipt.before_sha256
        )
