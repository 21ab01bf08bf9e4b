"""One queue in front of each endpoint, shared by all requests of the process.

The queue sends as many requests as the endpoint takes at a time; the others wait, grouped by their
`queue_key`: the children of a run, or its root. Groups take turns, so that no fan-out starves
another; within a group the oldest request goes first. What one request learns holds for all of
them: a refusal slows all requests down, and limits per minute are kept before they are reached.
While an endpoint is down, one of the waiting requests probes it now and then, and all of them wake
up when it is back.

While a slot is free and nothing is known against the endpoint, the queue costs a microsecond: no
task, no future, no timer.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from retinue.domain.messages import QueuedRequest, Reply, Request
from retinue.domain.server_info import EndpointLoad
from retinue.errors import ModelError, Overloaded, RateLimited
from retinue.models.routing.concurrency import MAX_LIMIT, ConcurrencyLimit
from retinue.models.routing.endpoint_health import PATIENCE_S, EndpointHealth
from retinue.models.routing.prefix_cache import Prefix, PrefixCache
from retinue.models.routing.rate_limits import RateLimiter, parse_rate_limits
from retinue.ports.endpoint_slots import RateLimits, SlotSource, SlotUse

_HEARTBEAT_S = 10.0

OnText = Callable[[str], None]


class Timers(Protocol):
    """The part of an event loop that a queue uses."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class EndpointQueue:
    """The queue of one endpoint.

    `slots` is how many requests the endpoint works on at a time, if that is known. After
    `patience_s` without a usable answer, requests stop waiting and fail.
    """

    def __init__(
        self,
        address: str,
        *,
        slots: int | None = None,
        patience_s: float = PATIENCE_S,
        timers: Timers | None = None,
    ) -> None:
        self.address = address
        self.health = EndpointHealth(address, patience_s=patience_s)
        self.in_flight = 0
        self.slot_source: SlotSource | None = None
        self._timers: Timers = timers or asyncio.get_running_loop()
        self.time = self._timers.time
        self._concurrency = ConcurrencyLimit(slots)
        self._slots = slots
        self._models: dict[str, EndpointModel] = {}
        # Waiting requests, a heap for each queue key. The dict's order is the order of turns. An
        # entry whose waiter is not in `_waiting` any more is skipped.
        self._entries: dict[str, list[_Entry]] = {}
        self._waiting: dict[Waiter, EndpointModel] = {}
        # Prefixes that some requests wait for to be read by another one.
        self._cold_prefixes: set[Prefix] = set()
        self._timer: Timer | None = None
        self._timer_at = inf
        self._heartbeat_at = 0.0

    def __repr__(self) -> str:
        return f"EndpointQueue({self.address!r}, {self.in_flight} of {self.limit} in flight)"

    def model(self, name: str) -> EndpointModel:
        if name not in self._models:
            self._models[name] = EndpointModel(self, name)
        return self._models[name]

    @property
    def slots(self) -> int | None:
        """How many requests the endpoint works on at a time; None if that is not known."""
        return self._slots

    def set_slots(self, slots: int | None) -> None:
        """Set how many requests the endpoint works on at a time; None if that is not known."""
        if slots != self._slots:
            self._slots = slots
            self._concurrency.set_slots(slots)
            self._send_waiting()

    def take_slots_from(self, source: SlotSource) -> None:
        """On a host: let each request take a slot there, in place of a limit of this process."""
        self.slot_source = source
        self.set_slots(MAX_LIMIT)

    @property
    def limit(self) -> int:
        """How many requests are sent at a time."""
        return self._concurrency.limit

    def load_with(self, weight: float) -> float:
        """Utilisation with one more request, divided by `weight`."""
        return (self.in_flight + 1) / (self.limit * weight)

    @property
    def load(self) -> EndpointLoad:
        return EndpointLoad(
            address=self.address,
            in_flight=self.in_flight,
            limit=self.limit,
            waiting=self.waiting,
            known=self._slots is not None,
        )

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def call_at(self, moment: float, callback: Callable[[], None]) -> Timer:
        return self._timers.call_later(max(moment - self.time(), 0.0), callback)

    # Entering

    def try_send(self, model: EndpointModel, request: Request) -> InFlightRequest | None:
        """Take a slot at once, if one is free and no other request waits for it."""
        now, health = self.time(), self.health
        if (
            self._waiting
            or self.in_flight >= self._concurrency.limit
            or now < health.paused_until
            or health.probe is not None
            or (model.rate_limiter is not None and model.rate_limiter.wait_s(now) > 0)
        ):
            return None
        prefix = self._cold_prefix(model, request, now)
        if prefix is not None and not prefix.free_slots(now):
            return None
        return self._send(model, prefix, now)

    def send(self, model: EndpointModel) -> InFlightRequest:
        """Take a slot here for a request that has one of the endpoint."""
        return self._send(model, None, self.time())

    def enqueue(self, waiter: Waiter, model: EndpointModel) -> None:
        """Let `waiter` wait here. It is given a slot, or an error when waiting is pointless."""
        error = self.health.give_up_error(self.time())
        if error is not None:
            waiter.give_up(self, error)
            return
        self._waiting[waiter] = model
        request = waiter.request
        entries = self._entries.setdefault(request.queue_key, [])
        heappush(entries, (request.asked_at, waiter.number, next(_numbers), waiter, model))
        self._send_waiting()

    def remove(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)
        if not self._waiting:
            self._entries.clear()
            for prefix in self._cold_prefixes:
                prefix.waiting.clear()
                prefix.let_through = 0
            self._cold_prefixes.clear()
            self._cancel_timer()

    def _cold_prefix(self, model: EndpointModel, request: Request, now: float) -> Prefix | None:
        # With one slot, requests follow each other anyway.
        if self._concurrency.limit == 1:
            return None
        return model.prefix_cache.cold_prefix(request, now)

    def _send(self, model: EndpointModel, prefix: Prefix | None, now: float) -> InFlightRequest:
        self.in_flight += 1
        if model.rate_limiter is not None:
            model.rate_limiter.record_request()
        if prefix is not None:
            prefix.acquire(now)
        request = InFlightRequest(model, prefix, now)
        self.health.sent(request)
        return request

    def _send_waiting(self) -> None:
        """Send what can be sent now, and set the timer for the rest."""
        if not self._waiting:
            return
        now, health = self.time(), self.health
        wake_at = self._send_heartbeat(now)
        if self.in_flight < self._concurrency.limit:
            self._requeue_for_prefixes(now)
        skipped = 0
        while skipped < len(self._entries) and self.in_flight < self._concurrency.limit:
            if now < health.paused_until or health.probe is not None:
                break
            # Groups take turns: this one is the last from now on.
            queue_key = next(iter(self._entries))
            entries = self._entries.pop(queue_key)
            wait_s = self._send_first(entries, now)
            if entries and self._waiting:
                self._entries[queue_key] = entries
            skipped = skipped + 1 if wait_s else 0
            wake_at = min(wake_at, now + wait_s) if wait_s else wake_at
        self._set_timer(wake_at, now)

    def _send_first(self, entries: list[_Entry], now: float) -> float:
        """Send a group's first request whose model has something left of its limits per minute.

        If there is none, return the seconds until there will be.
        """
        soonest_s = 0.0
        passed_over: list[_Entry] = []
        while entries:
            entry = entries[0]
            *_, waiter, model = entry
            if waiter not in self._waiting:
                heappop(entries)
                continue
            wait_s = 0.0 if model.rate_limiter is None else model.rate_limiter.wait_s(now)
            if 0 < wait_s <= self.health.patience_s:
                soonest_s = min(soonest_s or wait_s, wait_s)
                if len(self._models) == 1:
                    break  # All entries behind this one want the same model.
                passed_over.append(heappop(entries))
                continue
            heappop(entries)
            if wait_s > 0:
                error = Overloaded(
                    f"{self.address} allows no more requests of that model for another"
                    f" {wait_s:,.0f} s, by the limits in its own headers. Try again then,"
                    f" {self.health.way_out}"
                )
                waiter.give_up(self, error, model)
                continue
            prefix = self._cold_prefix(model, waiter.request, now)
            if prefix is not None and not prefix.free_slots(now):
                heappush(prefix.waiting, entry)
                self._cold_prefixes.add(prefix)
                continue
            waiter.grant(self._send(model, prefix, now))
            soonest_s = 0.0
            break
        for entry in passed_over:
            heappush(entries, entry)
        return soonest_s

    def _requeue_for_prefixes(self, now: float) -> None:
        """Put requests back into their queues that need not wait for a prefix any longer."""
        for prefix in list(self._cold_prefixes):
            free = prefix.free_slots(now)
            while prefix.waiting and prefix.let_through < free:
                entry = heappop(prefix.waiting)
                *_, waiter, _model = entry
                if waiter in self._waiting:
                    heappush(self._entries.setdefault(waiter.request.queue_key, []), entry)
                    prefix.let_through += 1
            if not prefix.waiting:
                self._cold_prefixes.discard(prefix)

    def _send_heartbeat(self, now: float) -> float:
        """Report a sign of life for every waiting request. Returns when the next is due."""
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + _HEARTBEAT_S
            for waiter in self._waiting:
                if waiter.on_text is not None:
                    waiter.on_text("")
        return self._heartbeat_at

    def _set_timer(self, wake_at: float, now: float) -> None:
        if not self._waiting:
            return
        wake_at = min(wake_at, self.health.next_change_at(now))
        for prefix in self._cold_prefixes:
            # For a moment that has passed, the end of a request calls `_send_waiting`; a timer
            # would fire without end.
            if prefix.stop_waiting_at > now:
                wake_at = min(wake_at, prefix.stop_waiting_at)
        if wake_at < self._timer_at or self._timer is None:
            self._cancel_timer()
            self._timer_at = wake_at
            self._timer = self.call_at(wake_at, self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, inf
        error = self.health.give_up_error(self.time())
        if error is not None:
            self._give_up(error)
        self._send_waiting()

    def _give_up(self, error: ModelError) -> None:
        for waiter in list(self._waiting):
            waiter.give_up(self, error)

    # Ends of requests

    def on_response(self, status: int) -> None:
        """Record that the endpoint answers, with any status."""
        may_send = self.health.responded(status)
        if status < 400:
            grew = self._concurrency.accepted(self.in_flight, now=self.time())
            may_send = may_send or grew
        if may_send:
            self._send_waiting()

    def release(self, request: InFlightRequest) -> None:
        """Free the slot of a request that is over, with or without an answer."""
        self.in_flight -= 1
        if request.prefix is not None:
            request.prefix.release()
        self.health.ended(request)
        if self._waiting:
            self._send_waiting()

    def on_prefix_read(self, prefix: Prefix, sent_at: float) -> None:
        """The first token after `prefix` has come, so the endpoint has the prefix in its cache."""
        now = self.time()
        prefix.mark_read(now - sent_at, now)
        self._send_waiting()

    def fail(self, request: InFlightRequest, error: ModelError) -> ModelError:
        """Free the slot of a request that failed, and return the error to raise for it.

        An error that the queue waits out is marked `held`: the request can be made again at once.
        """
        now, others = self.time(), self.in_flight - 1
        if request.free_slot is not None and isinstance(error, RateLimited | Overloaded):
            # The run waits it out for all hosts.
            error.held = True
            self.release(request)
            return error
        if isinstance(error, RateLimited | Overloaded):
            rest_s = error.retry_after_s or 0.0
            self._concurrency.refused(others, sent_at=request.sent_at, now=now, rest_s=rest_s)
        self.health.failed(request, error, now, others=others)
        self.release(request)
        if not error.held:
            return error
        final = self.health.give_up_error(now)
        if final is not None:
            self._give_up(final)
            return final
        if now < self.health.paused_until:
            for waiter in list(self._waiting):
                waiter.reroute()
        return error


class EndpointModel:
    """One model at one endpoint: its limits per minute, and the prefixes in its cache."""

    def __init__(self, queue: EndpointQueue, name: str) -> None:
        self.queue = queue
        self.name = name
        self.rate_limiter: RateLimiter | None = None
        self.prefix_cache = PrefixCache()
        self.reports_headers = False
        """Whether the client calls `on_headers`. Else the end of a request is its first sign."""

    def on_headers(self, status: int, headers: Mapping[str, str]) -> None:
        """Learn from the headers of a response. The client calls this as soon as they come."""
        queue = self.queue
        if not self.reports_headers:
            self.prefix_cache.per_slot |= headers.get("server") == "llama.cpp"
        if self.rate_limiter is not None or not self.reports_headers or status >= 400:
            limits = parse_rate_limits(headers)
            if limits is not None and queue.slot_source is not None:
                queue.slot_source.report_limits(self.name, limits)
            elif limits is not None:
                self.set_limits(limits)
        self.reports_headers = True
        queue.on_response(status)

    def set_limits(self, limits: RateLimits) -> None:
        """Keep to what the server has said of its limits in a response."""
        self.rate_limiter = self.rate_limiter or RateLimiter()
        others = max(self.queue.in_flight - 1, 0)
        self.rate_limiter.update(limits, in_flight=others, now=self.queue.time())


class _FirstTokenWatch:
    """Calls `on_text`, and tells the queue of the first token of a request."""

    def __init__(self, request: InFlightRequest, prefix: Prefix, on_text: OnText | None) -> None:
        self._request = request
        self._prefix = prefix
        self.report_life = on_text

    def __call__(self, text: str) -> None:
        if not self._prefix.warm_slots:
            self._request.model.queue.on_prefix_read(self._prefix, self._request.sent_at)
        if self.report_life is not None:
            self.report_life(text)


class InFlightRequest:
    """A request that holds a slot. It ends by `succeed`, `fail` or `cancel`."""

    def __init__(self, model: EndpointModel, prefix: Prefix | None, sent_at: float) -> None:
        self.model = model
        self.prefix = prefix
        self.sent_at = sent_at
        self.free_slot: Callable[[SlotUse], None] | None = None
        """On a host: frees the slot that the request has of the run."""

    def watch_first_token(self, on_text: OnText | None) -> OnText | None:
        """Wrap `on_text`: the first token says that the endpoint has read the prefix."""
        prefix = self.prefix
        if prefix is None or prefix.warm_slots:
            return on_text

        return _FirstTokenWatch(self, prefix, on_text)

    def succeed(self, reply: Reply) -> None:
        if self.prefix is not None and not self.prefix.warm_slots:
            self.model.queue.on_prefix_read(self.prefix, self.sent_at)
        tokens = reply.usage.tokens
        if self.free_slot is not None:
            self.free_slot(SlotUse(accepted=True, tokens=tokens))
        self.end_accepted(tokens)

    def end_accepted(self, tokens: int) -> None:
        """End a request that was answered. `tokens` are those of the prompt and the reply."""
        model, queue = self.model, self.model.queue
        if model.rate_limiter is not None:
            model.rate_limiter.record_reply(tokens)
        if not model.reports_headers:
            queue.on_response(200)
        queue.release(self)

    def fail(self, error: ModelError) -> ModelError:
        """Return the error to raise instead of `error`, which may be the same."""
        use = SlotUse()
        if isinstance(error, RateLimited | Overloaded):
            use = SlotUse(refusal=str(error), retry_after_s=error.retry_after_s)
        self._free_slot(use)
        return self.model.queue.fail(self, error)

    def cancel(self) -> None:
        self._free_slot(SlotUse())
        self.model.queue.release(self)

    def _free_slot(self, use: SlotUse) -> None:
        if self.free_slot is not None:
            self.free_slot(use)


_numbers = itertools.count()


class Waiter:
    """A request that waits in one queue or in several; the first free slot takes it."""

    def __init__(
        self, request: QueuedRequest, on_text: OnText | None, *, can_reroute: bool
    ) -> None:
        """With `can_reroute`, the wait ends when an endpoint pauses, to choose endpoints anew."""
        self.request = request
        self.on_text = on_text
        self._can_reroute = can_reroute
        self.number = next(_numbers)
        self.sent: InFlightRequest | None = None
        self._models: Sequence[EndpointModel] = ()
        self._woken: asyncio.Future[None] | None = None
        self._given_up: set[EndpointModel] = set()
        self._error: ModelError | None = None

    async def wait(
        self, models: Sequence[EndpointModel], *, until: float = inf
    ) -> InFlightRequest | None:
        """Wait until one of the models has a slot. None if it is time to choose anew.

        Raises the error of the last model when waiting is pointless for all of them.
        """
        self._woken = None
        sent = self.enqueue(models)
        if sent is not None:
            return sent
        if self._error is not None:
            raise self._error
        self._woken = asyncio.get_running_loop().create_future()
        timer = None if until == inf else models[0].queue.call_at(until, self.reroute)
        try:
            await self._woken
        except BaseException:
            self.leave_queues()
            if self.sent is not None:
                # A slot was granted and the task cancelled in the same moment.
                self.sent.cancel()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if self._error is not None:
            raise self._error
        return self.sent

    def enqueue(self, models: Sequence[EndpointModel]) -> InFlightRequest | None:
        """Wait in the queues of these models, until one has a slot: at once, perhaps."""
        self._models, self._given_up = models, set()
        for model in models:
            model.queue.enqueue(self, model)
            if self.sent is not None:
                return self.sent
        return None

    def grant(self, request: InFlightRequest) -> None:
        self.sent = request
        self.leave_queues()
        self._wake()

    def reroute(self) -> None:
        if self._can_reroute and self.sent is None:
            self.leave_queues()
            self._wake()

    def give_up(
        self, queue: EndpointQueue, error: ModelError, model: EndpointModel | None = None
    ) -> None:
        """Stop waiting in `queue`, or only for one `model` of it."""
        models = {one for one in self._models if one.queue is queue}
        self._given_up |= models if model is None else {model}
        if self._given_up >= models:
            queue.remove(self)
        if self._given_up >= {*self._models}:
            # A copy, since raising the same error twice would mix up the tracebacks.
            self._error = copy.copy(error)
            self._wake()

    def leave_queues(self) -> None:
        """Stop waiting."""
        for model in self._models:
            model.queue.remove(self)

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


# Ordered by age. The third number tells apart two entries of one waiter: models have no order.
_Entry = tuple[float, int, int, Waiter, EndpointModel]
