"""Running the tool calls of a turn: what the contract allows, in the right order, with receipts."""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

import msgspec

from retinue.domain.budget import Amounts
from retinue.domain.events import ToolDenied, ToolFinished, ToolStarted
from retinue.domain.messages import Effect, ToolAnswer, ToolCall, ToolSpec
from retinue.domain.result import Receipt
from retinue.errors import ApprovalNeeded, BudgetExceeded, StoreError, ToolFailure
from retinue.ports import Approve, Hands, Outcome, Tool
from retinue.runtime.agent import Agent
from retinue.runtime.nursery import Nursery

ONE_CALL = Amounts(tool_calls=1)
FEW = 3


class Tools(Protocol):
    """The tools there are: a mapping by name, with the schemas of a selection of them."""

    def get(self, name: str) -> Tool | None: ...

    def specs(self, names: tuple[str, ...]) -> tuple[ToolSpec, ...]: ...

    @property
    def effects(self) -> Mapping[str, Effect]: ...


class Toolbox:
    """The tools of one agent, for one attempt."""

    def __init__(self, agent: Agent, tools: Tools, hands: Hands, approve: Approve) -> None:
        self._agent = agent
        self._tools = tools
        self._hands = hands
        self._approve = approve
        grant = agent.contract.permissions
        self._allowed = frozenset(grant.allowed_tools)
        self._ask = frozenset(grant.ask_tools)
        self.offered = tools.specs(tuple(sorted(self._allowed | self._ask)))
        self.exhausted = False

    async def run(self, calls: Sequence[ToolCall]) -> list[ToolAnswer]:
        """Answer every call, in order. Neighbours that only read run side by side."""
        # The reply that asks for them is paid for: it must be on record before anything is done.
        await self._agent.durable()
        answers: list[ToolAnswer] = []
        for reads, group in groupby(calls, key=self._only_reads):
            batch = list(group)
            if reads and len(batch) > 1:
                answers += await _together(self._answer(call) for call in batch)
            else:
                for call in batch:
                    answers.append(await self._answer(call))
        return answers

    def _only_reads(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.effect is Effect.READ and call.name in self._allowed

    async def _answer(self, call: ToolCall) -> ToolAnswer:
        account = self._agent.account
        try:
            account.spend(ONE_CALL)
        except BudgetExceeded:
            self.exhausted = True
            return self._deny(call, "No tool calls are left. Answer with what you have.")
        content = await self._run(call)
        left = account.left.tool_calls
        if left <= FEW:
            content += f"\n[{left or 'no'} tool call{'' if left == 1 else 's'} left]"
        return ToolAnswer(call.id, content)

    async def _run(self, call: ToolCall) -> str:
        tool = self._tools.get(call.name)
        if tool is None or call.name not in self._allowed | self._ask:
            have = ", ".join(spec.name for spec in self.offered) or "none"
            return self._deny(call, f"You have no tool {call.name!r}. You have: {have}.").content
        try:
            arguments = _arguments(call)
        except ToolFailure as failure:
            return self._deny(call, str(failure)).content
        if call.name in self._ask and not await self._approved(call):
            return self._deny(call, f"The user said no to {call.name}. Go on without it.").content
        agent = self._agent
        agent.record(ToolStarted(call_id=call.id, tool=call.name, arguments=call.arguments))
        if tool.effect is not Effect.READ:
            # Nothing may change outside before the journal knows that it was tried.
            await agent.durable()
        outcome = await self._act(tool, arguments)
        receipt = Receipt(
            tool=call.name,
            ok=outcome.ok,
            output_sha256=hashlib.sha256(outcome.content.encode()).hexdigest(),
            command=outcome.command,
            exit_code=outcome.exit_code,
            read=outcome.read,
            changed=outcome.changed,
            before_sha256=outcome.before_sha256,
            after_sha256=outcome.after_sha256,
        )
        agent.keep(receipt)
        agent.record(
            ToolFinished(call_id=call.id, tool=call.name, content=outcome.content, receipt=receipt)
        )
        if tool.effect is not Effect.READ:
            # And nothing may be built upon a change before the journal knows what it was.
            await agent.durable()
        return outcome.content

    async def _act(self, tool: Tool, arguments: Mapping[str, Any]) -> Outcome:
        try:
            outcome = await tool.run(arguments, self._hands)
        except ToolFailure as failure:
            return Outcome(content=f"[ERROR] {printable(str(failure))}", ok=False)
        except StoreError:
            raise
        except Exception as error:
            # A tool that raises is a tool result: the model can often do something about it.
            return Outcome(
                content=f"[ERROR] {tool.spec.name} broke: {type(error).__name__}:"
                f" {printable(str(error))}",
                ok=False,
            )
        return msgspec.structs.replace(outcome, content=printable(outcome.content))

    async def _approved(self, call: ToolCall) -> bool:
        return await self._approve(self._agent.path, call.name, call.arguments)

    def _deny(self, call: ToolCall, text: str) -> ToolAnswer:
        content = f"[DENIED] {text}"
        self._agent.record(
            ToolDenied(call_id=call.id, tool=call.name, arguments=call.arguments, content=content)
        )
        return ToolAnswer(call.id, content)


async def nobody(path: str, tool: str, arguments: str) -> bool:
    """The approver of a run that nobody watches."""
    raise ApprovalNeeded(
        f"{path} wants to use {tool}, which needs your yes, and nobody is there to give it;"
        " run it in a terminal, or with --mode auto."
    )


def _arguments(call: ToolCall) -> Mapping[str, Any]:
    text = call.arguments.strip() or "{}"
    try:
        arguments = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ToolFailure(
            f"The arguments of {call.name} are not JSON ({error}). Send one JSON object."
        ) from None
    if not isinstance(arguments, dict):
        raise ToolFailure(f"The arguments of {call.name} must be one JSON object.")
    return arguments


def printable(text: str) -> str:
    """`text` without lone surrogates, which have no bytes in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


async def _together(answers: Iterable[Coroutine[Any, Any, ToolAnswer]]) -> list[ToolAnswer]:
    async with Nursery() as nursery:
        tasks = [nursery.create_task(answer) for answer in answers]
    return [task.result() for task in tasks]
