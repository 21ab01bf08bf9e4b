"""In which order steps are begun: list scheduling by the longest way to the end.

Whenever there is a place, of the steps whose needs are met the one is begun behind which the most
work waits; of equal ones, the one that stands first in the plan. The engine asks a `Schedule` what
is next, and a forecast lets one run through without doing anything.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping

Needs = Mapping[str, Collection[str]]


class Schedule:
    """What was begun, what is over, and what comes next. Steps are known by their names."""

    def __init__(
        self, needs: Needs, weights: Mapping[str, float], alone: Collection[str] = ()
    ) -> None:
        """`needs` go in no circle; those that are no step of it count as met.

        Of those in `alone` one is begun when no other of them is under way.
        """
        self._alone = frozenset(alone)
        self._needs = {name: {need for need in on if need in needs} for name, on in needs.items()}
        self._place = {name: place for place, name in enumerate(needs)}
        self._rank = ranks(self._needs, weights)
        self._followers = _followers(self._needs)
        self._waiting = dict.fromkeys(needs)
        self._under_way: dict[str, None] = {}
        # Those whose needs are met, the best first. Some may have been begun or given up since: a
        # fan-out of ten thousand must not look at all of them for each.
        self._ready: list[tuple[float, int, str]] = []
        for name in needs:
            self._offer(name)
        self.stopped = False

    def _offer(self, name: str) -> None:
        if name in self._waiting and not self._needs[name]:
            heapq.heappush(self._ready, (-self._rank[name], self._place[name], name))

    @property
    def waiting(self) -> list[str]:
        """Those that were not begun, in the order of the plan."""
        return list(self._waiting)

    @property
    def under_way(self) -> list[str]:
        """Those that were begun and are not over, in the order of their beginning."""
        return list(self._under_way)

    def next(self) -> str | None:
        """Begin a step; None if there is none that can be begun now."""
        barred = frozenset() if self._alone.isdisjoint(self._under_way) else self._alone
        put_off = []
        found = None
        while self._ready and found is None and not self.stopped:
            entry = heapq.heappop(self._ready)
            name = entry[-1]
            if name in barred:
                put_off.append(entry)
            elif name in self._waiting:
                found = name
                self.begin(name)
        for entry in put_off:
            heapq.heappush(self._ready, entry)
        return found

    def begin(self, name: str) -> None:
        """Begin this one, which somebody has chosen."""
        del self._waiting[name]
        self._under_way[name] = None

    def done(self, name: str) -> None:
        """A step is over, and those that need it have one need less."""
        self._under_way.pop(name, None)
        for other in self._followers[name]:
            self._needs[other].discard(name)
            self._offer(other)

    def again(self, name: str) -> None:
        """A step is to be begun once more."""
        self._under_way.pop(name, None)
        self._waiting[name] = None
        self._offer(name)

    def failed(self, name: str) -> list[str]:
        """A step is over and came to nothing; answers all that need it, and are never begun.

        Those that need another one as well that has failed are among them, whoever was first.
        """
        self._under_way.pop(name, None)
        lost, pending = {name}, [name]
        while pending:
            more = [other for other in self._followers[pending.pop()] if other not in lost]
            lost.update(more)
            pending += more
        lost.discard(name)
        for other in lost:
            self._waiting.pop(other, None)
        return sorted(lost, key=self._place.__getitem__)

    def stop(self) -> None:
        """Begin nothing more."""
        self.stopped = True


def ranks(needs: Needs, weights: Mapping[str, float]) -> dict[str, float]:
    """For each step, how much work lies on the longest way from its beginning to the end."""
    found: dict[str, float] = {}
    followers = _followers(needs)
    for name in reversed(list(in_order(needs))):
        found[name] = weights.get(name, 0.0) + max((found[f] for f in followers[name]), default=0.0)
    return found


def _followers(needs: Needs) -> dict[str, list[str]]:
    """For each step, those that need it."""
    found: dict[str, list[str]] = {name: [] for name in needs}
    for name, on in needs.items():
        for need in on:
            if need in found:
                found[need].append(name)
    return found


def in_order(needs: Needs) -> Iterator[str]:
    """The steps, each behind all that it needs, else as in the plan. Those in circles are left."""
    met: set[str] = set()
    left = list(needs)
    while ready := [n for n in left if all(need in met or need not in needs for need in needs[n])]:
        yield from ready
        met.update(ready)
        left = [name for name in left if name not in met]


def circles(needs: Needs) -> Iterator[list[str]]:
    """The circles in which steps need each other; one for each group of steps that are in some."""
    left = [name for name in needs if name not in set(in_order(needs))]
    known: set[str] = set()
    for start in left:
        way: list[str] = []
        name: str | None = start
        while name is not None and name not in known:
            if name in way:
                yield way[way.index(name) :]
                break
            way.append(name)
            # A step that only needs itself is told of elsewhere.
            name = next((n for n in needs[name] if n in left and n != name), None)
        known.update(way)


def upstream(needs: Needs, name: str) -> set[str]:
    """All that must be over before `name` begins."""
    found: set[str] = set()
    pending = list(needs.get(name, ()))
    while pending:
        need = pending.pop()
        if need in needs and need not in found:
            found.add(need)
            pending += needs[need]
    return found


def run_through(
    needs: Needs,
    weights: Mapping[str, float],
    took_s: Mapping[str, float],
    *,
    slots: int,
    alone: Collection[str] = (),
) -> dict[str, tuple[float, float]]:
    """When each step would begin and end, if they took so long and were begun in that order."""
    schedule = Schedule(needs, weights, alone)
    times: dict[str, tuple[float, float]] = {}
    running: list[tuple[float, int, str]] = []
    now = 0.0
    while True:
        while len(running) < slots and (name := schedule.next()) is not None:
            times[name] = (now, now + took_s[name])
            heapq.heappush(running, (times[name][1], len(times), name))
        if not running:
            return times
        now, _, name = heapq.heappop(running)
        schedule.done(name)
