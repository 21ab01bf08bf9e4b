"""Ask the user to approve what an agent wants to do, and record the answer."""

from __future__ import annotations

from retinue.domain.approval import Answer, ApprovalRequest, Refusal, Rule
from retinue.domain.events import ApprovalDecided, ApprovalRequested
from retinue.errors import ApprovalNeeded
from retinue.ports.person import Approve, refuse_unattended
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.remote_answers import Answered, RemoteAnswers


def decision(
    request: ApprovalRequest,
    answer: Answer,
    rule: Rule | None = None,
    call_id: str = "",
    *,
    reason: str = "",
    keys: tuple[str, ...] = (),
    number: int = 0,
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
        request=number,
    )


async def ask_user(
    agent: Agent,
    request: ApprovalRequest,
    approve: Approve,
    call_id: str = "",
    *,
    keys: tuple[str, ...] = (),
) -> ApprovalDecided:
    """Ask the user, and record the answer. Raises ApprovalNeeded if no person can be asked.

    The request is recorded too, so that another process can show and answer it.
    """
    elsewhere, number = agent.remote_answers, 0
    if rule := request.covered_by(elsewhere.granted):
        decided = decision(request, Answer.YES, rule, call_id, keys=keys)
        agent.record(decided)
        return decided
    try:
        with agent.waiting_for_person():
            if approve is refuse_unattended:
                await approve(request)
            number = agent.record(requested(request)).seq
            await agent.durable()  # Now other processes can see it.
            answer = await ask_here(elsewhere, number, request, approve)
    except ApprovalNeeded:
        agent.record(decision(request, Answer.NO_PERSON, call_id=call_id, number=number))
        raise
    rule = answer if isinstance(answer, Rule) else None
    reason = " ".join(answer.reason.split()) if isinstance(answer, Refusal) else ""
    decided = decision(
        request,
        Answer.YES if answer else Answer.NO,
        rule,
        call_id,
        reason=reason,
        keys=keys,
        number=number,
    )
    agent.record(decided)
    return decided


async def ask_here(
    elsewhere: RemoteAnswers, number: int, request: ApprovalRequest, approve: Approve
) -> Answered:
    """The answer to the request of event `number`. An "always" answers later requests too."""
    if rule := request.covered_by(elsewhere.granted):
        return rule
    answer = await elsewhere.approval(number, request, _ask(approve, request))
    if isinstance(answer, Rule) and answer not in elsewhere.granted.allow:
        elsewhere.grant(request.rules if answer == request.rule else (answer,))
    return answer


async def _ask(approve: Approve, request: ApprovalRequest) -> bool | Rule | Refusal:
    return await approve(request)


def requested(request: ApprovalRequest) -> ApprovalRequested:
    """The event of a request."""
    return ApprovalRequested(
        tool=request.tool,
        wanted=request.detail,
        why=request.why,
        scope=request.scope,
        rules=tuple(map(str, request.rules)),
        children=request.children,
        diff=request.diff or request.preview,
    )
