"""Callbacks to the person behind a runtime, who answers questions and watches the runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from retinue.domain.approval import ApprovalReason, ApprovalRequest, Rule
from retinue.domain.discovered_models import DiscoveredModels
from retinue.domain.events import Event
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


class Listeners(msgspec.Struct, frozen=True, kw_only=True):
    """How to follow what a runtime does. Each is called on the event loop, and returns quickly."""

    on_event: Callable[[Event], None] | None = None
    """Every event of every run, as it happens."""
    on_text: Callable[[str], None] | None = None
    """Text of a root agent's model, as it arrives. An empty text means that the model is alive."""
    on_child_text: Callable[[str, str, str], None] | None = None
    """The same for children: (run id, agent id, text)."""
    on_wait: Callable[[str], None] | None = None
    """What the opening of the runtime waits for, if that may take a while."""
