"""`/plan`: a planner writes a plan, the user reviews it, and its steps run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from retinue.domain.result import cap
from retinue.errors import UsageError
from retinue.interfaces.chat.chat import REPORT_TOKENS, Chat
from retinue.interfaces.plan_review import read_only_note, review_plan
from retinue.interfaces.view.styled_text import Tone, styled
from retinue.runtime.planning.plans import LATEST
from retinue.runtime.runtime import Runtime

PLAN_STOPPED = "The plan was stopped."


def run_plan(chat: Chat, goal: str) -> None:
    """Write a plan for `goal`, and run it if the user accepts it."""
    if not goal:
        raise UsageError("/plan needs a goal: /plan GOAL")
    runtime = chat.runtime
    chat.conversation.add_user_text(f"/plan {goal}")
    chat.start_background(_run(chat, runtime, goal))


async def _run(chat: Chat, runtime: Runtime, goal: str) -> None:
    async def decide(shown: str | Sequence[str], choices: Sequence[str]) -> str:
        if isinstance(shown, str):
            chat.conversation.add_notice(shown, Tone.FAILED)
        else:
            lines = "\n".join(shown).strip("\n").split("\n")
            chat.conversation.add_lines([styled(line) for line in lines])
        return await chat.questions.choose("Run the plan above?", choices)

    if note := read_only_note(runtime):
        chat.conversation.add_notice(note)
    try:
        plan = await runtime.plan(goal)
        accepted = await review_plan(runtime, plan, decide=decide, edit=chat.on_edit)
        if accepted is None:
            chat.conversation.add_notice(f"Nothing was run. The plan is in {LATEST}.")
            return
        result = await runtime.execute(accepted)
    except asyncio.CancelledError:
        chat.conversation.add_notice(f"■ {PLAN_STOPPED}", Tone.STOPPED)
        raise
    chat.conversation.add_markdown(result.report)
    chat.add_context(cap(result.report, REPORT_TOKENS)[0])
    chat.notify_if_long(result.total.duration_s, f"Plan {result.status}", goal)
