"""Models that can stand in for each other, each behind the gate of its endpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from retinue.domain.messages import Reply, Request, Timing
from retinue.errors import ContextOverflow, ModelError
from retinue.models.routing.endpoint_queue import Line, Ticket, Visit
from retinue.ports.model import Model

# Long enough for a request that has failed to be asked elsewhere; short enough that a connection
# which drops now and then costs nothing. What fails again is left alone for longer.
_FIRST_DOUBT_S = 0.05
_DOUBT_GROWS = 4
_LONGEST_DOUBT_S = 15.0
# What is wrong with a key or a name does not pass by itself.
_LASTING_DOUBT_S = 60.0
_NEVER = float("inf")


class Door:
    """One model of a pool. After a failure there is a doubt about it for a while."""

    __slots__ = ("_doubted_at", "_doubted_until", "_failures", "line", "model", "name", "weight")

    def __init__(self, name: str, model: Model, line: Line, *, weight: float = 1.0) -> None:
        self.name = name
        self.model = model
        self.line = line
        self.weight = weight
        self._doubted_at, self._doubted_until = -_NEVER, 0.0
        self._failures = 0

    def load(self) -> float:
        """How much of what it can take it would have, with one more."""
        gate = self.line.gate
        return (gate.under_way + 1) / (gate.limit * self.weight)

    @property
    def opens_at(self) -> float:
        """From when on it is worth a try."""
        return max(self._doubted_until, self.line.gate.opens_at)

    def answered(self) -> None:
        self._failures, self._doubted_until = 0, 0.0

    def failed(self, error: ModelError, *, sent_at: float, now: float) -> None:
        if not error.retryable:
            self._doubted_until = now + _LASTING_DOUBT_S
        elif sent_at > self._doubted_at:  # Else it was under way when another one failed.
            doubt_s = min(_FIRST_DOUBT_S * _DOUBT_GROWS**self._failures, _LONGEST_DOUBT_S)
            self._failures += 1
            self._doubted_at, self._doubted_until = now, now + doubt_s


class Pool:
    """Asks the model that has the most room; or with `in_order`, the first that has any.

    Where none has, the first to have some is asked. A request that failed at one is marked to be
    made again at once if there is another that can be trusted. A model by itself is a pool of one.
    """

    def __init__(self, name: str, doors: Sequence[Door], *, in_order: bool = False) -> None:
        self._name = name
        self._doors = tuple(doors)
        self._only = doors[0] if len(doors) == 1 else None
        self._in_order = in_order
        self._named = len(doors) == 1 and doors[0].name == name

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"Pool({self._name!r}, {', '.join(door.name for door in self._doors)})"

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        door, queued_s = self._only, 0.0
        visit = None if door is None else door.line.gate.enter(door.line, request)
        if door is None or visit is None:
            door, visit, queued_s = await self._admitted(request, on_text)
        try:
            reply = await door.model.reply(request, visit.hearing(on_text))
        except ModelError as error:
            fault = error
        except BaseException:
            visit.dropped()
            raise
        else:
            visit.answered(reply)
            door.answered()
            return reply if self._named and not queued_s else self._noted(reply, door, queued_s)
        raise self._judged(fault, door, visit)

    async def aclose(self) -> None:
        for door in self._doors:
            await door.model.aclose()

    def _noted(self, reply: Reply, door: Door, queued_s: float) -> Reply:
        """The reply with how long it had to wait, and who gave it."""
        timing = reply.timing
        return msgspec.structs.replace(
            reply,
            timing=Timing(queued_s, timing.first_token_s, timing.generating_s),
            model="" if self._named else door.name,
        )

    async def _admitted(
        self, request: Request, on_text: Callable[[str], None] | None
    ) -> tuple[Door, Visit, float]:
        """A place with one of them, and how long it took to get it."""
        time = self._doors[0].line.gate.time
        since = time()
        ticket = Ticket(request, on_text, choosy=self._only is None)
        while True:
            now = time()
            doors = self._choice(request, now)
            for door in doors:
                visit = door.line.gate.enter(door.line, request)
                if visit is not None:
                    return door, visit, time() - since
            visit = await ticket.turn([door.line for door in doors], until=self._change_at(now))
            if visit is not None:
                line = visit.line
                door = next(door for door in doors if door.line is line)
                return door, visit, time() - since

    def _change_at(self, now: float) -> float:
        """When one that is not worth asking will be."""
        return min((door.opens_at for door in self._doors if door.opens_at > now), default=_NEVER)

    def _choice(self, request: Request, now: float) -> list[Door]:
        """Those worth asking, the best first; all of them if none is."""
        doors = [door for door in self._doors if now >= door.opens_at] or list(self._doors)
        if not self._in_order:
            doors.sort(key=Door.load)
        for door in doors:
            if door.name == request.preferred_model:
                doors.remove(door)
                doors.insert(0, door)
                break
        return doors

    def _judged(self, error: ModelError, door: Door, visit: Visit) -> ModelError:
        error = visit.failed(error)
        if self._only is None and not isinstance(error, ContextOverflow):
            now = visit.line.gate.time()
            if not error.held:
                door.failed(error, sent_at=visit.since, now=now)
            if any(now >= other.opens_at for other in self._doors):
                error.held, error.retry_after_s = True, None
        return error
