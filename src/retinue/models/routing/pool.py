"""Models that can stand in for each other, each behind the queue of its endpoint."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any

import msgspec

from retinue.domain.messages import QueuedRequest, Reply, Request
from retinue.errors import ContextOverflow, ModelError
from retinue.models.routing.endpoint_queue import EndpointModel, InFlightRequest, Waiter
from retinue.ports.endpoint_slots import SlotRequest, SlotSource
from retinue.ports.model import Model

# After a failure a member is avoided: long enough for the request to be made elsewhere, short
# enough that a connection which drops now and then costs nothing. Each further failure makes that
# time four times as long.
_FIRST_AVOIDED_S = 0.05
_AVOIDED_GROWTH = 4
_LONGEST_AVOIDED_S = 15.0
# A wrong key or a wrong name does not pass by itself.
_AVOIDED_AFTER_FATAL_S = 60.0


class PoolMember:
    """One model of a pool. After a failure it is avoided for a while."""

    def __init__(
        self, name: str, client: Model, model: EndpointModel, *, weight: float = 1.0
    ) -> None:
        self.name = name
        self.client = client
        self.model = model
        self.weight = weight
        self._failed_at, self._avoided_until = -inf, 0.0
        self._failures = 0
        self._unusable_until = 0.0

    def load(self) -> float:
        """Utilisation with one more request."""
        return self.model.queue.load_with(self.weight)

    @property
    def available_at(self) -> float:
        return max(self._avoided_until, self.model.queue.health.available_at)

    def is_unusable(self, now: float) -> bool:
        """Whether it has refused a request in a way that does not pass by itself."""
        return now < self._unusable_until

    def is_resting(self, now: float) -> bool:
        """Whether waiting for a slot is all that a request has to do."""
        return now >= self._avoided_until and self.model.queue.health.give_up_error(now) is None

    def succeeded(self) -> None:
        self._failures, self._avoided_until, self._unusable_until = 0, 0.0, 0.0

    def failed(self, error: ModelError, *, sent_at: float, now: float) -> None:
        if not error.retryable:
            self._avoided_until = self._unusable_until = now + _AVOIDED_AFTER_FATAL_S
        elif sent_at > self._failed_at:  # Else it was in flight when another request failed.
            avoided_s = min(_FIRST_AVOIDED_S * _AVOIDED_GROWTH**self._failures, _LONGEST_AVOIDED_S)
            self._failures += 1
            self._failed_at, self._avoided_until = now, now + avoided_s


class Pool:
    """Asks the member with the lowest load; or with `in_order`, the first that has a free slot.

    If none has a free slot, the first to get one is asked. The error of a request that another
    member can serve is marked to be retried at once. A model by itself is a pool of one.
    """

    def __init__(self, name: str, members: Sequence[PoolMember], *, in_order: bool = False) -> None:
        self.name = name
        self._members = tuple(members)
        self._sole_member = members[0] if len(members) == 1 else None
        self._in_order = in_order
        self._is_model = len(members) == 1 and members[0].name == name

    def __repr__(self) -> str:
        return f"Pool({self.name!r}, {', '.join(member.name for member in self._members)})"

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        return await self._reply(QueuedRequest.of(request), on_text)

    async def _reply(self, request: QueuedRequest, on_text: Callable[[str], None] | None) -> Reply:
        member, queued_s = self._sole_member, 0.0
        sent = None if member is None else member.model.queue.try_send(member.model, request)
        if member is None or sent is None:
            member, sent, queued_s = await self._wait_for_slot(request, on_text)
        if (source := sent.model.queue.slot_source) is not None:
            member, sent, waited_s = await self._take_slot(source, member, sent, request, on_text)
            queued_s += waited_s
        try:
            if request.on_sent is not None:
                request.on_sent()
            reply = await member.client.reply(request, sent.watch_first_token(on_text))
        except ModelError as error:
            failure = error
        except BaseException:
            sent.cancel()
            raise
        else:
            sent.succeed(reply)
            member.succeeded()
            if self._is_model and not queued_s:
                return reply
            timing = msgspec.structs.replace(reply.timing, queued_s=queued_s)
            origin = "" if self._is_model else member.name
            return msgspec.structs.replace(reply, timing=timing, model=origin)
        raise self._error_to_raise(failure, member, sent)

    async def aclose(self) -> None:
        for member in self._members:
            await member.client.aclose()

    async def _wait_for_slot(
        self, request: QueuedRequest, on_text: Callable[[str], None] | None
    ) -> tuple[PoolMember, InFlightRequest, float]:
        """Take a slot of one of the members. Also returns the seconds that this took."""
        time = self._members[0].model.queue.time
        began_at = time()
        waiter = Waiter(request, on_text, can_reroute=self._sole_member is None)
        while True:
            now = time()
            members = self._candidates(request, now)
            for member in members:
                sent = member.model.queue.try_send(member.model, request)
                if sent is not None:
                    return member, sent, time() - began_at
            models = [member.model for member in members]
            later = (one.available_at for one in self._members if one.available_at > now)
            try:
                sent = await waiter.wait(models, until=min(later, default=inf))
            except ModelError:
                if set(self._candidates(request, time())) <= set(members):
                    raise
                # Other members were avoided while these could still be waited for.
                waiter = Waiter(request, on_text, can_reroute=True)
                continue
            if sent is not None:
                member = next(one for one in members if one.model is sent.model)
                return member, sent, time() - began_at

    async def _take_slot(
        self,
        source: SlotSource,
        member: PoolMember,
        sent: InFlightRequest,
        request: QueuedRequest,
        on_text: Callable[[str], None] | None,
    ) -> tuple[PoolMember, InFlightRequest, float]:
        """Take a slot from the run, for `member` or another that it chooses by the load of all."""
        time = sent.model.queue.time
        began_at, members = time(), [member]
        if self._sole_member is None:
            candidates = self._candidates(request, began_at)
            members += [one for one in candidates if one is not member]
        by_load = not self._in_order and member.name != request.preferred_model
        waited_s = max(began_at - request.asked_at, 0.0) if request.asked_at else 0.0
        wanted = SlotRequest(
            models=tuple(one.model.name for one in members),
            weights=tuple(one.weight for one in members) if by_load else (),
            queue_key=request.queue_key,
            waited_s=waited_s,
        )
        try:
            index, free = await source.take(wanted, on_text)
        except BaseException:
            sent.cancel()
            raise
        chosen, now = members[index], time()
        if chosen is not member:
            sent.cancel()
            sent = chosen.model.queue.send(chosen.model)
        sent.free_slot, sent.sent_at = free, now
        return chosen, sent, now - began_at

    def _candidates(self, request: QueuedRequest, now: float) -> list[PoolMember]:
        """The members to ask, the best first: those that are available now.

        If none is, those whose queue waits for their endpoint; else those that may answer.
        """
        members = (
            [one for one in self._members if now >= one.available_at]
            or [one for one in self._members if one.is_resting(now)]
            or [one for one in self._members if not one.is_unusable(now)]
            or list(self._members)
        )
        if not self._in_order:
            members.sort(key=PoolMember.load)
        for member in members:
            if member.name == request.preferred_model:
                members.remove(member)
                members.insert(0, member)
                break
        return members

    def _error_to_raise(
        self, error: ModelError, member: PoolMember, sent: InFlightRequest
    ) -> ModelError:
        error = sent.fail(error)
        if self._sole_member is None and not isinstance(error, ContextOverflow):
            now = sent.model.queue.time()
            if not error.held:
                member.failed(error, sent_at=sent.sent_at, now=now)
            if any(
                now >= other.available_at
                or other.is_resting(now)
                or not (error.retryable or other.is_unusable(now))
                for other in self._members
            ):
                error.held, error.retry_after_s = True, None
        return error


class UnqueuedModel:
    """A model without a queue: each request is sent at once."""

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self._model = model

    def reply(
        self, request: Request, on_text: Callable[[str], None] | None = None
    ) -> Coroutine[Any, Any, Reply]:
        if isinstance(request, QueuedRequest) and request.on_sent is not None:
            request.on_sent()
            request = msgspec.structs.replace(request, on_sent=None)
        return self._model.reply(request, on_text)

    async def aclose(self) -> None:
        await self._model.aclose()
