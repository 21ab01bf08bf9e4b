"""Running the tool calls of a turn: what the contract allows, in the right order, with receipts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from retinue.domain.account import Resources
from retinue.domain.approval import Answer, ApprovalRequest, Rules, Verdict, Why
from retinue.domain.drafting import ASK_USER
from retinue.domain.events import CircuitBreakerTripped, ToolDenied, ToolFinished, ToolStarted
from retinue.domain.grant import Grant, Mode, Network
from retinue.domain.messages import Effect, ToolCall, ToolSpec
from retinue.domain.result import Receipt
from retinue.errors import (
    ApprovalNeeded,
    BudgetExceeded,
    ModelStuck,
    StoreError,
    ToolFailure,
)
from retinue.ports.delegation import CallInfo
from retinue.ports.person import Approve
from retinue.ports.tool import Tool, ToolContext
from retinue.ports.tool_outcome import ToolOutcome
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.approvals import ask, decided
from retinue.runtime.agent.conversation import Answered, room_for_news
from retinue.runtime.core.task_group import map_concurrently
from retinue.runtime.policy import Breaker

if TYPE_CHECKING:
    from retinue.runtime.agent.transcript import Transcript

# Whatever else a tool does changes something. A child sees to its own record: its contract is safe
# before it works, its end before it is told.
_UNCHANGING = (Effect.READ, Effect.DELEGATE)
NO_RULES = Rules()
ONE_CALL = Resources(tool_calls=1)
FEW = 3
BROKEN_TIMES = 3
INTERRUPTED = "[ERROR] interrupted; it may have been done"


class Tools(Protocol):
    """The tools there are: a mapping by name, with the schemas of a selection of them."""

    def get(self, name: str) -> Tool | None: ...

    def specs(self, grant: Grant, *, window: int) -> tuple[ToolSpec, ...]: ...

    def omitted_tool_notes(self, grant: Grant, *, window: int) -> tuple[str, ...]: ...

    @property
    def effects(self) -> Mapping[str, Effect]: ...


class ToolCalls:
    """The tools of one agent, for one attempt."""

    def __init__(
        self,
        agent: Agent,
        tools: Tools,
        ctx: ToolContext,
        approve: Approve,
        breaker: Breaker | None = None,
        *,
        at_once: int,
        rules: Rules = NO_RULES,
    ) -> None:
        """`at_once` is how many calls that may run side by side do so."""
        self._rules = rules
        self._at_once = at_once
        self._agent = agent
        self._tools = tools
        self._ctx = ctx
        self._approve = approve
        grant = agent.contract.permissions
        self._allowed = frozenset(grant.allowed_tools)
        self._ask = frozenset(grant.ask_tools)
        self._yours = self._allowed | self._ask
        self._news_room = room_for_news(agent.contract)
        self.offered = tools.specs(grant, window=agent.contract.execution.max_context_tokens)
        self.exhausted = False
        self._breaker = breaker
        self._warning: str | None = None
        self._begun: frozenset[str] = frozenset()
        """Calls that are paid for and on record, and are made once more."""
        self._broken: tuple[str, str] | None = None
        self._broken_times = 0
        self._share_tokens = 0
        """What the answer to each call of the turn may have, so that there is room for all."""

    async def run(self, calls: Sequence[ToolCall]) -> list[Answered]:
        """Answer every call, in order. Neighbours that only read run side by side."""
        # The reply that asks for them is paid for: it must be on record before anything is done.
        await self._agent.durable()
        self._share_tokens = self._news_room // (len(calls) or 1)
        if len(calls) == 1:
            return [await self._answer(calls[0])]
        answers: list[Answered] = []
        for kind, group in groupby(calls, key=self._company):
            batch = list(group)
            if kind and len(batch) > 1:
                answers += await map_concurrently(self._answer, batch, self._at_once)
            else:
                for call in batch:
                    answers.append(await self._answer(call))
        return answers

    async def finish(self, transcript: Transcript) -> None:
        """Answer those calls of a reply that an earlier process has left unanswered.

        What only reads, or has children, is begun again if it was begun: nothing is done twice by
        it. Of anything else nobody knows whether it was done, which the model is told.
        """
        left = [call for call in transcript.calls if call.id not in transcript.answers]
        for call in left:
            tool = self._tools.get(call.name)
            if call.id in transcript.started_calls and (
                tool is None or tool.effect not in _UNCHANGING
            ):
                note = self._interrupted(call)
                transcript.answers[call.id] = Answered(call.id, INTERRUPTED, True, note)
        self._begun = frozenset(transcript.started_calls)
        left = [call for call in left if call.id not in transcript.answers]
        transcript.answers.update((answer.call_id, answer) for answer in await self.run(left))
        self._begun = frozenset()

    def _company(self, call: ToolCall) -> str:
        """What neighbours must have in common to run side by side; nothing, for what runs alone."""
        tool = self._tools.get(call.name)
        if tool is None or call.name not in self._allowed:
            return ""
        if tool.effect is Effect.DELEGATE:
            return call.name
        return "read" if tool.effect is Effect.READ else ""

    async def _answer(self, call: ToolCall) -> Answered:
        if call.id not in self._begun:
            try:
                self._agent.account.spend(ONE_CALL)
            except BudgetExceeded:
                self.exhausted = True
                text = "No tool calls are left. Answer with what you have."
                return self._deny(call, text, counted=False, noted=False)
            if self._breaker is not None and not await self._go_on(self._breaker):
                self.exhausted = True
                text = "The user wants no more tool calls. Answer with what you have."
                return self._deny(call, text, noted=False)
        answer = await self._run(call)
        if answer.failed:
            self._watch_for_repetition(call, answer)
        else:
            self._broken = None
        return answer

    def _what_is_left(self) -> str:
        """A line about the budget, when it matters."""
        account = self._agent.account
        left = account.limit.tool_calls - account.spent.tool_calls
        notes = []
        if self._warning is not None:
            notes.append(self._warning)
            self._warning = None
        if left <= FEW:
            notes.append(f"{left or 'no'} tool call{'' if left == 1 else 's'} left")
        tokens, _ = account.remaining_shared()
        if tokens < account.limit.tokens // 4:
            notes.append(f"{tokens:,} tokens left")
        return f"\n[{', '.join(notes)}]" if notes else ""

    def _watch_for_repetition(self, call: ToolCall, answer: Answered) -> None:
        same = (call.name, call.arguments)
        self._broken_times = self._broken_times + 1 if same == self._broken else 1
        self._broken = same
        if self._broken_times == BROKEN_TIMES:
            raise ModelStuck(
                f"the model sent the same broken call {BROKEN_TIMES} times in a row:"
                f" {call.name} {call.arguments[:200]} was answered: {answer.content[:300]}"
            )

    async def _go_on(self, breaker: Breaker) -> bool:
        """Warn at one count of tool calls, and ask a person at a higher one."""
        account = self._agent.account
        used, most = account.spent.tool_calls, account.limit.tool_calls
        if used == breaker.warn_at:
            self._agent.record(CircuitBreakerTripped(stage="warn", tool_calls=used, of=most))
            self._warning = f"{used} of {most} tool calls are used"
        if used == breaker.pause_at:
            self._agent.record(CircuitBreakerTripped(stage="pause", tool_calls=used, of=most))
            try:
                wish = ApprovalRequest(
                    path=self._agent.path,
                    tool="to go on",
                    arguments=f"{used} of {most} tool calls are used",
                    why=Why.CALLS,
                )
                return await ask(self._agent, wish, self._approve)
            except ApprovalNeeded:
                return True  # Nobody to ask: the hard stop is near enough.
        return True

    async def _run(self, call: ToolCall) -> Answered:
        """What the model is told, and whether the call made sense and worked."""
        tool = self._tools.get(call.name)
        if tool is None or call.name not in self._yours:
            return self._deny(call, self._not_yours(call.name, tool))
        try:
            arguments = _arguments(call)
        except ToolFailure as failure:
            return self._deny(call, str(failure), mark="ERROR")
        agent, effect = self._agent, tool.effect
        # Of any other call nobody has said anything.
        if effect is Effect.EXECUTE or call.name in self._ask or self._rules.deny:
            refusal = await self._refusal(call, tool, arguments)
            if refusal is not None:
                return self._deny(call, refusal, failed=False)
        changing = effect not in _UNCHANGING
        if call.id not in self._begun:
            agent.record(ToolStarted(call_id=call.id, tool=call.name, arguments=call.arguments))
        if changing:
            # Nothing may change outside before the journal knows that it was tried.
            await agent.durable()
        try:
            if effect is Effect.EXECUTE or call.name == ASK_USER:
                # A command has a time limit of its own, and a person may think.
                with agent.waiting():
                    outcome = await self._act(call, tool, arguments)
            else:
                outcome = await self._act(call, tool, arguments)
        except (asyncio.CancelledError, ApprovalNeeded):
            if agent.suspension.reason is not None and not changing:
                raise  # It is run again when the run goes on.
            # Nobody will hear of it, but who reads the journal must not think that it never began.
            self._interrupted(call)
            raise
        receipt = Receipt(
            tool=call.name,
            ok=outcome.ok,
            output_sha256=_sha256(outcome.content),
            command=outcome.command,
            exit_code=outcome.exit_code,
            read=outcome.read,
            changed=outcome.changed,
            before_sha256=outcome.before_sha256,
            after_sha256=outcome.after_sha256,
            untrusted=outcome.untrusted,
        )
        agent.keep(receipt)
        worked = outcome.ok or outcome.acted or outcome.exit_code is not None
        note = self._what_is_left()
        agent.record(
            ToolFinished(
                call_id=call.id,
                tool=call.name,
                content=outcome.content,
                receipt=receipt,
                failed=not worked,
                note=note,
                about=outcome.about,
            )
        )
        if changing:
            # And nothing may be built upon a change before the journal knows what it was.
            await agent.durable()
        return Answered(call.id, outcome.content, not worked, note)

    def _interrupted(self, call: ToolCall) -> str:
        """Write down that nobody knows what became of a call; answers the note beside that."""
        receipt = Receipt(tool=call.name, ok=False, output_sha256=_sha256(INTERRUPTED))
        note = self._what_is_left()
        self._agent.keep(receipt)
        self._agent.record(
            ToolFinished(
                call_id=call.id,
                tool=call.name,
                content=INTERRUPTED,
                receipt=receipt,
                failed=True,
                note=note,
            )
        )
        return note

    def _not_yours(self, name: str, tool: Tool | None) -> str:
        if tool is not None and tool.effect is Effect.DELEGATE:
            return "You may not delegate: do the work with the tools you have."
        have = ", ".join(spec.name for spec in self.offered) or "none"
        return f"You have no tool {name!r}. You have: {have}."

    async def _act(self, call: ToolCall, tool: Tool, arguments: Mapping[str, Any]) -> ToolOutcome:
        ctx = self._ctx
        if tool.effect is Effect.DELEGATE:
            # Ids are the model's, and may come again in another turn.
            turn = self._agent.account.spent.turns
            asked = CallInfo(f"{turn}:{call.id}", self._share_tokens)
            ctx = msgspec.structs.replace(ctx, call=asked)
        try:
            outcome = await tool.run(arguments, ctx)
        except ToolFailure as failure:
            return ToolOutcome(content=f"[ERROR] {printable(str(failure))}", ok=False)
        except (StoreError, ApprovalNeeded):
            raise
        except Exception as error:
            # A tool that raises is a tool result: the model can often do something about it.
            return ToolOutcome(
                content=f"[ERROR] {tool.spec.name} broke: {type(error).__name__}:"
                f" {printable(str(error))}",
                ok=False,
            )
        content = printable(outcome.content)
        if content is outcome.content:
            return outcome
        return msgspec.structs.replace(outcome, content=content)

    async def _refusal(
        self, call: ToolCall, tool: Tool, arguments: Mapping[str, Any]
    ) -> str | None:
        """Why a call is not made: a rule of the user's, or a person's no."""
        agent, command = self._agent, tool.effect is Effect.EXECUTE
        # Who has read a stranger's text may be about to send something away on its behalf.
        sends = command and self._ctx.reach.network is Network.ALL
        asks = call.name in self._ask or (agent.heard_untrusted and sends)
        subject = self._subject(tool, arguments)
        verdict, rule = self._rules.ruling(call.name, subject, is_command=command, asked=asks)
        free = agent.contract.permissions.mode is Mode.DANGEROUS and not asks
        if (verdict is Verdict.ALLOW and rule is None) or (verdict is not Verdict.DENY and free):
            return None
        why = Why.MODE if call.name in self._ask else Why.STRANGERS if asks else Why.DESTRUCTIVE
        if verdict is Verdict.DENY:
            why = Why.RULE
        wish = ApprovalRequest(
            path=agent.path,
            tool=call.name,
            arguments=call.arguments,
            why=why,
            subject=subject if command else "",
            scope=self._scope() if command else "",
        )
        if rule is not None:
            allowed = verdict is Verdict.ALLOW
            agent.record(decided(wish, Answer.YES if allowed else Answer.NO, rule, call.id))
            if allowed:
                return None
            return f"The user's rules forbid this use of {call.name}. Go on without it."
        try:
            if await ask(agent, wish, self._approve, call.id):
                return None
        except ApprovalNeeded:
            if agent.parent is None:
                raise
            # A child can do without, and tell its parent.
            return (
                f"This needs the user's yes ({why}), and nobody is there to give it."
                " Go on without it, and say in your answer what you would have needed."
            )
        return f"The user said no to {call.name}. Go on without it."

    def _subject(self, tool: Tool, arguments: Mapping[str, Any]) -> str:
        """What a call acts on, for rules about it: a command, or the one spelling of a path.

        Only what the tool takes counts: a model may send more, to look harmless.
        """
        if tool.effect is Effect.EXECUTE:
            return _text(arguments, "command").strip()
        takes = _taken(tool.spec)
        if "path" in takes:
            path = _text(arguments, "path")
            return self._ctx.workspace.inside(path) or path if path else ""
        return _text(arguments, "command") if "command" in takes else ""

    def _scope(self) -> str:
        sandbox = self._ctx.sandbox
        confined = sandbox is not None and sandbox.tier != "none"
        return str(self._ctx.reach) if confined else "nothing confines it"

    def _deny(
        self,
        call: ToolCall,
        text: str,
        *,
        counted: bool = True,
        noted: bool = True,
        failed: bool = True,
        mark: str = "DENIED",
    ) -> Answered:
        content = f"[{mark}] {text}"
        note = self._what_is_left() if noted else ""
        self._agent.record(
            ToolDenied(
                call_id=call.id,
                tool=call.name,
                arguments=call.arguments,
                content=content,
                counted=counted,
                failed=failed,
                note=note,
            )
        )
        return Answered(call.id, content, failed, note)


def _arguments(call: ToolCall) -> Mapping[str, Any]:
    text = call.arguments.strip() or "{}"
    try:
        arguments = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ToolFailure(
            f"The arguments of {call.name} are not JSON ({error}). Send one JSON object."
        ) from None
    except RecursionError:
        raise ToolFailure(
            f"The arguments of {call.name} are nested too deeply. Send one flat JSON object."
        ) from None
    if not isinstance(arguments, dict):
        raise ToolFailure(f"The arguments of {call.name} must be one JSON object.")
    return arguments


class _Schema(msgspec.Struct):
    properties: dict[str, msgspec.Raw] = {}


def _taken(spec: ToolSpec) -> Collection[str]:
    """The names of the arguments that a tool takes."""
    try:
        return msgspec.json.decode(spec.parameters, type=_Schema).properties
    except msgspec.DecodeError:
        return ()  # A server may have sent anything.


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    return value if isinstance(value, str) else ""


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def printable(text: str) -> str:
    """`text` without lone surrogates, which have no bytes in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text
