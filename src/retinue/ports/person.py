"""Callbacks to the person behind a runtime, who answers questions and watches the runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

import msgspec

from retinue.domain.approval import ApprovalReason, ApprovalRequest, Refusal, Rule
from retinue.domain.discovered_models import DiscoveredModels
from retinue.domain.events import Event
from retinue.errors import ApprovalNeeded

Approve = Callable[[ApprovalRequest], Awaitable[bool | Rule | Refusal]]
"""Ask whether an agent may do something. True or False answers this request; a Rule (the person
said "always") answers all requests that it covers; a Refusal is a no with a reason. Raises
ApprovalNeeded if no person can be asked.
"""

Ask = Callable[[str, str], Awaitable[str]]
"""Ask the user a question of an agent: (path of the agent, question) -> answer."""

ReadBuffer = Callable[[str], Awaitable[str | None]]
"""The text of a file as the user's editor has it, by its absolute path; None if it is not known."""

ChooseModel = Callable[[DiscoveredModels], Awaitable[str]]
"""Let the user choose one of the models found on this machine. Returns its name."""


async def refuse_unattended(request: ApprovalRequest) -> bool:
    """`approve` of a runtime without a person: raises ApprovalNeeded, and says what to do."""
    mode = {
        ApprovalReason.MODE: ", or with --mode auto",
        ApprovalReason.DESTRUCTIVE: ", or with --mode dangerous",
    }
    rule = msgspec.json.encode(str(request.rule)).decode()
    allowing = f", with allow = [{rule}] in your settings{mode.get(request.why, '')}"
    if request.why is ApprovalReason.HOOK:
        allowing = ""  # It asks whatever the rules allow.
    raise ApprovalNeeded(
        f"{request.path} asks for {request.tool}: {request.detail[:300].rstrip('.')}. That needs"
        f" your yes ({request.why}), but no person can be asked; run it in a terminal"
        f"{allowing}."
    )


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks that ask the user. By default no person can be asked.

    One person answers for all runs of a runtime. A server with many users opens a runtime for each
    of them, with a person of its own; several runtimes can be open in one directory. `approve` may
    wait for as long as it likes, such as for a future that another request sets.

    ```python
    async def approve(request: retinue.ApprovalRequest) -> bool | retinue.Refusal:
        return True if request.tool == "write_file" else retinue.Refusal("Only files.")

    async def ask(agent: str, question: str) -> str:
        return input(f"{agent} asks: {question} ")

    person = retinue.Person(approve=approve, ask=ask)
    assert person.attended
    ```
    """

    origin: ClassVar[str] = ""  # Where the person is, if not at a terminal; marks their runs.
    approve: Approve = refuse_unattended
    """`async (ApprovalRequest) -> bool | Rule | Refusal`. A `Rule`, such as `request.rule`, also
    allows all later calls like this one; a `Refusal` is a no with a reason. Agents wait for the
    answer, and their time limits stand still."""
    ask: Ask | None = None
    """`async (path of the agent, question) -> answer`. Without it, agents have no `ask_user`."""
    read_buffer: ReadBuffer | None = None
    """Lets the root read files with changes that the user has not saved."""
    choose_model: ChooseModel | None = None
    """`async (DiscoveredModels) -> model name`, if no model is named and several are found."""

    @property
    def attended(self) -> bool:
        """Whether a person can be asked to approve something."""
        return self.approve is not refuse_unattended


class Listeners(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks that follow the runs. They are called on the event loop and must return quickly.

    ```python
    listeners = retinue.Listeners(on_event=lambda event: print(event.agent_id, event.summary))
    async with retinue.open(".", model=ScriptedModel([say("Hi.")]), listeners=listeners) as rt:
        await rt.run("Greet me.")
    ```
    """

    on_event: Callable[[Event], None] | None = None
    """Every event of every run, as it happens."""
    on_text: Callable[[str], None] | None = None
    """Text of a root agent's model, as it arrives. An empty text means that the model is alive."""
    on_child_text: Callable[[str, str, str], None] | None = None
    """Like `on_text`, for children: (run id, agent id, text)."""
    on_progress: Callable[[str, str, str, str], None] | None = None
    """Progress of long work: (run id, agent id, tool, text). Without a tool, it is about checks or
    copies of files."""
    on_stop: Callable[[str], bool] | None = None
    """Another process asks to stop the run of this id, so that it can be resumed. Returns whether
    that is done. Without it, the call that waits for the run raises RunSuspended after the current
    turn."""
    on_wait: Callable[[str], None] | None = None
    """Called with what the runtime waits for while it opens, if that may take a while."""
