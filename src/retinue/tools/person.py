"""Asking the person at the terminal."""

from __future__ import annotations

from retinue.domain.messages import Effect
from retinue.errors import ToolFailure
from retinue.ports import Hands, Outcome
from retinue.tools.function import tool


@tool(effect=Effect.READ)
async def ask_user(hands: Hands, question: str) -> Outcome:
    """Ask the user, when only they can know."""
    if hands.ask is None:
        raise ToolFailure("Nobody is there to ask; decide yourself and say what you assumed.")
    return Outcome(content=await hands.ask(hands.path, question))
