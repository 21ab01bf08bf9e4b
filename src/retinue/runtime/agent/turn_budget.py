"""The budget of one turn: what it may cost, and what it must leave for the agent's last turn."""

from __future__ import annotations

from retinue.domain.account import UNLIMITED, ZERO, Account, Overdraft, Resources
from retinue.domain.messages import Usage
from retinue.domain.price import PoolPrice, Price
from retinue.errors import BudgetExceeded
from retinue.runtime.agent.conversation import LAST_TURN_TOKENS, Conversation
from retinue.runtime.core.reservations import Calibration

FIRST_OUTPUT_TOKENS = 8_192
"""Maximum length of the first reply. It doubles after each reply that was cut off."""
MAX_OUTPUT_TOKENS = 65_536
MIN_OUTPUT_TOKENS = 256
ANSWER_TOKENS = 1_024
"""Room for the last answer, unless the budget or the window is small."""
# An amount below this is limited: charges make an unlimited amount only slightly smaller.
_LIMITED = UNLIMITED // 2


class TurnBudget:
    """Computes the reservations for one conversation.

    `max_tokens` counts each token once, so a turn needs tokens for the new part of its prompt and
    for its reply. Money and billed tokens are needed for the whole prompt and the reply.
    """

    def __init__(
        self,
        account: Account,
        conversation: Conversation,
        calibration: Calibration,
        *,
        price: Price | PoolPrice | None,
        window: int,
        max_output: int | None,
        most_output: int | None = None,
    ) -> None:
        """`max_output` is the contract's limit of one reply, `most_output` the model's."""
        self._account = account
        self._conversation = conversation
        self._calibration = calibration
        self._price = price
        self._window = window
        self._most_output = max_output or most_output or MAX_OUTPUT_TOKENS
        self._max_output = max_output or min(FIRST_OUTPUT_TOKENS, self._most_output)
        self.min_output = min(MIN_OUTPUT_TOKENS, self._most_output)
        # Keep less for the last answer if the budget or the window is small.
        small = min(account.limit.tokens // 8, window // 4)
        money = account.limit.cost_microusd
        if price is not None and money < _LIMITED:
            small = min(small, price.affordable_output_tokens(0, money) // 8)
        self.last_output = max(self.min_output, min(ANSWER_TOKENS, self._max_output, small))

    def allow_longer_replies(self) -> bool:
        """Allow replies twice as long as before. Return False if they cannot be longer."""
        longer = min(2 * self._max_output, self._most_output)
        could_grow = longer > self._max_output
        self._max_output = longer
        return could_grow

    def learn(self, usage: Usage, max_output: int) -> None:
        """Learn how the server counts, from a reply to a request with all messages."""
        max_prompt = self._conversation.ceiling
        self._calibration.learn(usage, max_prompt=max_prompt, max_output=max_output)

    @property
    def bounds(self) -> tuple[float, float]:
        """The factors of the calibration. A reservation with other factors is too small."""
        return self._calibration.prompt_factor, self._calibration.reply_factor

    def reached_limit(self) -> str | None:
        """The limit that allows only the last turn; None if another turn can come before it."""
        tokens, money, billed = self._available()
        price = self._price if money < _LIMITED else None
        if tokens >= _LIMITED and billed >= _LIMITED and price is None:
            return None
        conversation, output = self._conversation, self.min_output
        prompt = conversation.likely
        keep = self._last_turn(prompt, output)
        if tokens < conversation.new_likely + output + keep.tokens:
            return "max_tokens"
        if price is not None and money < (
            price.max_cost_microusd(prompt, output) + keep.cost_microusd
        ):
            return "max_cost_usd"
        if billed < prompt + output + keep.billed_tokens:
            return "max_billed_tokens"
        return None

    def room_in_last_turn(self) -> tuple[int, int]:
        """The longest prompt that money and billed tokens can pay, and the tokens that are missing.

        The second number is negative if `max_tokens` has room left.
        """
        tokens, money, billed = self._available()
        most = billed - self.last_output
        if self._price is not None:
            most = min(most, self._price.affordable_input_tokens(self.last_output, money))
        needed = self._conversation.new_likely + LAST_TURN_TOKENS + self.last_output
        return most, needed - tokens

    def too_small(self) -> BudgetExceeded | None:
        """The error for a budget that is not enough for the first prompt; None if it is enough."""
        conversation, output = self._conversation, self.min_output
        most = self._account.limit.tokens
        keep = self._last_turn(conversation.likely, output)
        needed = conversation.new_likely + output + keep.tokens
        if needed <= most:
            return None  # The account's own limit is enough: siblings used up a shared one.
        return BudgetExceeded(
            f"max_tokens {most:,} is too small: with a first prompt of about"
            f" {conversation.estimate:,} tokens, the smallest possible run needs {needed:,}.",
            limit="max_tokens",
        )

    def worst_case(self, *, last: bool) -> tuple[Resources, Resources, Overdraft | None, int]:
        """The highest cost of a turn: the largest prompt and the longest answer.

        Resources without a limit are 0. Also returns what to keep for the last turn, what an
        ancestor's account must cover, and the longest answer in tokens.
        """
        conversation, account, price = self._conversation, self._account, self._price
        tokens, money, billed = self._available()
        if money >= _LIMITED:
            price = None
        least, likely = self.min_output, conversation.likely
        # Some servers refuse a call whose longest answer does not fit beside its prompt.
        output = max(least, min(self._max_output, self._window - likely))
        if tokens >= _LIMITED and billed >= _LIMITED and price is None:
            return Resources(turns=1), ZERO, None, output
        calibration = self._calibration
        longer = calibration.reply_factor
        new = int(conversation.new_ceiling * calibration.prompt_factor)
        # Tokens that the server has counted need no factor.
        above = calibration.prompt_factor - 1
        prompt = conversation.ceiling + int(conversation.uncounted_ceiling * above)
        # The upper bounds are far above most prompts, except where a server has charged more than
        # they say. A last turn can trust the likely size, since room was kept for it.
        may_trust_likely = last or above == 0
        keep = ZERO if last else self._last_turn(likely, least)
        overdraft = None
        if tokens < _LIMITED:
            room = tokens - keep.tokens
            needed = new + least
            if room < needed and may_trust_likely and conversation.new_likely + least <= room:
                ancestor = next(
                    (
                        a
                        for a in account.self_and_ancestors()
                        if a.limit.tokens >= needed + keep.tokens
                    ),
                    None,
                )
                if ancestor is not account or last:
                    # The limit is below the upper bound of a token per byte, which only the
                    # strangest text reaches. Trust the likely size, and let the nearest ancestor
                    # with enough budget cover the difference: a shared limit is never exceeded.
                    new = room - least
                    if ancestor is not None and ancestor is not account:
                        overdraft = Overdraft(ancestor, Resources(tokens=needed - room))
            output = max(least, min(output, int((room - new) / longer)))
        if billed < _LIMITED:
            # The reply is in the prompt of the last turn too.
            times = 1 if last else 2
            room = billed - keep.billed_tokens + (times - 1) * least
            fits = likely + times * least <= room
            if room < prompt + times * least and may_trust_likely and fits:
                prompt = room - times * least
            output = max(least, min(output, int((room - prompt) / (times * longer))))
        if price is not None:
            if last and price.max_cost_microusd(prompt, least) > money:
                prompt = min(prompt, max(likely, price.affordable_input_tokens(least, money)))
            left = money - keep.cost_microusd
            affordable = price.affordable_output_tokens(prompt, left)
            output = max(least, min(output, int(affordable / longer)))
        if not last:
            keep = self._last_turn(likely, output)
            while price is not None and output > least:
                cost = price.max_cost_microusd(prompt, int(output * longer))
                if cost + keep.cost_microusd <= money:
                    break
                output = max(least, output // 2)
                keep = self._last_turn(likely, output)
        written = int(output * longer)
        amount = Resources(
            0,
            1,
            new + written if tokens < _LIMITED else 0,
            0 if price is None else price.max_cost_microusd(prompt, written),
            prompt + written if billed < _LIMITED else 0,
        )
        return amount, keep, overdraft, output

    def _available(self) -> tuple[int, int, int]:
        """Tokens, money and billed tokens that are left, including those kept for the last turn."""
        account = self._account
        tokens, money, billed = account.remaining_shared()
        kept = account.own_kept
        return tokens + kept.tokens, money + kept.cost_microusd, billed + kept.billed_tokens

    def _last_turn(self, likely: int, output: int) -> Resources:
        """The cost of the last turn, if the turn before it reads `likely` and writes `output`."""
        prompt = likely + output + LAST_TURN_TOKENS
        price = self._price
        cost = 0 if price is None else price.max_cost_microusd(prompt, self.last_output)
        tokens = LAST_TURN_TOKENS + self.last_output
        return Resources(0, 0, tokens, cost, prompt + self.last_output)
