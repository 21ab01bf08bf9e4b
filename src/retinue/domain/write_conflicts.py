"""Who may write where at the same time: siblings whose paths overlap come one after the other.

A lease is asked for once, in the order in which the siblings were made, and held until it is given
back. Whoever asks is told which of the earlier ones must give theirs back first. So nobody is
overtaken by those who would be in their way, and everybody who waits, waits for somebody who came
before: there can be no circle.
"""

from __future__ import annotations

from functools import lru_cache

from retinue.domain.scope import Groups


class Leases:
    """The leases of one group of siblings, by name, in the order of asking."""

    def __init__(self) -> None:
        self._out: dict[str, Groups] = {}

    def ask(self, name: str, scope: Groups) -> tuple[str, ...]:
        """Those who must give theirs back before `name` may write in `scope`."""
        in_the_way = tuple(n for n, theirs in self._out.items() if overlap(scope, theirs))
        self._out[name] = scope
        return in_the_way

    def give_back(self, name: str) -> None:
        del self._out[name]


def overlap(a: Groups, b: Groups) -> bool:
    """Could a path be inside of both? Only a no is certain: then no path is."""
    # One group of each side without a path in common is enough; whether all groups together leave
    # something is not looked into.
    if () in (*a, *b):
        return False
    return not any(_apart(mine, theirs) for mine in a for theirs in b)


def _apart(mine: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    return not any(meet(one, other) for one in mine for other in theirs)


@lru_cache(maxsize=16_384)
def meet(a: str, b: str) -> bool:
    """Is there a path that both globs match? They are walked side by side, as automata."""
    one, other = _automaton(a), _automaton(b)
    pending = [(0, 0)]
    seen = set(pending)
    while pending:
        i, j = pending.pop()
        if i in one.ends and j in other.ends:
            return True
        ways = [
            (k, m)
            for signs, k in one.ways[i]
            for others, m in other.ways[j]
            if _common(signs, others)
        ]
        ways += [(k, j) for signs, k in one.ways[i] if signs == _NOTHING]
        ways += [(i, m) for signs, m in other.ways[j] if signs == _NOTHING]
        for pair in ways:
            if pair not in seen:
                seen.add(pair)
                pending.append(pair)
    return False


# What a way from one state to the next takes: one letter, or one of these.
_NOTHING = ""
_ANY = "any"
_NO_SLASH = "no slash"


def _common(a: str, b: str) -> bool:
    """Is there a letter that both ways take?"""
    if _NOTHING in (a, b):
        return False
    if _ANY in (a, b) or a == b:
        return True
    return _NO_SLASH in (a, b) and "/" not in (a, b)


class _Automaton:
    """The states that reading a path goes through, from 0: for each, the ways to the next ones."""

    def __init__(self) -> None:
        self.ways: list[list[tuple[str, int]]] = [[]]
        self.ends: set[int] = set()

    @property
    def last(self) -> int:
        return len(self.ways) - 1

    def go(self, signs: str, *, start: int | None = None) -> None:
        """A new state, reached by `signs` from the last one, or from `start`."""
        self.ways.append([])
        self.ways[self.last - 1 if start is None else start].append((signs, self.last))

    def stay(self, signs: str) -> None:
        """Any number of `signs`."""
        self.go(_NOTHING)
        self.ways[-1].append((signs, self.last))


@lru_cache(maxsize=4096)
def _automaton(glob: str) -> _Automaton:
    """A glob, as `scope` reads it."""
    read = _Automaton()
    i = 0
    while i < len(glob):
        if glob.startswith("**/", i):
            start = read.last
            read.stay(_ANY)
            read.go("/")
            read.ways[start].append((_NOTHING, read.last))
            i += 3
        elif glob.startswith("**", i):
            read.stay(_ANY)
            i += 2
        elif glob[i] == "*":
            read.stay(_NO_SLASH)
            i += 1
        else:
            read.go(_NO_SLASH if glob[i] == "?" else glob[i])
            i += 1
    read.ends.add(read.last)
    if not any(sign in glob for sign in "*?"):
        # Without wildcards it owns what lies below as well.
        read.go("/")
        read.stay(_ANY)
        read.ends.add(read.last)
    return read
