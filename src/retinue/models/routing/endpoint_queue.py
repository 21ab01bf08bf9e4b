"""One gate before each endpoint, for everybody in the process who wants something from it.

The gate lets in as many as the endpoint takes at a time; the others wait in lanes, one for each
run. Lanes take turns, so that no fan-out starves another, and in a lane it is first come, first
served. What one request learns holds for all of them: a refusal slows everybody down, a limit per
minute is kept before it is reached, and an endpoint that is gone is asked now and then by one of
those who wait, who all wake up when it is back.

While a place is free and nothing is known against it, the gate costs a microsecond: no task, no
future, no timer.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol

from retinue.domain.messages import Reply, Request
from retinue.domain.server_info import EndpointLoad
from retinue.errors import ModelError, Overloaded, ProviderError, RateLimited, Unreachable
from retinue.models.routing.concurrency import Throttle
from retinue.models.routing.prefix_cache import Prefix, Warmth
from retinue.models.routing.rate_limits import Pace, limits_of

PATIENCE_S = 120.0

# A single failure to connect may be a full backlog; so many in a row are an endpoint that is gone.
_GONE_AFTER = 3
_FIRST_REST_S = 0.5
_LONGEST_REST_S = 30.0
_LONGEST_PROBE_S = 15.0
_BEAT_S = 10.0
_NEVER = float("inf")

OnText = Callable[[str], None]


class Timers(Protocol):
    """What a gate needs to know of time. An event loop has it."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class Gate:
    """The gate of one endpoint.

    `slots` is how many requests the endpoint works on at a time, if that is known. After
    `patience_s` without an answer nobody waits for it any longer.
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
        self.patience_s = patience_s
        self.under_way = 0
        self._timers: Timers = timers or asyncio.get_running_loop()
        self.time = self._timers.time
        self._throttle = Throttle(slots)
        self._slots = slots
        self._lines: dict[str, Line] = {}
        self._lanes: dict[str, list[_Place]] = {}
        self._waiting: dict[Ticket, Line] = {}
        self._holding: set[Prefix] = set()
        self._alarm: Timer | None = None
        self._alarm_at = _NEVER
        self._beat_at = 0.0
        # Nothing is let in before this moment.
        self._closed_until = 0.0
        self._rests = 0
        # Since when all that is asked is refused, while nothing else is under way.
        self._refusing_since: float | None = None
        self._answered = False
        self._missed = 0
        self._down_since: float | None = None
        self._probe: Visit | None = None
        self._last_words = ""

    def __repr__(self) -> str:
        return f"Gate({self.address!r}, {self.under_way} of {self.limit} under way)"

    def line(self, model: str) -> Line:
        """Where that model is asked."""
        if model not in self._lines:
            self._lines[model] = Line(self)
        return self._lines[model]

    def serves(self, slots: int | None) -> None:
        """The endpoint works on so many requests at a time; None if nobody knows."""
        if slots != self._slots:
            self._slots = slots
            self._throttle.know(slots)
            self._admit()

    @property
    def limit(self) -> int:
        """How many are let in at a time."""
        return self._throttle.limit

    @property
    def load(self) -> EndpointLoad:
        return EndpointLoad(
            address=self.address,
            under_way=self.under_way,
            limit=self.limit,
            waiting=len(self._waiting),
            known=self._slots is not None,
        )

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def opens_at(self) -> float:
        """When it is worth a try: now, at the end of a rest, or to see whether it is back."""
        return self._closed_until if self._probe is None else _NEVER

    def hopeless(self, now: float) -> ModelError | None:
        """Why nobody should wait here any longer."""
        way_out = self._way_out
        if self._down_since is not None and now - self._down_since >= self.patience_s:
            return Unreachable(
                f"{self.address} has been gone for {now - self._down_since:,.0f} s:"
                f" {self._last_words} Start it again, {way_out}"
            )
        if self._down_since is None and self._closed_until - now > self.patience_s:
            return ProviderError(
                f"{self.address} wants to be left alone for {self._closed_until - now:,.0f} s:"
                f" {self._last_words} Come back then, {way_out}"
            )
        since = self._refusing_since
        if since is not None and now - since >= self.patience_s:
            return ProviderError(
                f"{self.address} has refused everything for {now - since:,.0f} s:"
                f" {self._last_words} Come back later, {way_out}"
            )
        return None

    @property
    def _way_out(self) -> str:
        return (
            "choose another with -m, or let agents wait longer with patience_s under"
            f' [servers."{self.address}"] in your settings.'
        )

    def _used_up(self, wait_s: float) -> ModelError:
        return ProviderError(
            f"{self.address} allows no more requests of that model for another {wait_s:,.0f} s, by"
            f" the limits in its own headers. Come back then, {self._way_out}"
        )

    def remind(self, at: float, callback: Callable[[], None]) -> Timer:
        return self._timers.call_later(max(at - self.time(), 0.0), callback)

    # Coming in

    def enter(self, line: Line, request: Request) -> Visit | None:
        """Take a place at once, if one is free and nobody waits for it."""
        now = self.time()
        if (
            self._waiting
            or self.under_way >= self._throttle.limit
            or now < self._closed_until
            or self._probe is not None
            or (line.pace is not None and line.pace.wait_s(now) > 0)
        ):
            return None
        prefix = line.warmth.prefix(request, now) if self._throttle.limit > 1 else None
        if prefix is not None and not prefix.room(now):
            return None
        return self._let_in(line, prefix, now)

    def join(self, ticket: Ticket, line: Line) -> None:
        """Wait here; whoever holds the ticket is told when it is its turn."""
        hopeless = self.hopeless(self.time())
        if hopeless is not None:
            ticket.abandon(self, hopeless)
            return
        self._waiting[ticket] = line
        lane = self._lanes.setdefault(ticket.request.run_id, [])
        heappush(lane, (ticket.request.asked_at, ticket.number, next(_numbers), ticket, line))
        self._admit()

    def forget(self, ticket: Ticket) -> None:
        """It waits no longer. What is left of it in the lanes is passed over."""
        self._waiting.pop(ticket, None)
        if not self._waiting:
            self._lanes.clear()
            for prefix in self._holding:
                prefix.held.clear()
                prefix.released = 0
            self._holding.clear()
            self._disarm()

    def _let_in(self, line: Line, prefix: Prefix | None, now: float) -> Visit:
        self.under_way += 1
        if line.pace is not None:
            line.pace.sent()
        if prefix is not None:
            prefix.enter(now)
        visit = Visit(line, prefix, now)
        if self._down_since is not None:
            self._probe = visit
        return visit

    def _admit(self) -> None:
        """Let in who can be let in, and see to it that the rest is looked at in time."""
        if not self._waiting:
            return
        now = self.time()
        wake_at = self._beat(now)
        if self.under_way < self._throttle.limit:
            self._release(now)
        passed = 0
        while passed < len(self._lanes) and self.under_way < self._throttle.limit:
            if now < self._closed_until or self._probe is not None:
                break
            # Lanes take turns: this one is the last from now on.
            name = next(iter(self._lanes))
            lane = self._lanes.pop(name)
            wait_s = self._first_of(lane, now)
            if lane and self._waiting:
                self._lanes[name] = lane
            passed = passed + 1 if wait_s else 0
            wake_at = min(wake_at, now + wait_s) if wait_s else wake_at
        self._arm(wake_at, now)

    def _first_of(self, lane: list[_Place], now: float) -> float:
        """Let in the first of a lane whose model has something left of its limits per minute.

        If there is none, answers how long that will take.
        """
        soonest_s = 0.0
        passed_over: list[_Place] = []
        while lane:
            place = lane[0]
            *_, ticket, line = place
            if ticket not in self._waiting:
                heappop(lane)
                continue
            wait_s = 0.0 if line.pace is None else line.pace.wait_s(now)
            if 0 < wait_s <= self.patience_s:
                soonest_s = min(soonest_s or wait_s, wait_s)
                if len(self._lines) == 1:
                    break  # All behind it want the same.
                passed_over.append(heappop(lane))
                continue
            heappop(lane)
            if wait_s > 0:
                ticket.abandon(self, self._used_up(wait_s), line)
                continue
            warms = self._throttle.limit > 1
            prefix = line.warmth.prefix(ticket.request, now) if warms else None
            if prefix is not None and not prefix.room(now):
                heappush(prefix.held, place)
                self._holding.add(prefix)
                continue
            ticket.take(self._let_in(line, prefix, now))
            soonest_s = 0.0
            break
        for place in passed_over:
            heappush(lane, place)
        return soonest_s

    def _release(self, now: float) -> None:
        """Put those back into their lanes who need not wait for a prefix any longer."""
        for prefix in list(self._holding):
            room = prefix.room(now)
            while prefix.held and prefix.released < room:
                place = heappop(prefix.held)
                *_, ticket, _line = place
                if ticket in self._waiting:
                    heappush(self._lanes.setdefault(ticket.request.run_id, []), place)
                    prefix.released += 1
            if not prefix.held:
                self._holding.discard(prefix)

    def _beat(self, now: float) -> float:
        """Give a sign of life for all who wait, now and then. Answers when the next is due."""
        if now >= self._beat_at:
            self._beat_at = now + _BEAT_S
            for ticket in self._waiting:
                if ticket.on_text is not None:
                    ticket.on_text("")
        return self._beat_at

    def _arm(self, wake_at: float, now: float) -> None:
        if not self._waiting:
            return
        if self._down_since is not None:
            wake_at = min(wake_at, self._down_since + self.patience_s)
        if self._refusing_since is not None:
            wake_at = min(wake_at, self._refusing_since + self.patience_s)
        if now < self._closed_until:
            wake_at = min(wake_at, self._closed_until)
        for prefix in self._holding:
            # What has come is seen to when somebody leaves; an alarm would go off for ever.
            if prefix.opens_at > now:
                wake_at = min(wake_at, prefix.opens_at)
        if wake_at < self._alarm_at or self._alarm is None:
            self._disarm()
            self._alarm_at = wake_at
            self._alarm = self.remind(wake_at, self._wake)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = None, _NEVER

    def _wake(self) -> None:
        self._alarm, self._alarm_at = None, _NEVER
        now = self.time()
        hopeless = self.hopeless(now)
        if hopeless is not None:
            self._give_up(hopeless)
        self._admit()

    def _give_up(self, hopeless: ModelError) -> None:
        for ticket in list(self._waiting):
            ticket.abandon(self, hopeless)

    # What comes of it

    def heard(self, status: int) -> None:
        """The endpoint answers, for good or ill."""
        more = self._down_since is not None
        if more:
            self._down_since, self._probe, self._closed_until, self._rests = None, None, 0.0, 0
        self._answered, self._missed = True, 0
        if status < 400:
            self._refusing_since, self._rests = None, 0
            more = self._throttle.accepted(self.under_way, now=self.time()) or more
        if more:
            self._admit()

    def left(self, visit: Visit) -> None:
        """A visit is over, with or without an answer; somebody else may have its place."""
        self.under_way -= 1
        if visit.prefix is not None:
            visit.prefix.leave()
        if self._probe is visit:
            self._probe = None  # Cancelled before it knew: the next one may find out.
        if self._waiting:
            self._admit()

    def failed(self, visit: Visit, error: ModelError) -> ModelError:
        """A visit came to nothing. Answers what to raise: marked if the gate sees to the wait."""
        now = self.time()
        match error:
            case RateLimited() | Overloaded():
                self._refused(visit, error, now)
            case Unreachable() if self._answered and error.retryable:
                self._missing(visit, error, now)
            case _ if self._probe is visit:
                # It answers the door and does not keep its word: not back yet.
                self._missing(visit, error, now)
            case _:
                pass
        self.left(visit)
        return self._verdict(error, now)

    def _refused(self, visit: Visit, error: ModelError, now: float) -> None:
        others = self.under_way - 1
        rest_s = error.retry_after_s or 0.0
        self._throttle.refused(others, sent_at=visit.since, now=now, rest_s=rest_s)
        self._last_words = _without_advice(error)
        if not others:
            if self._refusing_since is None or now > self._closed_until + _LONGEST_REST_S:
                self._refusing_since = now
            # Nobody whose end could be waited for.
            rest_s = rest_s or min(_FIRST_REST_S * 2**self._rests, _LONGEST_REST_S)
            self._rests += 1
        if rest_s:
            self._closed_until = max(self._closed_until, now + rest_s)
            error.retry_after_s = self._closed_until - now
        error.held = True

    def _missing(self, visit: Visit, error: ModelError, now: float) -> None:
        self._missed += 1
        if self._missed < _GONE_AFTER and self._down_since is None:
            return
        error.held = True
        if self._down_since is None:
            self._down_since, self._rests = now, 0
        elif self._probe is not visit:
            return  # It was on its way before the endpoint was known to be gone.
        self._last_words = _without_advice(error)
        self._probe = None
        error.retry_after_s = min(_FIRST_REST_S * 2**self._rests, _LONGEST_PROBE_S)
        self._rests += 1
        self._closed_until = now + error.retry_after_s

    def _verdict(self, error: ModelError, now: float) -> ModelError:
        """What to tell whoever failed; and nobody waits here who need not."""
        if not error.held:
            return error
        hopeless = self.hopeless(now)
        if hopeless is not None:
            self._give_up(hopeless)
            return hopeless
        if now < self._closed_until:
            for ticket in list(self._waiting):
                ticket.reconsider()
        return error


class Line:
    """One model at one endpoint: its limits per minute, and what it has read."""

    __slots__ = ("_limited", "gate", "hears", "pace", "warmth")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.pace: Pace | None = None
        self.warmth = Warmth()
        self.hears = False
        """Whether the client passes on what it hears; others are heard of when they are done."""
        self._limited = False

    def heard(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of an answer, which the client passes on as soon as it comes."""
        if not self.hears:
            self.warmth.by_slot |= headers.get("server") == "llama.cpp"
        if self._limited or not self.hears or status >= 400:
            limits = limits_of(headers)
            if limits is not None:
                self._limited = True
                self.pace = self.pace or Pace()
                gate = self.gate
                others = max(gate.under_way - 1, 0)
                self.pace.learn(limits, under_way=others, now=gate.time())
        self.hears = True
        self.gate.heard(status)


class Visit:
    """A request on its way."""

    __slots__ = ("line", "prefix", "since")

    def __init__(self, line: Line, prefix: Prefix | None, since: float) -> None:
        self.line = line
        self.prefix = prefix
        self.since = since

    def hearing(self, on_text: OnText | None) -> OnText | None:
        """`on_text`, and the first token of whoever reads a prefix wakes those behind."""
        prefix = self.prefix
        if prefix is None or prefix.width:
            return on_text

        def hear(text: str) -> None:
            if not prefix.width:
                self._has_read(prefix)
            if on_text is not None:
                on_text(text)

        return hear

    def _has_read(self, prefix: Prefix) -> None:
        gate = self.line.gate
        now = gate.time()
        prefix.read(now - self.since, now)
        gate._admit()

    def answered(self, reply: Reply) -> None:
        line = self.line
        if line.pace is not None:
            line.pace.used(reply.usage.tokens)
        if self.prefix is not None and not self.prefix.width:
            self._has_read(self.prefix)
        if not line.hears:
            line.gate.heard(200)
        line.gate.left(self)

    def failed(self, error: ModelError) -> ModelError:
        """What to raise instead of `error`, which may be the same."""
        return self.line.gate.failed(self, error)

    def dropped(self) -> None:
        """Nobody wants the answer any more."""
        self.line.gate.left(self)


def _without_advice(error: ModelError) -> str:
    """What happened, and what the server said of it; the way out is another one by now."""
    happened, *rest = str(error).split(". ")
    said = rest[:1] if rest and rest[0].startswith("It said: ") else []
    return ". ".join([happened, *said]).rstrip(".") + "."


_numbers = itertools.count()


class Ticket:
    """Somebody who waits, before one gate or several: the first that has a place takes it."""

    __slots__ = (
        "_choosy",
        "_fault",
        "_hopeless",
        "_lines",
        "_told",
        "number",
        "on_text",
        "request",
        "visit",
    )

    def __init__(self, request: Request, on_text: OnText | None, *, choosy: bool) -> None:
        """`choosy` ones want to choose again when things change where they wait."""
        self.request = request
        self.on_text = on_text
        self._choosy = choosy
        self.number = next(_numbers)
        self.visit: Visit | None = None
        self._lines: Sequence[Line] = ()
        self._told: asyncio.Future[None] | None = None
        self._hopeless: set[Line] = set()
        self._fault: ModelError | None = None

    async def turn(self, lines: Sequence[Line], *, until: float = _NEVER) -> Visit | None:
        """Wait until one of them has a place. None if it is time to choose again.

        Raises what is wrong with the last of them when there is no hope for any.
        """
        self._lines, self._hopeless, self._told = lines, set(), None
        for line in lines:
            line.gate.join(self, line)
            if self.visit is not None:
                return self.visit
        if self._fault is not None:
            raise self._fault
        self._told = asyncio.get_running_loop().create_future()
        reminder = None if until == _NEVER else lines[0].gate.remind(until, self.reconsider)
        try:
            await self._told
        except BaseException:
            self._leave()
            if self.visit is not None:
                # Let in and cancelled in the same moment.
                self.visit.dropped()
            raise
        finally:
            if reminder is not None:
                reminder.cancel()
        if self._fault is not None:
            raise self._fault
        return self.visit

    def take(self, visit: Visit) -> None:
        self.visit = visit
        self._leave()
        self._tell()

    def reconsider(self) -> None:
        if self._choosy and self.visit is None:
            self._leave()
            self._tell()

    def abandon(self, gate: Gate, error: ModelError, line: Line | None = None) -> None:
        """There is no hope for it at `gate`; or only at that `line` of it, if one is named."""
        lines = {one for one in self._lines if one.gate is gate}
        self._hopeless |= lines if line is None else {line}
        if self._hopeless >= lines:
            gate.forget(self)
        if self._hopeless >= {*self._lines}:
            # A copy, since raising the same one twice would mix up their tracebacks.
            self._fault = copy.copy(error)
            self._tell()

    def _leave(self) -> None:
        for line in self._lines:
            line.gate.forget(self)

    def _tell(self) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(None)


# The third is only there to tell apart two places of one ticket: lines have no order.
_Place = tuple[float, int, int, Ticket, Line]
