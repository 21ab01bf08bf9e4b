"""Tool that asks the user a question."""

from __future__ import annotations

from retinue.domain.messages import Effect
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.tools.function import tool


@tool(effect=Effect.READ)
async def ask_user(ctx: ToolContext, question: str) -> ToolOutcome:
    """Ask the user, when only they can know."""
    if ctx.ask is None:
        raise ToolFailure("The user is not there; decide yourself and say what you assumed.")
    return ToolOutcome(content=await ctx.ask(ctx.path, question))
