"""Run the tool calls of a turn: check the contract and the user's rules, run, record receipts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from retinue.domain.approval import Answer, ApprovalReason, ApprovalRequest, Verdict
from retinue.domain.events import CircuitBreakerTripped, ToolDenied, ToolFinished, ToolStarted
from retinue.domain.framing import frame
from retinue.domain.grant import Mode, Network
from retinue.domain.hook import FEW_CALLS, FROM_HOOK
from retinue.domain.hook_tools import our_arguments
from retinue.domain.messages import Effect, ToolCall
from retinue.domain.permissions import ASK_USER, READ_FILE
from retinue.domain.result import Receipt
from retinue.domain.skill import skill_allows
from retinue.domain.web_hosts import WEB_FETCH, web_host
from retinue.errors import (
    ApprovalNeeded,
    BudgetExceeded,
    ModelStuck,
    RunSuspended,
    StoreError,
    ToolFailure,
    WorkspaceError,
)
from retinue.ports.tool import CallInfo, PreviewsChange, Tool, ToolOutcome
from retinue.runtime.agent.agent import Agent, copy_snapshot
from retinue.runtime.agent.agent_services import AgentServices
from retinue.runtime.agent.approvals import ask_user, decision
from retinue.runtime.agent.call_arguments import (
    decode_arguments,
    parameters_of,
    text_argument,
)
from retinue.runtime.agent.conversation import INTERRUPTED, CallAnswer, max_new_tokens
from retinue.runtime.agent.hook_calls import HookCalls
from retinue.runtime.agent.transcript import Transcript
from retinue.runtime.core.task_group import map_concurrently
from retinue.runtime.policy import Breaker

# Tools with another effect change something. A child records its own work: its contract is durable
# before it starts, its closing before its parent reads the result.
_UNCHANGING = (Effect.READ, Effect.DELEGATE)
_RUNS_COMMANDS = (Effect.EXECUTE, Effect.CHECK)
_LEAVES_FILES = (*_UNCHANGING, Effect.REMEMBER)
"""Effects of calls that change no files; the work of a child is recorded when it is merged."""
MAX_REPETITIONS = 3


class _JudgedCall(msgspec.Struct, frozen=True, gc=False):
    """A call as hooks have left it."""

    call: ToolCall
    arguments: Mapping[str, Any]
    changed: bool = False
    asks: bool = False
    """Whether a hook wants the user to be asked."""
    context: tuple[str, ...] = ()
    """What hooks say about the call, for the model."""


class ToolCalls:
    """Runs the tool calls of one agent, in one attempt."""

    def __init__(self, agent: Agent, services: AgentServices) -> None:
        self._agent = agent
        self._services = services
        grant = agent.contract.permissions
        self._allowed = frozenset(grant.allowed_tools)
        self._ask = frozenset(grant.ask_tools)
        self._granted = self._allowed | self._ask
        self._mode = grant.mode
        self._max_new_tokens = max_new_tokens(agent.contract)
        self._hooks = HookCalls(agent, services) if services.hooks.events else None
        self.offered = services.tools.specs(
            grant, window=agent.contract.execution.max_context_tokens
        )
        self.exhausted = False
        self._warning: str | None = None
        self._restarted: frozenset[str] = frozenset()
        """Calls that an earlier process started and charged for, and that run once more."""
        self._failed_call: tuple[str, str] | None = None
        self._failed_times = 0
        self._calls: Sequence[ToolCall] = ()
        """Calls of the turn."""
        self._room_per_call = 0
        """Tokens for the answer to each call of the turn, so that all answers fit."""
        self._ran: dict[str, Mapping[str, Any]] = {}
        """Arguments of the turn's calls, by call id, as hooks have left them."""

    async def run(self, calls: Sequence[ToolCall]) -> list[CallAnswer]:
        """Answer every call, in order. Adjacent calls that only read run at the same time."""
        # The reply that asks for the calls is paid for: record it before anything is done.
        await self._agent.durable()
        self._calls, self._room_per_call = calls, self._max_new_tokens // (len(calls) or 1)
        if self._hooks is not None:
            return await self._run_with_hooks(self._hooks, calls)
        return await self._run_all(calls)

    async def _run_with_hooks(
        self, hooks: HookCalls, calls: Sequence[ToolCall]
    ) -> list[CallAnswer]:
        self._ran = {}
        answers = await self._run_all(calls)
        if calls:
            said = await hooks.after_batch(calls, self._ran, answers)
            self._agent.inbox += [(FROM_HOOK, text) for text in said.context]
            await hooks.budget_warning()
        return answers

    async def _run_all(self, calls: Sequence[ToolCall]) -> list[CallAnswer]:
        if len(calls) == 1:
            return [await self._answer(calls[0])]
        answers: list[CallAnswer] = []
        for kind, group in groupby(calls, key=self._parallel_group):
            batch = list(group)
            if kind and len(batch) > 1:
                most = self._services.max_parallel_calls
                answers += await map_concurrently(self._answer, batch, most)
            else:
                for call in batch:
                    answers.append(await self._answer(call))
        return answers

    async def finish(self, transcript: Transcript) -> None:
        """Answer the calls of a reply that an earlier process left unanswered.

        A started call that only reads or delegates runs again, which does nothing twice. For other
        started calls it is unknown whether they were done; the model is told so.
        """
        left = [call for call in transcript.calls if call.id not in transcript.answers]
        for call in left:
            tool = self._services.tools.get(call.name)
            if call.id in transcript.started_calls and (
                tool is None or tool.effect not in _UNCHANGING
            ):
                transcript.answers[call.id] = self._unanswered(call, INTERRUPTED)
        self._restarted = frozenset(transcript.started_calls)
        left = [call for call in left if call.id not in transcript.answers]
        transcript.answers.update((answer.call_id, answer) for answer in await self.run(left))
        self._restarted = frozenset()

    def _parallel_group(self, call: ToolCall) -> str:
        """Adjacent calls with the same group run at the same time; "" runs alone."""
        tool = self._services.tools.get(call.name)
        if tool is None or call.name not in self._allowed:
            return ""
        if call.name == WEB_FETCH and self._mode is Mode.NORMAL:
            return ""  # The user may be asked about the host, but only once.
        if tool.effect is Effect.DELEGATE:
            return call.name
        return "read" if tool.effect is Effect.READ else ""

    async def _answer(self, call: ToolCall) -> CallAnswer:
        if call.id not in self._restarted:
            try:
                self._agent.account.spend_call()
            except BudgetExceeded:
                self.exhausted = True
                text = "No tool calls are left. Answer with what you have."
                return self._deny(call, text, counted=False, note_lines=False)
            breaker = self._services.breaker
            if breaker is not None and not await self._check_breaker(breaker):
                self.exhausted = True
                text = "The user wants no more tool calls. Answer with what you have."
                return self._deny(call, text, note_lines=False)
        answer = await self._run(call)
        if answer.failed:
            self._check_repetition(call, answer)
        else:
            self._failed_call = None
        return answer

    def _budget_note(self) -> str:
        """A line about the budget that is left, if little is."""
        account = self._agent.account
        left = account.limit.tool_calls - account.spent.tool_calls
        notes = []
        if self._warning is not None:
            notes.append(self._warning)
            self._warning = None
        if left <= FEW_CALLS:
            notes.append(f"{left or 'no'} tool call{'' if left == 1 else 's'} left")
        tokens = account.remaining_tokens()
        if tokens < account.limit.tokens // 4:
            notes.append(f"{tokens:,} tokens left")
        return f"\n[{', '.join(notes)}]" if notes else ""

    def _check_repetition(self, call: ToolCall, answer: CallAnswer) -> None:
        same = (call.name, call.arguments)
        self._failed_times = self._failed_times + 1 if same == self._failed_call else 1
        self._failed_call = same
        if self._failed_times == MAX_REPETITIONS:
            raise ModelStuck(
                f"the model sent the same broken call {MAX_REPETITIONS} times in a row:"
                f" {call.name} {call.arguments[:200]} was answered: {answer.content[:300]}"
            )

    async def _check_breaker(self, breaker: Breaker) -> bool:
        """Warn at one count of tool calls, and ask the user at a higher one."""
        account = self._agent.account
        used, most = account.spent.tool_calls, account.limit.tool_calls
        if used == breaker.warn_at:
            self._agent.record(CircuitBreakerTripped(stage="warn", tool_calls=used, of=most))
            self._warning = f"{used} of {most} tool calls are used"
        if used == breaker.pause_at:
            self._agent.record(CircuitBreakerTripped(stage="pause", tool_calls=used, of=most))
            try:
                request = ApprovalRequest(
                    path=self._agent.path,
                    tool="to go on",
                    arguments=f"{used} of {most} tool calls are used",
                    why=ApprovalReason.CALLS,
                )
                return (await ask_user(self._agent, request, self._services.approve)).allowed
            except ApprovalNeeded:
                return True  # No person can be asked: continue until the hard stop.
        return True

    async def _run(self, call: ToolCall) -> CallAnswer:
        """Run one call, and record its receipt."""
        tool = self._services.tools.get(call.name)
        if tool is None or call.name not in self._granted:
            return self._deny(call, self._not_granted(call.name, tool))
        try:
            arguments = decode_arguments(call)
        except ToolFailure as failure:
            return self._deny(call, failure, mark="ERROR")
        agent, effect = self._agent, tool.effect
        judged = _JudgedCall(call, arguments)
        if self._hooks is not None:
            found = await self._ask_hooks(self._hooks, tool, judged)
            if isinstance(found, CallAnswer):
                return found
            judged, call, arguments = found, found.call, found.arguments
        if (allowed := self._skill_limit(call, tool, arguments)) is not None:
            only = f"A skill that you loaded allows only: {', '.join(allowed)}."
            advised = f"{only} Go on without this use of {call.name}."
            return self._deny(call, ToolFailure(advised, shown=only), failed=False)
        # No rule applies to other calls.
        if (
            effect is Effect.EXECUTE
            or call.name in self._ask
            or self._services.rules.deny
            or call.name == WEB_FETCH
            or judged.asks
        ):
            try:
                refusal = await self._refusal(call, tool, arguments, asked_by_hook=judged.asks)
            except ToolFailure as failure:
                # The call would fail, so no person is asked about it.
                return self._deny(call, failure, mark="ERROR")
            if refusal is not None:
                return self._deny(call, refusal, failed=False)
        changing = effect not in _UNCHANGING
        seq = 0
        if call.id not in self._restarted:
            started = ToolStarted(call_id=call.id, tool=call.name, arguments=call.arguments)
            seq = agent.record(started).seq
        if changing:
            # The start is on record before anything outside changes.
            await agent.durable()
        info = self._call_info(call, seq, alone=judged.changed)
        try:
            began = self._services.clock.monotonic()
            if effect in _RUNS_COMMANDS or call.name == ASK_USER:
                # A command has its own time limit, and a person may take any time.
                with agent.waiting():
                    outcome = await self._act(info, tool, arguments)
            else:
                outcome = await self._act(info, tool, arguments)
            if self._hooks is not None:
                took_s = self._services.clock.monotonic() - began
                outcome = await self._with_hooks(judged, info, outcome, took_s)
        except RunSuspended:
            raise  # The call runs again when the run is resumed.
        except (asyncio.CancelledError, ApprovalNeeded) as ended:
            if agent.suspension.reason is not None and not changing:
                raise  # The call runs again when the run is resumed.
            # No model reads this answer, but the journal must show that the call was started.
            refused = isinstance(ended, ApprovalNeeded)
            self._unanswered(call, f"[DENIED] {printable(str(ended))}" if refused else INTERRUPTED)
            raise
        failed = not (outcome.ok or outcome.acted or outcome.exit_code is not None)
        snapshot = "" if effect in _LEAVES_FILES else await copy_snapshot(agent.files.tree)
        if agent.files.send_changes is not None and effect not in _LEAVES_FILES:
            await agent.files.send_changes(snapshot)
        answer = self._finished(call, outcome, _receipt(call, outcome), failed, snapshot)
        if changing:
            # The change is on record before anything builds on it.
            await agent.durable()
        return answer

    async def _ask_hooks(
        self, hooks: HookCalls, tool: Tool, judged: _JudgedCall
    ) -> _JudgedCall | CallAnswer:
        """The call as hooks leave it, or the answer to a call that they block."""
        call, arguments = judged.call, judged.arguments
        self._ran[call.id] = arguments
        answer = await hooks.before_tool(call, arguments)
        if answer.blocked or answer.stop:
            return self._deny(call, answer.blocked or answer.stop, failed=False)
        if changed := answer.updated_input is not None:
            arguments = our_arguments(call.name, answer.updated_input, hooks.root)
            if unknown := set(arguments).difference(parameters_of(tool.spec)):
                names = ", ".join(sorted(unknown))
                return self._deny(call, f"A hook added what {call.name} does not have: {names}.")
            self._ran[call.id] = arguments
            call = msgspec.structs.replace(call, arguments=msgspec.json.encode(arguments).decode())
        return _JudgedCall(call, arguments, changed, bool(answer.asks), answer.context)

    def _skill_limit(
        self, call: ToolCall, tool: Tool, arguments: Mapping[str, Any]
    ) -> tuple[str, ...] | None:
        """The tools of a loaded skill that does not allow the call; None if all skills do."""
        is_command = tool.effect is Effect.EXECUTE
        for allowed in (*self._agent.earlier_tool_limits, *self._agent.state.tool_limits):
            subject = self._subject(tool, arguments)
            if not skill_allows(allowed, call.name, subject, is_command=is_command):
                return allowed
        return None

    def _unanswered(self, call: ToolCall, text: str) -> CallAnswer:
        """Record why a started call has no outcome."""
        receipt = Receipt(tool=call.name, ok=False, output_sha256=_sha256(text))
        return self._finished(call, ToolOutcome(content=text), receipt, failed=True)

    def _finished(
        self,
        call: ToolCall,
        outcome: ToolOutcome,
        receipt: Receipt,
        failed: bool,
        snapshot: str = "",
    ) -> CallAnswer:
        note = self._budget_note()
        self._agent.record(
            ToolFinished(
                call_id=call.id,
                tool=call.name,
                content=outcome.content,
                receipt=receipt,
                failed=failed,
                note=note,
                about=outcome.about,
                images=outcome.images,
                only_tools=outcome.only_tools,
                snapshot=snapshot,
                shown=outcome.shown,
            )
        )
        return CallAnswer(call.id, outcome.content, failed, note, outcome.images)

    def _not_granted(self, name: str, tool: Tool | None) -> str | ToolFailure:
        if tool is not None and tool.effect is Effect.DELEGATE:
            parent, depth = self._agent.parent, self._agent.depth
            if parent is not None and parent.contract.permissions.max_delegation_depth == 1:
                return (
                    f"Maximum sub-agent depth ({depth}) exceeded: you are at depth {depth}. Do the"
                    " work with the tools you have."
                )
            return "You may not delegate: do the work with the tools you have."
        have = ", ".join(spec.name for spec in self.offered) or "none"
        none = f"You have no tool {name!r}."
        return ToolFailure(f"{none} You have: {have}.", shown=none)

    def _call_info(self, call: ToolCall, seq: int, *, alone: bool) -> CallInfo:
        """The description of the call for its tool. `alone`: a hook has changed the call.

        An approval of the turn's calls as the model wrote them does not count for a changed one.
        """
        # The model chooses the ids, and may use one again in another turn.
        name = f"{self._agent.account.spent.turns}:{call.id}"
        traceparent = self._services.telemetry.traceparent(self._services.ctx.run_id, seq)
        if alone:
            return CallInfo(f"{name}+hook", self._room_per_call, (call,), traceparent)
        return CallInfo(name, self._room_per_call, self._calls, traceparent)

    async def _with_hooks(
        self, judged: _JudgedCall, info: CallInfo, outcome: ToolOutcome, took_s: float
    ) -> ToolOutcome:
        """`outcome` with what hooks say about the call, for the model."""
        assert self._hooks is not None, "there are hooks"
        call, arguments, said = judged.call, judged.arguments, judged.context
        if outcome.ok or outcome.acted:
            jobs = self._services.children
            child = None if jobs is None else jobs.child_for(info.name)
            after = await self._hooks.after_tool(call, arguments, outcome, took_s, child)
        else:
            after = await self._hooks.after_failure(call, arguments, outcome.content, took_s)
        said = (*said, *((after.blocked,) if after.blocked else ()), *after.context)
        if not said:
            return outcome
        lines = [f"[hook] {text}" for text in said]
        shown = "\n".join((outcome.shown, *lines)) if outcome.shown else ""
        content = "\n".join((outcome.content, *lines))
        return msgspec.structs.replace(outcome, content=content, shown=shown)

    async def _act(self, info: CallInfo, tool: Tool, arguments: Mapping[str, Any]) -> ToolOutcome:
        ctx = self._services.ctx
        if tool.effect is Effect.DELEGATE or info.traceparent:
            ctx = msgspec.structs.replace(ctx, call=info)
        try:
            outcome = await tool.run(arguments, ctx)
        except ToolFailure as failure:
            content = f"[ERROR] {printable(str(failure))}"
            if failure.quoted:
                said = frame(printable(failure.quoted), kind="untrusted", source=failure.source)
                content += f"\n{said}"
            shown = printable(failure.shown)
            return ToolOutcome(
                content=content, shown=shown, ok=False, untrusted=bool(failure.quoted)
            )
        except (StoreError, ApprovalNeeded, RunSuspended):
            raise
        except Exception as error:
            # An exception of a tool is a tool result: the model can often react to it.
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
        self, call: ToolCall, tool: Tool, arguments: Mapping[str, Any], *, asked_by_hook: bool
    ) -> ToolFailure | None:
        """Why a call is refused, by a rule or by the user; None if it may run.

        Raises ToolFailure instead of asking the user about a change that cannot be made.
        """
        agent, command = self._agent, tool.effect is Effect.EXECUTE
        # An agent that read untrusted text may be about to send data away on its behalf.
        sends = command and self._services.ctx.access.network is Network.ALL
        asks = call.name in self._ask or (agent.state.read_untrusted and sends) or asked_by_hook
        subject = self._subject(tool, arguments)
        keys: tuple[str, ...] = ()
        if call.name == WEB_FETCH:
            keys = (f"{WEB_FETCH} {subject}",)
            asks = asks or (self._mode is Mode.NORMAL and not self._is_approved(keys[0]))
        rules = self._services.rules
        verdict, rule = rules.judge(call.name, subject, is_command=command, asked=asks)
        if asked_by_hook and verdict is Verdict.ALLOW:
            verdict, rule = Verdict.ASK, None
        free = agent.contract.permissions.mode is Mode.DANGEROUS and not asks
        if (verdict is Verdict.ALLOW and rule is None) or (verdict is not Verdict.DENY and free):
            return None
        why = ApprovalReason.DESTRUCTIVE
        if verdict is Verdict.DENY:
            why = ApprovalReason.RULE
        elif asked_by_hook:
            why = ApprovalReason.HOOK
        elif call.name in self._ask or keys:
            why = ApprovalReason.MODE
        elif asks:
            why = ApprovalReason.UNTRUSTED_TEXT
        writes = tool.effect is Effect.WRITE and "path" in parameters_of(tool.spec)
        request = ApprovalRequest(
            path=agent.path,
            tool=call.name,
            arguments=call.arguments,
            why=why,
            subject=subject if command or keys else "",
            scope=self._scope() if command else "",
            directory=self._services.ctx.directory if command else "",
            file=subject if writes else "",
            preview=await self._preview(tool, arguments) if rule is None else "",
        )
        if rule is not None:
            allowed = verdict is Verdict.ALLOW
            agent.record(decision(request, Answer.YES if allowed else Answer.NO, rule, call.id))
            if allowed:
                return None
            forbidden = f"The user's rules forbid this use of {call.name}."
            return ToolFailure(f"{forbidden} Go on without it.", shown=forbidden)
        try:
            decided = await ask_user(agent, request, self._services.approve, call.id, keys=keys)
            if decided.allowed:
                return None
        except ApprovalNeeded:
            if agent.parent is None:
                raise
            # A child can continue without it, and tell its parent.
            needed = f"This needs the user's yes ({why}), but no person can be asked."
            advice = "Go on without it, and say in your answer what you would have needed."
            return ToolFailure(f"{needed} {advice}", shown=needed)
        reason = f": {decided.reason}" if decided.reason else ""
        said = f"The user said no to {call.name}{reason}."
        return ToolFailure(f"{said} Go on without it.", shown=said)

    def _subject(self, tool: Tool, arguments: Mapping[str, Any]) -> str:
        """The text that the user's rules are matched with: a command, or a normalized path.

        Only parameters of the tool count: a model may send more, to look harmless.
        """
        if tool.effect is Effect.EXECUTE:
            return text_argument(arguments, "command").strip()
        parameters = parameters_of(tool.spec)
        if tool.spec.name == WEB_FETCH:
            return web_host(text_argument(arguments, "url"))
        if "path" in parameters:
            path = text_argument(arguments, "path")
            return self._services.ctx.workspace.inside(path) or path if path else ""
        return text_argument(arguments, "command") if "command" in parameters else ""

    async def _preview(self, tool: Tool, arguments: Mapping[str, Any]) -> str:
        """The change that a call would make; "" if it is unknown. ToolFailure if it would fail."""
        if not isinstance(tool, PreviewsChange):
            return ""
        try:
            return await tool.preview(arguments, self._services.ctx)
        except WorkspaceError:
            return ""
        except ToolFailure:
            # The failure may quote the file.
            path, rules = self._subject(tool, arguments), self._services.rules
            if rules.judge(READ_FILE, path, is_command=False, asked=False)[0] is Verdict.DENY:
                return ""
            raise

    def _is_approved(self, key: str) -> bool:
        """Whether the user has said yes to the agent or to one of its ancestors."""
        agent: Agent | None = self._agent
        while agent is not None:
            answer = agent.state.answers.get(key)
            if answer is not None:
                return answer.allowed
            agent = agent.parent
        return False

    def _scope(self) -> str:
        ctx = self._services.ctx
        confined = ctx.sandbox is not None and ctx.sandbox.tier != "none"
        return str(ctx.access) if confined else "nothing confines it"

    def _deny(
        self,
        call: ToolCall,
        why: str | ToolFailure,
        *,
        counted: bool = True,
        note_lines: bool = True,
        failed: bool = True,
        mark: str = "DENIED",
    ) -> CallAnswer:
        content = f"[{mark}] {why}"
        note = self._budget_note() if note_lines else ""
        self._agent.record(
            ToolDenied(
                call_id=call.id,
                tool=call.name,
                arguments=call.arguments,
                content=content,
                counted=counted,
                failed=failed,
                note=note,
                shown=why.shown if isinstance(why, ToolFailure) else "",
            )
        )
        return CallAnswer(call.id, content, failed, note)


def _receipt(call: ToolCall, outcome: ToolOutcome) -> Receipt:
    return Receipt(
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


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def printable(text: str) -> str:
    """`text` without lone surrogates, which have no bytes in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text
