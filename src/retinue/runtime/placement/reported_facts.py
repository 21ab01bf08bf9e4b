"""Which facts a host may report of an agent. Somebody may have taken its machine over."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from retinue.domain.approval import Answer, Rule
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

decode_reported = msgspec.json.Decoder(ReportedFact).decode


def problem_of(
    fact: ReportedFact, state: State, allowed: Collection[int], rules: Collection[Rule]
) -> str:
    """Why a host may not report `fact` of an agent in that state; "" if it may.

    `allowed` are the requests to which the user has said yes, and `rules` what is always allowed.
    """
    match fact:
        case AgentStarted() if state is not State.CREATED:
            return "it was started before"
        case ModelReplied(usage=usage) | ModelFailed(usage=usage):
            if min(usage.tokens, usage.cost_microusd, usage.billed_tokens) < 0:
                return "less than nothing was spent"
        case ApprovalDecided(keys=keys, answer=answer):
            # Other answers that have keys are about children and changes: the run asks for those.
            if not all(key.startswith(f"{WEB_FETCH} ") for key in keys):
                return "it did not ask about that"
            by_rule = not fact.request and fact.rule in map(str, rules)
            if answer is Answer.YES and not by_rule and fact.request not in allowed:
                return "nobody has said yes"
    return ""
