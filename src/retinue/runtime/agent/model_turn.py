"""Model turns: reserve budget, call the model with retries, settle the cost, record the reply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from retinue.domain.account import UNLIMITED, Overdraft, Resources
from retinue.domain.events import (
    ContextCompacted,
    LimitReached,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    TurnStarted,
)
from retinue.domain.messages import Message, Reply, Request, ToolSpec, UserMessage
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
    LAST_TURN,
    SUMMARIZE,
    SUMMARIZING,
    CallAnswer,
    Conversation,
    max_answer_bytes,
    max_new_tokens,
)
from retinue.runtime.agent.transcript import Transcript, replay

MAX_OUTPUT_TOKENS = 8_192
MIN_OUTPUT_TOKENS = 256
ANSWER_TOKENS = 1_024
RETRIES = 3
BACKOFF_S = 0.25
MAX_WAIT_S = 60.0


class ModelSession:
    """One agent's access to its model, for one attempt."""

    def __init__(
        self,
        agent: Agent,
        services: AgentServices,
        tools: tuple[ToolSpec, ...],
        opening: tuple[Message, ...],
    ) -> None:
        self.conversation = Conversation(opening, tools, earlier=services.earlier_messages)
        self.asked = 0
        """How often the model was asked in this attempt."""
        self._agent = agent
        self._services = services
        self._tools = tools
        self._window = UNLIMITED if services.window is None else services.window
        # The window also has to hold the answer.
        room = self._window - min(self._window // 4, ANSWER_TOKENS)
        self._max_prompt_tokens = min(agent.contract.execution.max_context_tokens, room)
        self._max_new_tokens = max_new_tokens(agent.contract)
        self._max_turns = agent.contract.execution.max_turns
        self._schema = agent.contract.outputs.output_schema
        self._sampling = agent.contract.execution.sampling or NO_SAMPLING
        # Children of a run share a queue key. The root has its own, so that a person who talks to
        # it does not wait for the requests of its children.
        run_id = agent.contract.parent.run_id
        self._queue_key = run_id if agent.depth else f"{run_id} {agent.path}"
        self._last_model = ""

    def tell(self, content: str, *, source: str, about: tuple[str, ...] = ()) -> None:
        """Add a user message to the conversation, and record it."""
        self._agent.record(MessageReceived(content=content, source=source, about=about))
        self.conversation.add(UserMessage(content))

    def fit(self, answers: Sequence[CallAnswer]) -> int | None:
        """The maximum bytes of each answer, if they do not all fit into the prompt; else None."""
        room = self._max_new_tokens
        if self.conversation.estimate + room > self._max_prompt_tokens:
            left = self.conversation.room(self._max_prompt_tokens, len(answers))
            # With less room, it is better to summarize the conversation than to cut the answers.
            if left >= room // 2:
                room = min(room, left)
        longest = max_answer_bytes(answers, room)
        if longest is not None:
            self._agent.record(ContextCompacted(longest=longest))
        return longest

    def limit(self) -> str | None:
        """The limit that leaves only one more turn; None if there are more."""
        if self.asked == 0:
            return None  # Without a conversation there is no last answer to ask for.
        account = self._agent.account
        if self._max_turns - account.spent.turns <= 1:
            return "max_turns"
        # A turn must leave budget for a last answer: the same prompt again, and the answer.
        tokens, money = account.remaining_shared()
        likely = self.conversation.likely
        if tokens < 2 * (likely + MIN_OUTPUT_TOKENS):
            return "max_tokens"
        price = self._services.price
        if price is not None and money < (
            price.max_cost_microusd(likely, MIN_OUTPUT_TOKENS)
            + price.max_cost_microusd(self.conversation.ceiling, MIN_OUTPUT_TOKENS)
        ):
            return "max_cost_usd"
        return None

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
        if masked := conversation.mask(window - window // 4):
            self._agent.record(ContextCompacted(masked=masked))
        if conversation.estimate <= window:
            return None
        if (
            not conversation.can_be_summarized
            or self._max_turns - self._agent.account.spent.turns <= 2
        ):
            return "max_context_tokens"
        await self.summarize()
        return None if conversation.estimate <= window else "max_context_tokens"

    async def summarize(self) -> str:
        """Have the model summarize the conversation; continue with the summary alone."""
        self.tell(SUMMARIZE, source=SUMMARIZING)
        reply = await self._turn((), None, last=False)
        return self._replace(reply.message.content)

    def _replace(self, summary: str) -> str:
        dropped = self.conversation.replace_by_summary(summary)
        self._agent.record(ContextCompacted(dropped=dropped, content=summary))
        return summary

    def restore(self, facts: Iterable[ConversationFact]) -> Transcript:
        """Rebuild the conversation that another process has left."""
        transcript = replay(facts, self.conversation, exact=True)
        self.asked = transcript.turns
        if transcript.last_reply is not None:
            self._last_model = transcript.last_reply.model
        if (summary := transcript.pending_summary) is not None:
            transcript.last_reply = None
            transcript.summary = self._replace(summary)
        return transcript

    async def ask(
        self, *, limit: str | None = None, knows_limit: bool = False, tools: bool = True
    ) -> Reply:
        """Get the model's next reply. At a `limit`, ask for its last answer, without tools.

        `knows_limit` says whether an earlier message already told the model about the limit.
        """
        if limit is not None and not knows_limit:
            most = getattr(self._agent.contract.execution, limit)
            detail = f"{limit} is {most:,}; this is the last turn"
            self._agent.record(LimitReached(limit=limit, detail=detail))
            self.conversation.add(UserMessage(LAST_TURN.format(limit=limit)))
        # Tools are useless if no turn is left to read their results.
        last = limit is not None or self._max_turns - self._agent.account.spent.turns <= 1
        offered = self._tools if tools and not last else ()
        reply = await self._turn(offered, self._schema, last=last)
        if reply.message.content.strip():
            self._agent.last_text = reply.message.content
        return reply

    async def _turn(self, tools: tuple[ToolSpec, ...], schema: str | None, *, last: bool) -> Reply:
        """One turn: reserve the worst case, call the model, settle the cost, record the reply."""
        agent, services, conversation = self._agent, self._services, self.conversation
        while True:
            # Compute the worst case again after each wait: less budget may be left.
            worst_case, overdraft, max_output = self._worst_case()
            reservation = services.reservations.try_reserve(agent.account, worst_case, overdraft)
            if reservation is not None:
                break
            with agent.waiting():
                await services.reservations.wait_for_release()
        try:
            self.asked += 1
            turn = agent.account.spent.turns + 1
            agent.record(TurnStarted(turn=turn, of=self._max_turns, last=last))
            request = Request(
                messages=tuple(conversation.messages),
                tools=tools,
                max_output_tokens=_least(max_output, self._sampling.max_output_tokens),
                sampling=self._sampling,
                schema=schema,
                task_tokens=agent.contract.execution.max_tokens,
                agent_path=agent.path,
                queue_key=self._queue_key,
                asked_at=services.clock.monotonic(),
                preferred_model=self._last_model,
            )
            reply = await self._reply(request, turn)
        except BaseException:
            reservation.release()
            services.reservations.notify_released()
            raise
        usage = reply.usage
        if services.price is not None:
            usage = services.price.add_cost(usage, reply.model)
        tokens = usage.tokens
        reservation.settle(Resources(0, 1, tokens, usage.cost_microusd))
        services.reservations.notify_released()
        self._last_model = reply.model
        if usage.estimated:
            conversation.add(reply.message)
        else:
            # The server counted these tokens, so no estimate is needed.
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

    def _worst_case(self) -> tuple[Resources, Overdraft | None, int | None]:
        """The cost of the largest prompt and the longest answer, as far as a limit applies.

        The overdraft is what the agent's own account cannot hold. The last value is the longest
        answer in tokens.
        """
        account, prompt = self._agent.account, self.conversation.ceiling
        left, money = account.remaining_shared()
        price = None if money >= UNLIMITED // 2 else self._services.price
        if left >= UNLIMITED // 2 and price is None:
            return Resources(turns=1), None, None
        overdraft = None
        least = prompt + MIN_OUTPUT_TOKENS
        if left < least and self.conversation.likely + MIN_OUTPUT_TOKENS <= left:
            ancestor = next(
                (node for node in account.self_and_ancestors() if node.limit.tokens >= least), None
            )
            if ancestor is not account:
                # The whole limit is below the upper bound of a token per byte, which only the
                # strangest text reaches. Trust the likely size, and let the nearest ancestor with
                # enough budget cover the difference: a shared limit is never exceeded.
                prompt = left - MIN_OUTPUT_TOKENS
                if ancestor is not None:
                    overdraft = Overdraft(ancestor, Resources(tokens=least - left))
        # Some servers refuse a call whose longest answer does not fit beside its prompt.
        longest = min(MAX_OUTPUT_TOKENS, left - prompt, self._window - self.conversation.likely)
        output = max(MIN_OUTPUT_TOKENS, longest)
        cost = 0
        if price is not None:
            output = max(
                MIN_OUTPUT_TOKENS, min(output, price.affordable_output_tokens(prompt, money))
            )
            cost = price.max_cost_microusd(prompt, output)
        tokens = 0 if left >= UNLIMITED // 2 else prompt + output
        return Resources(0, 1, tokens, cost), overdraft, output

    def _receive(self, text: str) -> None:
        """Text is a sign of life; so is the empty text of a model that thinks."""
        self._agent.touch()
        on_text = self._services.on_text
        if text and on_text is not None:
            on_text(text)

    async def _reply(self, request: Request, turn: int) -> Reply:
        """Call the model, and retry where that may help. Each failure is recorded.

        If the model delays the next try itself (an endpoint queue does, at a rate limit or while
        its endpoint is down), the failure does not count as one of the agent's few retries.
        """
        retries = 0
        while True:
            try:
                return await self._services.model.reply(request, self._receive)
            except ContextOverflow as error:
                raise BudgetExceeded(str(error), limit="max_context_tokens") from error
            except ModelError as error:
                delay = None
                if error.held:
                    delay = error.retry_after_s or 0.0
                elif error.retryable and retries < RETRIES:
                    wait = BACKOFF_S * 2**retries
                    delay = min(max(wait, error.retry_after_s or 0.0), MAX_WAIT_S)
                failed = ModelFailed(turn=turn, error=str(error), retry_in_s=delay)
                self._agent.record(failed)
                if delay is None:
                    raise
                if isinstance(error, ModelTimeout):
                    request = msgspec.structs.replace(request, timeouts=request.timeouts + 1)
                if error.held:
                    continue
                retries += 1
                with self._agent.waiting():
                    await self._services.clock.sleep(delay)
            except Exception as error:
                # A bug of a model adapter ends this agent, not its siblings.
                broke = f"{self._services.model.name} broke: {type(error).__name__}: {error}"
                self._agent.record(ModelFailed(turn=turn, error=broke))
                raise ProviderError(broke) from error


def _least(a: int | None, b: int | None) -> int | None:
    """The smaller of two limits; None is no limit."""
    return b if a is None else a if b is None else min(a, b)
