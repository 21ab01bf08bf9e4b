"""`ResultCache`: reuses the result of an earlier agent with the same contract.

Only a key beside each contract is stored: what an agent has read and answered is in its journal. A
hit is verified by repeating the reads of the earlier agent and comparing what they return.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from retinue.domain import events as ev
from retinue.domain.contract import Contract, EncodedContract
from retinue.domain.messages import Effect
from retinue.domain.result import Receipt
from retinue.domain.tool_names import is_mcp_tool
from retinue.errors import ToolFailure
from retinue.ports.store import Store
from retinue.ports.tool import ToolContext
from retinue.runtime.agent.agent_services import Tools
from retinue.version import VERSION


class CachedResult(msgspec.Struct, frozen=True):
    """The response of an earlier agent, and the receipts of its reads."""

    run_id: str
    agent_id: str
    response: str
    receipts: tuple[Receipt, ...]


class ResultCache:
    def __init__(self, store: Store, tools: Tools, repeatable: frozenset[str] | None) -> None:
        """`repeatable` are the tools that only read the project. None disables the cache."""
        self._store = store
        self._tools = tools
        self._repeatable = repeatable
        self._known: set[str] | None = None

    def key(self, contract: Contract, encoded: EncodedContract) -> str | None:
        """The key of a contract's result; None if the result must not be cached."""
        grant = contract.permissions
        if self._repeatable is None or grant.can_spawn_children:
            return None
        effects = self._tools.effects
        for name in (*grant.allowed_tools, *grant.ask_tools):
            # An MCP tool that only reads is harmless unless it was called; see `_is_unchanged`.
            if name not in self._repeatable and not (
                effects.get(name) is Effect.REMEMBER
                or (is_mcp_tool(name) and effects.get(name) is Effect.READ)
            ):
                return None
        key = b'["%b",%b]' % (VERSION.encode(), encoded.without_parent)
        return hashlib.sha256(key).hexdigest()

    async def find(self, key: str, ctx: ToolContext) -> CachedResult | None:
        """An earlier result with that key whose reads return the same today."""
        if self._known is None:
            self._known = set(await self._store.cache_keys())
        if key not in self._known:
            return None
        for run_id, agent_id in await self._store.cached(key):
            events = await self._store.agent_events(run_id, agent_id)
            # An agent that was itself served from the cache has read nothing; the first one has.
            first = next((f for e in events if isinstance(f := e.fact, ev.CachedResultUsed)), None)
            if first is not None:
                run_id, agent_id = first.run_id, first.agent_id
                events = await self._store.agent_events(run_id, agent_id)
            facts = [event.fact for event in events]
            answer = next((fact for fact in facts if isinstance(fact, ev.ResultProposed)), None)
            if answer is None or not any(isinstance(fact, ev.AgentCompleted) for fact in facts):
                continue
            receipts = await self._verified(events, ctx)
            if receipts is not None:
                return CachedResult(run_id, agent_id, answer.response, receipts)
        return None

    def add(self, key: str) -> None:
        """Note that an agent with that key has completed."""
        if self._known is not None:
            self._known.add(key)

    async def _verified(
        self, events: Sequence[ev.Event], ctx: ToolContext
    ) -> tuple[Receipt, ...] | None:
        """The receipts of the earlier reads, if repeating the reads gives the same; else None."""
        arguments: dict[str, str] = {}
        receipts: list[Receipt] = []
        for event in events:
            match event.fact:
                case ev.ToolStarted() as started:
                    arguments[started.call_id] = started.arguments
                case ev.ToolFinished() as finished:
                    if not await self._is_unchanged(finished, arguments[finished.call_id], ctx):
                        return None
                    receipts.append(finished.receipt)
        return tuple(receipts)

    async def _is_unchanged(
        self, finished: ev.ToolFinished, arguments: str, ctx: ToolContext
    ) -> bool:
        tool = self._tools.get(finished.tool)
        if tool is None:
            return False
        if tool.effect is Effect.REMEMBER:
            return True  # Saving a memory is not repeated.
        if self._repeatable is None or finished.tool not in self._repeatable:
            return False  # An MCP server may return something else today.
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
