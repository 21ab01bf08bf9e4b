"""Tools that answer from the index of the code: a map, symbols, and missing documentation."""

from __future__ import annotations

from retinue.domain.messages import Effect
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.ports.workspace import CodeQuery
from retinue.tools.function import tool

MAX_OVERVIEW_TOKENS = 4_000


@tool(effect=Effect.READ)
async def overview(ctx: ToolContext, path: str = ".", max_tokens: int = 1_000) -> ToolOutcome:
    """Map of the most important files and symbols."""
    tokens = min(max(max_tokens, 100), MAX_OVERVIEW_TOKENS)
    return await _answer(ctx, CodeQuery(what="overview", path=path, max_tokens=tokens))


@tool(effect=Effect.READ)
async def find_symbol(ctx: ToolContext, name: str, path: str = ".") -> ToolOutcome:
    """Find where a symbol is defined and used."""
    if not name.strip():
        raise ToolFailure("find_symbol: 'name' is empty.")
    return await _answer(ctx, CodeQuery(what="find_symbol", path=path, name=name.strip()))


@tool(effect=Effect.READ)
async def docs_coverage(ctx: ToolContext, path: str = ".") -> ToolOutcome:
    """List public symbols without documentation."""
    return await _answer(ctx, CodeQuery(what="docs_coverage", path=path))


async def _answer(ctx: ToolContext, query: CodeQuery) -> ToolOutcome:
    # The first index of a large project takes a minute, and has its own time limit.
    with ctx.waiting():
        return ToolOutcome(content=await ctx.workspace.code(query))
