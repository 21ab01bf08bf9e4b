"""The person behind a runtime, who answers what agents may not decide alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from retinue.domain.approval import ApprovalReason, ApprovalRequest, Rule
from retinue.domain.discovered_models import DiscoveredModels
from retinue.errors import ApprovalNeeded

Approve = Callable[[ApprovalRequest], Awaitable[bool | Rule]]
"""Ask whether an agent may do something. True or False answers this request; a Rule (the person
said "always") answers all that it covers. Raises ApprovalNeeded if nobody can be asked."""

Ask = Callable[[str, str], Awaitable[str]]
"""Put an agent's question: (path of the agent, question) -> answer."""

ChooseModel = Callable[[DiscoveredModels], Awaitable[str]]
"""Have one of the models found on this machine chosen; answers its name."""


async def refuse_unattended(request: ApprovalRequest) -> bool:
    """The approver of a run that nobody watches: raises ApprovalNeeded, with the ways out."""
    mode = {
        ApprovalReason.MODE: ", or with --mode auto",
        ApprovalReason.DESTRUCTIVE: ", or with --mode dangerous",
    }
    rule = msgspec.json.encode(str(request.rule)).decode()
    raise ApprovalNeeded(
        f"{request.path} wants {request.tool}: {request.detail[:300].rstrip('.')}. That needs your"
        f" yes ({request.why}), and nobody is there to give it; run it in a terminal, with"
        f" allow = [{rule}] in your settings{mode.get(request.why, '')}."
    )


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the user. By default nobody can be reached."""

    approve: Approve = refuse_unattended
    ask: Ask | None = None
    """Without it, agents have no `ask_user` tool."""
    choose_model: ChooseModel | None = None
    """Called if no model is named and several are found on this machine."""
