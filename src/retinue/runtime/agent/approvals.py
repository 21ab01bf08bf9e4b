"""Ask the user to approve what an agent wants to do, and record the answer."""

from __future__ import annotations

from retinue.domain.approval import Answer, ApprovalRequest, Refusal, Rule
from retinue.domain.events import ApprovalDecided
from retinue.errors import ApprovalNeeded
from retinue.ports.person import Approve
from retinue.runtime.agent.agent import Agent


def decision(
    request: ApprovalRequest,
    answer: Answer,
    rule: Rule | None = None,
    call_id: str = "",
    *,
    reason: str = "",
    keys: tuple[str, ...] = (),
) -> ApprovalDecided:
    """The event of a decision; `rule` is None if a person decided."""
    return ApprovalDecided(
        tool=request.tool,
        wanted=request.detail,
        why=request.why,
        answer=answer,
        rule="" if rule is None else str(rule),
        scope=request.scope,
        call_id=call_id,
        reason=reason,
        keys=keys,
    )


async def ask_user(
    agent: Agent,
    request: ApprovalRequest,
    approve: Approve,
    call_id: str = "",
    *,
    keys: tuple[str, ...] = (),
) -> ApprovalDecided:
    """Ask the user, and record the answer. Raises ApprovalNeeded if no person can be asked."""
    try:
        with agent.waiting_for_person():
            answer = await approve(request)
    except ApprovalNeeded:
        agent.record(decision(request, Answer.NO_PERSON, call_id=call_id))
        raise
    rule = answer if isinstance(answer, Rule) else None
    reason = " ".join(answer.reason.split()) if isinstance(answer, Refusal) else ""
    decided = decision(
        request, Answer.YES if answer else Answer.NO, rule, call_id, reason=reason, keys=keys
    )
    agent.record(decided)
    return decided
