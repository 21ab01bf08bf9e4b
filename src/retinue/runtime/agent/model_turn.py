"""Asking the model: reserve, call with retries, book what it cost, write it down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from retinue.domain.account import UNLIMITED, Overdraft, Reservation, Resources
from retinue.domain.events import (
    ContextCompacted,
    LimitReached,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    TurnStarted,
)
from retinue.domain.messages import Message, Reply, Request, ToolSpec, UserMessage
from retinue.domain.price import PoolPrice, Price
from retinue.domain.resume_point import ConversationFact
from retinue.errors import (
    BudgetExceeded,
    ContextOverflow,
    ModelError,
    ModelTimeout,
    ProviderError,
)
from retinue.ports.clock import Clock
from retinue.ports.model import Model
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.conversation import (
    LAST_TURN,
    SUM_UP,
    SUMMING_UP,
    Answered,
    Conversation,
    longest_for,
    room_for_news,
)
from retinue.runtime.agent.transcript import Transcript, replay
from retinue.runtime.core.reservations import Reservations, WorstCase

MAX_OUTPUT_TOKENS = 8_192
MIN_OUTPUT_TOKENS = 256
ANSWER_TOKENS = 1_024
RETRIES = 3
BACKOFF_S = 0.25
LONGEST_WAIT_S = 60.0

OnText = Callable[[str], None]


class ModelSession:
    """One agent's access to its model, for one attempt."""

    def __init__(
        self,
        agent: Agent,
        model: Model,
        tools: tuple[ToolSpec, ...],
        *,
        opening: tuple[Message, ...],
        before: tuple[Message, ...] = (),
        reservations: Reservations,
        clock: Clock,
        window: int | None = None,
        price: Price | PoolPrice | None = None,
        on_text: OnText | None = None,
    ) -> None:
        self.conversation = Conversation(opening, tools, before=before)
        self._agent = agent
        self._model = model
        self._tools = tools
        self._reservations = reservations
        self._clock = clock
        self._price = price
        self._on_text = on_text
        self._window = UNLIMITED if window is None else window
        # A window is for the answer as well.
        room = self._window - min(self._window // 4, ANSWER_TOKENS)
        self._room = min(agent.contract.execution.max_context_tokens, room)
        self._news_room = room_for_news(agent.contract)
        self._turns = agent.contract.execution.max_turns
        self._schema = agent.contract.outputs.output_schema
        # Children of a run share a lane. Its root, whom a person may be talking to, does not wait
        # for everything that they have asked before it.
        run_id = agent.contract.parent.run_id
        self._lane = run_id if agent.depth else f"{run_id} {agent.path}"
        self._asked = 0
        self._answered_by = ""

    def tell(self, content: str, *, source: str, about: tuple[str, ...] = ()) -> None:
        """Put words of ours, or somebody's, before the model's next turn."""
        self._agent.record(MessageReceived(content=content, source=source, about=about))
        self.conversation.add(UserMessage(content))

    def fit(self, answers: Sequence[Answered]) -> int | None:
        """How long any of `answers` may be in the prompt, if they do not fit in as they are."""
        room = self._news_room
        if self.conversation.estimate + room > self._room:
            left = self.conversation.room(self._room, len(answers))
            # With less for them, to sum up all before is better than to know nothing of them.
            if left >= room // 2:
                room = min(room, left)
        longest = longest_for(answers, room)
        if longest is not None:
            self._agent.record(ContextCompacted(longest=longest))
        return longest

    @property
    def asked(self) -> bool:
        """Whether there is a conversation yet."""
        return self._asked > 0

    def limit(self) -> str | None:
        """The limit that leaves this agent only one more turn, if one does."""
        if self._asked == 0:
            return None  # Nothing has been said yet, so there is no last word to ask for.
        account = self._agent.account
        if self._turns - account.spent.turns <= 1:
            return "max_turns"
        # A turn must leave room for a last word on what it found: that prompt again, and an answer.
        tokens, money = account.remaining_shared()
        likely = self.conversation.likely
        if tokens < 2 * (likely + MIN_OUTPUT_TOKENS):
            return "max_tokens"
        price = self._price
        if price is not None and money < (
            price.max_cost_microusd(likely, MIN_OUTPUT_TOKENS)
            + price.max_cost_microusd(self.conversation.ceiling, MIN_OUTPUT_TOKENS)
        ):
            return "max_cost_usd"
        return None

    @property
    def crowded(self) -> bool:
        """Is the prompt larger than its window? An opening alone cannot be helped."""
        if self._asked == 0 and not self.conversation.goes_on:
            return False
        return self.conversation.estimate > self._room

    async def make_room(self) -> str | None:
        """Bring the prompt into its window: mask old results, or have it summed up.

        Answers the limit that has been reached if neither is enough.
        """
        conversation = self.conversation
        window = self._room
        # A quarter more than is needed: masking changes the prompt where it had been the same, and
        # must not be done again for every answer that comes.
        if masked := conversation.mask(window - window // 4):
            self._agent.record(ContextCompacted(masked=masked))
        if conversation.estimate <= window:
            return None
        if not conversation.can_be_summed_up or self._turns - self._agent.account.spent.turns <= 2:
            return "max_context_tokens"
        await self.sum_up()
        return None if conversation.estimate <= window else "max_context_tokens"

    async def sum_up(self) -> str:
        """Have the model write down what matters, and go on from that alone; answers it."""
        self.tell(SUM_UP, source=SUMMING_UP)
        reply = await self._turn((), None, last=False)
        return self._replace(reply.message.content)

    def _replace(self, summary: str) -> str:
        dropped = self.conversation.summed_up(summary)
        self._agent.record(ContextCompacted(dropped=dropped, content=summary))
        return summary

    def replay(self, facts: Iterable[ConversationFact]) -> Transcript:
        """Rebuild the conversation that another process has left."""
        transcript = replay(facts, self.conversation, exact=True)
        self._asked = transcript.turns
        if transcript.last_reply is not None:
            self._answered_by = transcript.last_reply.model
        if (summary := transcript.pending_summary) is not None:
            transcript.last_reply = None
            transcript.summary = self._replace(summary)
        return transcript

    async def ask(
        self, *, limit: str | None = None, told: bool = False, tools: bool = True
    ) -> Reply:
        """The model's next reply. At a `limit` it is asked for its last word, without tools.

        `told` is whether it knows of the limit already.
        """
        if limit is not None and not told:
            self._agent.record(LimitReached(limit=limit, detail=_detail(self._agent, limit)))
            self.conversation.add(UserMessage(LAST_TURN.format(limit=limit)))
        # Tools would be of no use where no turn is left to read what they find.
        last = limit is not None or self._turns - self._agent.account.spent.turns <= 1
        offered = self._tools if tools and not last else ()
        reply = await self._turn(offered, self._schema, last=last)
        if reply.message.content.strip():
            self._agent.last_text = reply.message.content
        return reply

    async def _turn(self, tools: tuple[ToolSpec, ...], schema: str | None, *, last: bool) -> Reply:
        """One exchange: reserve the worst case, ask, book what it was, write it down."""
        agent, conversation = self._agent, self.conversation
        while (promise := self._reserve()) is None:
            # Anew after every wait: who waits while others spend can do with less.
            with agent.waiting():
                await self._reservations.wait_for_release()
        reservation, max_output = promise
        try:
            self._asked += 1
            turn = agent.account.spent.turns + 1
            agent.record(TurnStarted(turn=turn, of=self._turns, last=last))
            request = Request(
                messages=tuple(conversation.messages),
                tools=tools,
                max_output_tokens=max_output,
                schema=schema,
                agent_path=agent.path,
                run_id=self._lane,
                asked_at=self._clock.monotonic(),
                preferred_model=self._answered_by,
            )
            reply = await self._reply(request, turn)
        except BaseException:
            reservation.release()
            self._reservations.notify_released()
            raise
        usage = reply.usage
        if self._price is not None:
            usage = self._price.add_cost(usage, reply.model)
        tokens = usage.tokens
        reservation.settle(Resources(0, 1, tokens, usage.cost_microusd))
        self._reservations.notify_released()
        agent.usage += usage
        self._answered_by = reply.model
        if usage.estimated:
            conversation.add(reply.message)
        else:
            # What the server has counted need not be measured.
            conversation.messages.append(reply.message)
            conversation.counted(tokens)
        agent.record(
            ModelReplied(
                turn=turn,
                content=reply.message.content,
                calls=reply.message.calls,
                usage=usage,
                timing=reply.timing,
                finish=reply.finish,
                repairs=reply.repairs,
                thoughts=reply.message.thoughts,
                model=reply.model,
            )
        )
        return reply

    def _reserve(self) -> tuple[Reservation, int | None] | None:
        """Promise the worst case of one call; and the longest answer that this leaves room for.

        None if that has to wait for what others may return.
        """
        worst, longest = self._worst_case()
        reservation = self._reservations.try_reserve(self._agent.account, worst)
        return None if reservation is None else (reservation, longest)

    def _worst_case(self) -> tuple[WorstCase, int | None]:
        """The largest prompt and the longest answer, as far as there is a limit to keep."""
        account, prompt = self._agent.account, self.conversation.ceiling
        left, money = account.remaining_shared()
        price = None if money >= UNLIMITED // 2 else self._price
        if left >= UNLIMITED // 2 and price is None:
            return WorstCase(Resources(turns=1)), None
        overdraft = None
        least = prompt + MIN_OUTPUT_TOKENS
        if left < least and self.conversation.likely + MIN_OUTPUT_TOKENS <= left:
            roomy = next(
                (node for node in account.self_and_ancestors() if node.limit.tokens >= least), None
            )
            if roomy is not account:
                # The whole limit is below the bound, a token a byte, which only the strangest text
                # comes to. The likely size is believed, and what that may be short of is set aside
                # by the first who can: what is shared is never overdrawn.
                prompt = left - MIN_OUTPUT_TOKENS
                if roomy is not None:
                    overdraft = Overdraft(roomy, Resources(tokens=least - left))
        # Some servers refuse a call whose longest answer would not fit beside its prompt.
        longest = min(MAX_OUTPUT_TOKENS, left - prompt, self._window - self.conversation.likely)
        output = max(MIN_OUTPUT_TOKENS, longest)
        cost = 0
        if price is not None:
            output = max(
                MIN_OUTPUT_TOKENS, min(output, price.affordable_output_tokens(prompt, money))
            )
            cost = price.max_cost_microusd(prompt, output)
        tokens = 0 if left >= UNLIMITED // 2 else prompt + output
        amount = Resources(0, 1, tokens, cost)
        return WorstCase(amount, overdraft), output

    def _hear(self, text: str) -> None:
        """Text that arrives is a sign of life; so is the empty text of a model that thinks."""
        self._agent.touch()
        if text and self._on_text is not None:
            self._on_text(text)

    async def _reply(self, request: Request, turn: int) -> Reply:
        """Call the model; what a retry can help is tried again, each failure on record.

        Where the model itself holds the next try back until it is worth making (a gate does, at a
        rate limit or while its endpoint is gone), that is no try of this agent's few.
        """
        tries = 0
        while True:
            try:
                return await self._model.reply(request, self._hear)
            except ContextOverflow as error:
                raise BudgetExceeded(str(error), limit="max_context_tokens") from error
            except ModelError as error:
                delay = None
                if error.held:
                    delay = error.retry_after_s or 0.0
                elif error.retryable and tries < RETRIES:
                    wait = BACKOFF_S * 2**tries
                    delay = min(max(wait, error.retry_after_s or 0.0), LONGEST_WAIT_S)
                failed = ModelFailed(turn=turn, error=str(error), retry_in_s=delay)
                self._agent.record(failed)
                if delay is None:
                    raise
                if isinstance(error, ModelTimeout):
                    request = msgspec.structs.replace(request, timeouts=request.timeouts + 1)
                if error.held:
                    continue
                tries += 1
                with self._agent.waiting():
                    await self._clock.sleep(delay)
            except Exception as error:
                # A bug of an adapter ends its own agent; siblings have done nothing wrong.
                broke = f"{self._model.name} broke: {type(error).__name__}: {error}"
                self._agent.record(ModelFailed(turn=turn, error=broke))
                raise ProviderError(broke) from error


def _detail(agent: Agent, limit: str) -> str:
    value = getattr(agent.contract.execution, limit)
    return f"{limit} is {value:,}; this is the last turn"
