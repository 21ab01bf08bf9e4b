"""Slots of this process's endpoints that a host uses: its requests wait in the same queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from retinue.domain.messages import QueuedRequest, SystemMessage
from retinue.errors import ModelError, Overloaded
from retinue.models.routing.endpoint_queue import EndpointModel, InFlightRequest, Waiter
from retinue.ports.endpoint_slots import AnswerSlot, RateLimits, SlotRequest, SlotUse

# Hosts warm prefixes by themselves, so their prompts say nothing here.
_NO_PROMPT = (SystemMessage(""),)


class HostSlots:
    """The slots that one host has, and waits for. Implements `LentSlots`.

    A host that cannot reach an endpoint says nothing about the endpoint: that may be its network.
    """

    def __init__(self, find: Callable[[str], EndpointModel | None], answer: AnswerSlot) -> None:
        self._find = find
        self._answer = answer
        self._used: dict[int, InFlightRequest] = {}
        self._waiting: dict[int, _HostWaiter] = {}

    def take(self, number: int, wanted: SlotRequest) -> None:
        if number in self._used or number in self._waiting:
            raise ValueError(f"slot {number} is taken twice")
        models = [model for name in wanted.models if (model := self._find(name)) is not None]
        if not models or len(models) < len(wanted.models):
            self._answer(
                number, 0, f"ProviderError: The run has no model {', '.join(wanted.models)}."
            )
            return
        order = list(range(len(models)))
        if wanted.weights:
            order.sort(key=lambda index: models[index].queue.load_with(wanted.weights[index]))
        asked_at = models[0].queue.time() - wanted.waited_s
        request = QueuedRequest(messages=_NO_PROMPT, queue_key=wanted.queue_key, asked_at=asked_at)
        for index in order:
            sent = models[index].queue.try_send(models[index], request)
            if sent is not None:
                self._grant(number, models, sent)
                return
        waiter = _HostWaiter(request, partial(self._wake, number, models))
        self._waiting[number] = waiter
        waiter.enqueue([models[index] for index in order])

    def _wake(
        self,
        number: int,
        models: Sequence[EndpointModel],
        sent: InFlightRequest | None,
        error: ModelError | None,
    ) -> None:
        del self._waiting[number]
        if sent is not None:
            self._grant(number, models, sent)
        else:
            self._answer(number, 0, f"{type(error).__name__}: {error}")

    def _grant(self, number: int, models: Sequence[EndpointModel], sent: InFlightRequest) -> None:
        self._used[number] = sent
        self._answer(number, models.index(sent.model), "")

    def free(self, number: int, use: SlotUse) -> None:
        if (waiter := self._waiting.pop(number, None)) is not None:
            waiter.leave_queues()
        if (sent := self._used.pop(number, None)) is None:
            return
        if use.accepted:
            sent.end_accepted(use.tokens)
        elif use.refusal:
            sent.fail(Overloaded(use.refusal, retry_after_s=use.retry_after_s))
        else:
            sent.cancel()

    def report_limits(self, model: str, limits: RateLimits) -> None:
        if (found := self._find(model)) is not None:
            found.set_limits(limits)

    def close(self) -> None:
        for number in (*self._waiting, *self._used):
            self.free(number, SlotUse())


class _HostWaiter(Waiter):
    """A waiter that calls back, so that a waiting host costs no task."""

    def __init__(
        self,
        request: QueuedRequest,
        on_woken: Callable[[InFlightRequest | None, ModelError | None], None],
    ) -> None:
        super().__init__(request, None, can_reroute=False)
        self._on_woken = on_woken

    def _wake(self) -> None:
        self._on_woken(self.sent, self._error)
