"""Which facts a host may report of an agent. Somebody may have taken its machine over."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.approval import Answer, ApprovalRequest, Rule
from retinue.domain.events import (
    AgentStarted,
    ApprovalDecided,
    ApprovalRequested,
    AttemptStarted,
    CircuitBreakerTripped,
    ContextCompacted,
    LimitReached,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    SilenceDetected,
    ToolDenied,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from retinue.domain.lifecycle import State
from retinue.domain.web_hosts import WEB_FETCH

_StartFact = AgentStarted | AttemptStarted
_ConversationFact = TurnStarted | ModelReplied | ModelFailed | MessageReceived | ContextCompacted
_ToolFact = ToolStarted | ToolFinished | ToolDenied | ApprovalRequested | ApprovalDecided
_LimitFact = LimitReached | CircuitBreakerTripped | SilenceDetected
ReportedFact = _StartFact | _ConversationFact | _ToolFact | _LimitFact
"""What happens in an agent's attempts. All other facts are the run's own to record."""

MAX_SPENT = 10**12
"""Tokens or micro-dollars of a model call. Sums of more would not fit into what is stored."""

decode_reported = msgspec.json.Decoder(ReportedFact).decode


def problem_of(
    fact: ReportedFact,
    attempt: int,
    agent: AgentState,
    allowed: Mapping[int, ApprovalRequest],
    rules: Collection[Rule],
) -> str:
    """Why a host may not report `fact` of that attempt of an agent; "" if it may.

    `allowed` has the requests to which the user has said yes, by the numbers of their events, and
    `rules` what is always allowed.
    """
    current = agent.attempt
    if isinstance(fact, AttemptStarted):
        current = fact.number if fact.number - current in (0, 1) else -1
    if attempt != current or attempt < 0:
        return "it is not in that attempt"
    match fact:
        case AgentStarted() if agent.state is not State.CREATED:
            return "it was started before"
        case ModelReplied(usage=usage) | ModelFailed(usage=usage):
            spent = (usage.tokens, usage.cost_microusd, usage.billed_tokens)
            if min(spent) < 0:
                return "less than nothing was spent"
            if max(spent) > MAX_SPENT:
                return "more was spent than can be"
        case ApprovalDecided(tool=tool, wanted=wanted, keys=keys, answer=answer):
            # Other answers that have keys are about children and changes: the run asks for those.
            if keys and (tool, keys) != (WEB_FETCH, (f"{WEB_FETCH} {wanted}",)):
                return "it did not ask about that"
            if answer is Answer.YES and not _was_allowed(fact, allowed, rules):
                return "nobody has said yes"
    return ""


def _was_allowed(
    fact: ApprovalDecided, allowed: Mapping[int, ApprovalRequest], rules: Collection[Rule]
) -> bool:
    if fact.request:
        asked = allowed.get(fact.request)
        return asked is not None and (asked.tool, asked.detail) == (fact.tool, fact.wanted)
    named = (rule for rule in rules if str(rule) == fact.rule)
    # An answer with keys holds for the descendants too.
    return any(not fact.keys or rule.matches(fact.tool, fact.wanted) for rule in named)
