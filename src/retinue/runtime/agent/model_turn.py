"""Model turns: reserve budget, call the model with retries, settle the cost, record the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from retinue.domain.account import UNLIMITED, Reservation, Resources
from retinue.domain.agent_state import CONDENSING
from retinue.domain.events import (
    CALL_CANCELLED,
    CALL_LOST,
    ContextCompacted,
    LimitReached,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    TurnStarted,
)
from retinue.domain.messages import (
    Finish,
    Message,
    QueuedRequest,
    Reply,
    ToolSpec,
    Usage,
    UserMessage,
)
from retinue.domain.resume_point import ConversationFact
from retinue.domain.sampling import NO_SAMPLING
from retinue.errors import (
    BudgetExceeded,
    ContextOverflow,
    ModelError,
    ModelTimeout,
    ProviderError,
)
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.agent_services import AgentServices
from retinue.runtime.agent.conversation import (
    CONDENSE,
    CONTINUE,
    CONTINUE_CALLS,
    CONTINUED,
    CUT_CALLS,
    LAST_TURN,
    LAST_TURN_TOKENS,
    REWRITTEN,
    SMALLER_CALLS,
    SUMMARIZE,
    SUMMARIZING,
    WRITE_AGAIN,
    CallAnswer,
    Conversation,
    max_answer_bytes,
    max_new_tokens,
)
from retinue.runtime.agent.hook_calls import HookCalls
from retinue.runtime.agent.transcript import Transcript, replay
from retinue.runtime.agent.turn_budget import ANSWER_TOKENS, TurnBudget

RETRIES = 3
BACKOFF_S = 0.25
MAX_WAIT_S = 60.0
MAX_OVERFLOWS = 4


class _ReservationTooSmall(Exception):
    """While the request was queued, the server charged others more than the bounds allow."""


class ModelSession:
    """One agent's access to its model, for one attempt."""

    def __init__(
        self,
        agent: Agent,
        services: AgentServices,
        tools: tuple[ToolSpec, ...],
        opening: tuple[Message, ...],
    ) -> None:
        execution = agent.contract.execution
        calibration = services.reservations.calibration(execution.model)
        self.conversation = Conversation(opening, tools, earlier=services.earlier_messages)
        self.asked = 0
        """How often the model was asked in this attempt."""
        self.reached_limit: str | None = None
        """The limit at which the model was asked for its last answer; None before that."""
        self._agent = agent
        self._services = services
        self._tools = tools
        self._window = UNLIMITED if services.window is None else services.window
        # The window also has to hold the answer.
        room = self._window - min(self._window // 4, ANSWER_TOKENS)
        self._max_prompt_tokens = min(execution.max_context_tokens, room)
        self._max_new_tokens = max_new_tokens(agent.contract)
        self._max_turns = execution.max_turns
        self._schema = agent.contract.outputs.output_schema
        self._sampling = execution.sampling or NO_SAMPLING
        self._budget = TurnBudget(
            agent.account,
            self.conversation,
            calibration,
            price=services.price,
            window=self._window,
            max_output=self._sampling.max_output_tokens,
            most_output=services.max_output,
        )
        # Children of a run share a queue key. The root has its own, so that a person who talks to
        # it does not wait for the requests of its children.
        run_id = agent.contract.parent.run_id
        self._queue_key = run_id if agent.depth else f"{run_id} {agent.path}"
        self._last_model = ""
        self._unsent: TurnStarted | None = None
        """Event to record when the request is sent; None if it is recorded."""
        self._received: list[str] = []
        self._silent_pieces = 0
        """How much has arrived without text: thinking, or a call. A piece is mostly one token."""
        self._cut_text = ""
        """Text of a reply that was cut off, while the model continues it."""

    def tell(self, content: str, *, source: str, about: tuple[str, ...] = ()) -> None:
        """Add a user message to the conversation, and record it."""
        self._agent.record(MessageReceived(content=content, source=source, about=about))
        self.conversation.add(UserMessage(content))

    # Limits

    def limit(self) -> str | None:
        """The limit that leaves only one more turn; None if there are more."""
        if self.asked == 0:
            return None  # Without a conversation there is no last answer to ask for.
        account = self._agent.account
        if self._max_turns - account.spent.turns <= 1:
            return "max_turns"
        return self._budget.reached_limit()

    @property
    def has_turns(self) -> bool:
        """Whether the model can be asked again."""
        return self._agent.account.spent.turns < self._max_turns

    # The size of the conversation

    def fit(self, answers: Sequence[CallAnswer]) -> int | None:
        """The maximum bytes of each answer, if they do not all fit into the prompt; else None."""
        conversation, room = self.conversation, self._max_new_tokens
        if conversation.estimate + room > self._max_prompt_tokens:
            left = conversation.room(self._max_prompt_tokens, len(answers))
            # With less room, it is better to summarize the conversation than to cut the answers.
            # Until then, the window must hold the answers.
            if left < room // 2:
                left = conversation.room(self._window - self._budget.last_output, len(answers))
            room = min(room, max(left, 0))
        # The budget must allow the last turn to read the answers.
        room = min(room, self._agent.account.remaining_tokens() * 4 // 5)
        # Bytes are counted as four to a token.
        longest = max_answer_bytes(answers, int(room / (4 * conversation.tokens_per_byte)))
        if longest is not None:
            self._agent.record(ContextCompacted(longest=longest))
        return longest

    @property
    def exceeds_window(self) -> bool:
        """Whether the prompt is too large and can be made smaller. An opening alone cannot."""
        if self.asked == 0 and not self.conversation.has_earlier:
            return False
        return self.conversation.estimate > self._max_prompt_tokens

    async def make_room(self) -> str | None:
        """Make the prompt fit the window: mask old tool results, or have the model summarize.

        Return the limit that is reached if neither is enough.
        """
        conversation = self.conversation
        window = self._max_prompt_tokens
        # Mask a quarter more than needed: masking invalidates the server's prefix cache, so it must
        # not happen again for every new answer.
        self._mask(window - window // 4)
        if conversation.estimate <= window:
            return None
        if (
            not conversation.can_be_summarized
            or self._max_turns - self._agent.account.spent.turns <= 2
        ):
            return "max_context_tokens"
        if self._services.hooks.events:
            await HookCalls(self._agent, self._services).before_compact(
                "auto", conversation.messages
            )
        try:
            await self.summarize()
        except BudgetExceeded as error:
            return error.limit
        except ContextOverflow:
            return "max_context_tokens"
        return None if conversation.estimate <= window else "max_context_tokens"

    def _mask(self, max_tokens: int, *, unread: bool = False) -> None:
        if masked := self.conversation.mask(max_tokens, unread=unread):
            self._agent.record(ContextCompacted(masked=masked, unread=unread))

    async def summarize(self) -> str:
        """Have the model summarize the conversation; continue with the summary alone."""
        self.tell(SUMMARIZE, source=SUMMARIZING)
        reply = await self._turn((), None, last=False)
        return self._replace(reply.message.content)

    async def condense(self, max_tokens: int) -> None:
        """Have the model write a shorter version of its answer, if the budget allows.

        Without one, the answer is cut.
        """
        if self.limit() is not None:
            return
        words = CONDENSE.format(tokens=max_tokens, words=max_tokens * 2 // 3)
        self.tell(words, source=CONDENSING)
        with suppress(BudgetExceeded, ModelError):
            await self._turn((), None, last=False)

    def _replace(self, summary: str) -> str:
        dropped = self.conversation.replace_by_summary(summary)
        self._agent.record(ContextCompacted(dropped=dropped, content=summary))
        return summary

    def _shrink_for_last_turn(self, limit: str) -> None:
        """Make the conversation fit into the last turn: window, tokens and money.

        Mask old results first, then unread ones. If that is not enough, keep only the opening and
        the model's own words.
        """
        conversation = self.conversation
        most, excess = self._budget.room_in_last_turn()
        most = min(self._max_prompt_tokens, most)
        # Text that is not counted yet may have more tokens than usual.
        most = (most - LAST_TURN_TOKENS) * 4 // 5
        if conversation.estimate > most:
            self._mask(most)
        if conversation.estimate > most or excess > 0:
            self._mask(min(most, conversation.estimate - excess), unread=True)
        if conversation.estimate > most and conversation.has_turns:
            words = conversation.own_words(most - conversation.opening_tokens)
            self._replace(f"{words}\n\n{LAST_TURN.format(limit=limit)}")

    def restore(self, facts: Iterable[ConversationFact]) -> Transcript:
        """Rebuild the conversation that another process has left."""
        transcript = replay(facts, self.conversation, exact=True)
        self.asked = transcript.turns
        if transcript.last_reply is not None:
            self._last_model = transcript.last_reply.model
        if transcript.continues:
            self._cut_text = transcript.text
            self._budget.allow_longer_replies()
        if (summary := transcript.pending_summary) is not None:
            transcript.last_reply = None
            transcript.summary = self._replace(summary)
        return transcript

    def charge_lost_call(self) -> None:
        """Charge the prompt of a call that was under way when another process ended."""
        agent = self._agent
        usage = self._estimated(0)
        agent.account.charge(
            Resources(0, 0, usage.tokens, usage.cost_microusd, usage.billed_tokens)
        )
        agent.record(ModelFailed(turn=agent.account.spent.turns + 1, error=CALL_LOST, usage=usage))

    def ask_for_missing_calls(self) -> None:
        """Ask for the calls that are missing from a reply that was cut off, once it is answered."""
        longer = self._budget.allow_longer_replies()
        self.tell(CONTINUE_CALLS if longer else CONTINUE_CALLS + SMALLER_CALLS, source=CUT_CALLS)

    # Turns

    async def ask(
        self, *, limit: str | None = None, knows_limit: bool = False, tools: bool = True
    ) -> Reply:
        """Get the model's next reply. At a `limit`, ask for its last answer, without tools.

        `knows_limit` says whether an earlier message already told the model about the limit. If a
        limit turns out to be reached, `reached_limit` names it, and the reply is the last answer.
        """
        if limit is None and self._max_turns - self._agent.account.spent.turns > 1:
            try:
                return await self._ask(tools)
            except BudgetExceeded as error:
                if not self.conversation.has_turns:
                    raise
                limit = error.limit
            except ContextOverflow as error:
                if not self.conversation.has_turns:
                    raise _overflow(error) from error
                limit = "max_context_tokens"
        self.reached_limit = limit
        return await self._ask_last(limit, knows_limit)

    async def _ask(self, tools: bool) -> Reply:
        """A turn that others may follow. A reply that was cut off is continued."""
        offered = self._tools if tools else ()
        overflows = 0
        while True:
            try:
                reply = await self._turn(offered, self._schema, last=False)
            except ContextOverflow:
                # The window is smaller, or the prompt larger, than was known.
                self._lower_max_prompt()
                self._mask(self._max_prompt_tokens)
                overflows += 1
                if overflows == MAX_OVERFLOWS or self.exceeds_window:
                    raise
                continue
            text = self._cut_text + reply.message.content
            if text.strip():
                self._agent.last_text = text
            self._cut_text = ""
            if reply.finish is Finish.LENGTH and not reply.message.calls:
                can_be_longer = self._budget.allow_longer_replies()
                if can_be_longer and self.limit() is None:
                    if self._schema is None:
                        self._cut_text = text
                        self.tell(CONTINUE, source=CONTINUED)
                    else:
                        self.tell(WRITE_AGAIN, source=REWRITTEN)
                    continue
            if text == reply.message.content:
                return reply
            message = msgspec.structs.replace(reply.message, content=text)
            return msgspec.structs.replace(reply, message=message)

    async def _ask_last(self, limit: str | None, knows_limit: bool) -> Reply:
        """The last turn. Without tools: no turn is left to read their results."""
        conversation = self.conversation
        conversation.drop_tools()
        if limit is not None:
            self._shrink_for_last_turn(limit)
            if not knows_limit:
                detail = f"{limit} is {limit_value(self._agent, limit)}; this is the last turn"
                self._agent.record(LimitReached(limit=limit, detail=detail))
                conversation.add(UserMessage(LAST_TURN.format(limit=limit)))
        overflow: ContextOverflow | None = None
        for _ in range(MAX_OVERFLOWS):
            try:
                reply = await self._turn((), self._schema, last=True)
            except ContextOverflow as error:
                overflow = error
                self._lower_max_prompt()
                self._shrink_for_last_turn(limit or "max_turns")
                continue
            if reply.message.content.strip():
                self._agent.last_text = reply.message.content
            return reply
        assert overflow is not None, "the last turn was tried"
        raise _overflow(overflow)

    def _lower_max_prompt(self) -> None:
        most = min(self._max_prompt_tokens, self.conversation.estimate)
        self._max_prompt_tokens = most - most // 4

    async def _turn(self, tools: tuple[ToolSpec, ...], schema: str | None, *, last: bool) -> Reply:
        """One turn: reserve the worst case, call the model, settle the cost, record the reply."""
        services, conversation, with_tools = self._services, self.conversation, tools == self._tools
        turn, reservation, max_output, reply = await self._call(tools, schema, last)
        usage, model = reply.usage, reply.model
        repeated = conversation.repeated_tokens(usage, model=model, tools=with_tools)
        if repeated:
            usage = msgspec.structs.replace(usage, tokens_repeated=repeated)
        if services.price is not None:
            usage = services.price.add_cost(usage, model)
        self._budget.learn(usage, max_output)
        reservation.settle(Resources(0, 1, usage.tokens, usage.cost_microusd, usage.billed_tokens))
        services.reservations.notify_released()
        self._last_model = model
        self._agent.suspension.answered_models.add(self._agent.contract.execution.model)
        conversation.add_reply(reply.message, usage, model=model, tools=with_tools)
        self._agent.record(
            ModelReplied(
                turn=turn,
                content=reply.message.content,
                calls=reply.message.calls,
                usage=usage,
                timing=reply.timing,
                finish=reply.finish,
                repairs=reply.repairs,
                thoughts=reply.message.thoughts,
                model=model,
            )
        )
        return reply

    async def _call(
        self, tools: tuple[ToolSpec, ...], schema: str | None, last: bool
    ) -> tuple[int, Reservation, int, Reply]:
        """Call the model, and retry where that may help.

        Each failure is settled and recorded, except a ContextOverflow that costs nothing. Each
        request is recorded when it is sent: one that waits in a queue costs nothing.

        If the model delays the next try itself (an endpoint queue does, at a rate limit or while
        its endpoint is down), the failure does not count as one of the agent's few retries. Returns
        the number of the turn, the open reservation, the longest reply that it allows, and the
        reply.
        """
        agent, services, conversation = self._agent, self._services, self.conversation
        with_tools = tools == self._tools
        turn, retries = 0, 0
        request: QueuedRequest | None = None
        while True:
            reservation, max_output = await self._reserve(last)
            if not turn:
                self.asked += 1
                turn = agent.account.spent.turns + 1
                started = self._unsent = TurnStarted(
                    turn=turn,
                    of=self._max_turns,
                    last=last,
                    without_tools=not (last or with_tools),
                )
            elif self._is_sent:
                started = self._unsent = msgspec.structs.replace(started, retry=started.retry + 1)
            if request is None:
                request = QueuedRequest(
                    messages=tuple(conversation.messages),
                    tools=tools,
                    max_output_tokens=max_output,
                    sampling=self._sampling,
                    schema=schema,
                    task_tokens=agent.contract.execution.max_tokens,
                    agent_path=agent.path,
                    queue_key=self._queue_key,
                    asked_at=services.clock.monotonic(),
                    preferred_model=self._last_model,
                    on_sent=self._begin_to_send,
                )
            elif request.max_output_tokens != max_output:
                # Failed calls have used some of the budget.
                request = msgspec.structs.replace(request, max_output_tokens=max_output)
            self._received.clear()
            self._silent_pieces = 0
            try:
                reply = await services.model.reply(request, self._receive)
                self._record_sent()
                return turn, reservation, max_output, reply
            except ModelError as error:
                usage = self._settle_failed(reservation, error.received_tokens)
                if isinstance(error, ContextOverflow):
                    if error.received_tokens is not None:
                        # The overflow came in the middle of a reply, which is billed.
                        agent.record(ModelFailed(turn=turn, error=str(error), usage=usage))
                    raise
                delay = _retry_delay_s(error, retries)
                agent.record(
                    ModelFailed(turn=turn, error=str(error), retry_in_s=delay, usage=usage)
                )
                if delay is None:
                    self._keep_received()
                    raise
                if isinstance(error, ModelTimeout):
                    request = msgspec.structs.replace(request, timeouts=request.timeouts + 1)
                if error.held:
                    continue
                retries += 1
                with agent.waiting():
                    await services.clock.sleep(delay)
            except _ReservationTooSmall:
                self._settle_failed(reservation, None)
            except asyncio.CancelledError:
                if not self._is_sent:
                    self._settle_failed(reservation, None)
                    raise
                received = -(-len(self._keep_received()) // 4) + self._silent_pieces
                usage = self._settle_failed(reservation, received)
                agent.record(ModelFailed(turn=turn, error=CALL_CANCELLED, usage=usage))
                raise
            except Exception as error:
                # A bug of a model adapter ends this agent, not its siblings.
                self._settle_failed(reservation, None)
                broke = f"{services.model.name} broke: {type(error).__name__}: {error}"
                agent.record(ModelFailed(turn=turn, error=broke))
                raise ProviderError(broke) from error
            except BaseException:
                self._settle_failed(reservation, None)
                raise

    def _keep_received(self) -> bytes:
        """Keep the text of an incomplete reply as the agent's last text, and return it."""
        text = "".join(self._received)
        if text.strip():
            self._agent.last_text = self._cut_text + text
        return text.encode("utf-8", "replace")

    def _settle_failed(self, reservation: Reservation, received_tokens: int | None) -> Usage:
        """Charge a failed call for its prompt and `received_tokens`; for nothing if that is None.

        The next try sends the prompt again, so here the prompt counts only as billed.
        """
        usage = Usage() if received_tokens is None else self._estimated(received_tokens)
        reservation.settle(Resources(0, 0, usage.tokens, usage.cost_microusd, usage.billed_tokens))
        self._services.reservations.notify_released()
        return usage

    def _estimated(self, received_tokens: int) -> Usage:
        """The estimated usage of a failed call. The whole prompt counts as repeated."""
        prompt = self.conversation.estimate
        usage = Usage(prompt, 0, received_tokens, estimated=True, tokens_repeated=prompt)
        if self._services.price is not None:
            usage = self._services.price.add_cost(usage, self._last_model)
        return usage

    async def _reserve(self, last: bool) -> tuple[Reservation, int]:
        """Reserve the worst case of a turn. Return also the longest reply that it allows."""
        agent, reservations = self._agent, self._services.reservations
        while True:
            # Compute the worst case again after each wait: less budget may be left.
            worst_case, keep, overdraft, output = self._budget.worst_case(last=last)
            try:
                reservation = reservations.try_reserve(
                    agent.account, worst_case, keep=keep, overdraft=overdraft
                )
            except BudgetExceeded as error:
                if self.asked == 0 and error.limit == "max_tokens":
                    raise self._budget.too_small() or error from error
                raise
            if reservation is not None:
                self._reserved_bounds = self._budget.bounds
                return reservation, output
            with agent.waiting():
                await reservations.wait_for_release(agent.account)

    @property
    def _is_sent(self) -> bool:
        return self._unsent is None

    def _begin_to_send(self) -> None:
        """Called when the request has left the queues."""
        if self._budget.bounds != self._reserved_bounds:
            raise _ReservationTooSmall
        self._record_sent()

    def _record_sent(self) -> None:
        """Record once that the request is sent."""
        started, self._unsent = self._unsent, None
        if started is not None:
            self._agent.record(started)

    def _receive(self, text: str) -> None:
        """Note that the model is alive, and pass its text on. The text is empty while it thinks."""
        self._agent.touch()
        if not text:
            # While the request is queued, this is only a sign of life.
            self._silent_pieces += self._is_sent
            return
        self._received.append(text)
        if (on_text := self._services.on_text) is not None:
            on_text(text)


def limit_value(agent: Agent, limit: str) -> str:
    """The value of a limit, as a person reads it."""
    value = getattr(agent.contract.execution, limit) or agent.account.limit.billed_tokens
    return f"{value:,}"


def _overflow(error: ContextOverflow) -> BudgetExceeded:
    return BudgetExceeded(str(error), limit="max_context_tokens")


def _retry_delay_s(error: ModelError, retries: int) -> float | None:
    """Seconds until a failed call is tried again, after `retries` retries; None if it is not."""
    asked_s = error.retry_after_s or 0.0
    if error.held:
        return asked_s
    if error.retryable and retries < RETRIES:
        return min(max(BACKOFF_S * (1 << retries), asked_s), MAX_WAIT_S)
    return None
