"""The order in which the steps of a plan start: list scheduling by critical path.

Whenever a slot is free, the next step is the one that the most work depends on, among those whose
needs are met. Among equals it is the one that comes first in the plan. `PlanRun` asks a
`Schedule` which step is next; a forecast simulates one with `run_through`.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping

Needs = Mapping[str, Collection[str]]
"""For each step, the steps that must be done before it starts."""


class Schedule:
    """Tracks which steps wait, run and have ended. Steps are identified by name."""

    def __init__(
        self, needs: Needs, weights: Mapping[str, float], exclusive: Collection[str] = ()
    ) -> None:
        """`needs` have no cycle; needs that are not steps of the schedule count as met.

        Of the `exclusive` steps, one runs at a time.
        """
        self._exclusive = frozenset(exclusive)
        self._needs = {name: {need for need in on if need in needs} for name, on in needs.items()}
        self._place = {name: place for place, name in enumerate(needs)}
        self._rank = ranks(self._needs, weights)
        self._followers = _followers(self._needs)
        self.waiting = dict.fromkeys(needs)
        """Steps that have not started, in the order of the plan."""
        self.running: dict[str, None] = {}
        """Steps that have started and are not over, in the order of their start."""
        # A heap of steps whose needs are met, the best first. A step that has started or was given
        # up is skipped when it is popped: removing it from the heap would take linear time.
        self._ready: list[tuple[float, int, str]] = []
        for name in needs:
            self._offer(name)
        self.stopped = False
        """Whether no more steps are to start."""

    def _offer(self, name: str) -> None:
        if name in self.waiting and not self._needs[name]:
            heapq.heappush(self._ready, (-self._rank[name], self._place[name], name))

    def start_next(self) -> str | None:
        """Start the best step; None if no step can start now."""
        blocked = frozenset() if self._exclusive.isdisjoint(self.running) else self._exclusive
        postponed = []
        found = None
        while self._ready and found is None and not self.stopped:
            entry = heapq.heappop(self._ready)
            name = entry[-1]
            if name in blocked:
                postponed.append(entry)
            elif name in self.waiting:
                found = name
                self.start(name)
        for entry in postponed:
            heapq.heappush(self._ready, entry)
        return found

    def start(self, name: str) -> None:
        """Mark this step as running. Does nothing if it is running already."""
        self.waiting.pop(name, None)
        self.running[name] = None

    def finish(self, name: str) -> None:
        """A step is done, so the steps that need it have one need less."""
        self.running.pop(name, None)
        for other in self._followers[name]:
            self._needs[other].discard(name)
            self._offer(other)

    def retry(self, name: str) -> None:
        """A step has to start once more."""
        self.running.pop(name, None)
        self.waiting[name] = None
        self._offer(name)

    def fail(self, name: str) -> list[str]:
        """A step has failed. Returns its dependents, which are given up."""
        self.running.pop(name, None)
        lost = self.dependents(name)
        for other in lost:
            self.waiting.pop(other, None)
        return lost

    def dependents(self, name: str) -> list[str]:
        """All steps that need this one, directly or not, in the order of the plan.

        Steps that were given up already, since they need another failed step, are among them.
        """
        found, pending = {name}, [name]
        while pending:
            more = [other for other in self._followers[pending.pop()] if other not in found]
            found.update(more)
            pending += more
        found.discard(name)
        return sorted(found, key=self._place.__getitem__)


def ranks(needs: Needs, weights: Mapping[str, float]) -> dict[str, float]:
    """For each step, the work on the longest path from its start to the end of the plan."""
    found: dict[str, float] = {}
    followers = _followers(needs)
    for name in reversed(list(in_order(needs))):
        found[name] = weights.get(name, 0.0) + max((found[f] for f in followers[name]), default=0.0)
    return found


def _followers(needs: Needs) -> dict[str, list[str]]:
    """For each step, the steps that need it directly."""
    found: dict[str, list[str]] = {name: [] for name in needs}
    for name, on in needs.items():
        for need in on:
            if need in found:
                found[need].append(name)
    return found


def in_order(needs: Needs) -> Iterator[str]:
    """The steps, each after all that it needs, otherwise as in the plan; no step of a cycle."""
    met: set[str] = set()
    left = list(needs)
    while ready := [n for n in left if all(need in met or need not in needs for need in needs[n])]:
        yield from ready
        met.update(ready)
        left = [name for name in left if name not in met]


def cycles(needs: Needs) -> Iterator[list[str]]:
    """The cycles in which steps need each other, one for each group of steps."""
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
            # `plan_check` reports a step that needs itself.
            name = next((n for n in needs[name] if n in left and n != name), None)
        known.update(way)


def upstream(needs: Needs, name: str) -> set[str]:
    """All steps that must be done before `name` starts."""
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
    exclusive: Collection[str] = (),
) -> dict[str, tuple[float, float]]:
    """When each step would start and end, if the steps took `took_s` in `slots` slots."""
    schedule = Schedule(needs, weights, exclusive)
    times: dict[str, tuple[float, float]] = {}
    running: list[tuple[float, int, str]] = []
    now = 0.0
    while True:
        while len(running) < slots and (name := schedule.start_next()) is not None:
            times[name] = (now, now + took_s[name])
            heapq.heappush(running, (times[name][1], len(times), name))
        if not running:
            return times
        now, _, name = heapq.heappop(running)
        schedule.finish(name)
